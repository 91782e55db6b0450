"""You are the doctor: one case at the keyboard, then a review.

The review shows what was missed, what it was worth, and what others asked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.text import Text

from workup.cli.play.person import Person
from workup.cli.play.review import review
from workup.core.case import Case, Source
from workup.core.draws import seed_key
from workup.core.episode import Ending, Episode
from workup.core.errors import UserError
from workup.core.ports import Doctor, Environment
from workup.core.text import unsteering
from workup.environments.consultation import Consultation
from workup.methods import craft
from workup.methods.base.outcome import accuracy
from workup.metrics.facts import scored
from workup.rl.interaction import Interaction
from workup.rl.rollout import Play, ToPlay, rollout
from workup.rl.running import run_to_end
from workup.roles.judges.exact import ExactJudge
from workup.runs import Record
from workup.runs.judged import measured


def play(
    source: Source,
    *,
    index: int | None = None,
    seed: int = 0,
    against: Doctor | None = None,
    environment: Environment | None = None,
    console: Console | None = None,
    ask: Callable[[str], str] = input,
) -> list[Record]:
    """Lets a person play one test case of `source` and shows the review.

    Returns everyone's episode, the person's first. The case is the `index`-th of the test split, or
    drawn with `seed`. `against` plays the same case afterwards, sampled at temperature 1; so do the
    greedy and the random doctor if the source has a model of its cases. Everyone plays in
    `environment`, by default the consultation; the reward is CRAFT's with its defaults. `ask` shows
    a prompt and returns a line.

    Returns an empty result when the person leaves early, by command or at the end of input. Ctrl-C
    raises KeyboardInterrupt. Raises UserError for a source without test cases and for an index
    outside it.
    """
    with suppress(ImportError):
        import readline  # noqa: F401  its presence gives `input` line editing and history
    console = console or Console(highlight=False)
    index = _choose(source, index, seed)
    played = environment or Consultation(source.items, source.diagnoses)
    case, round_ = played.about.presented(source, seed).test[index], _Round(source, played, seed)
    title = f"{unsteering(source.name)} · test case {index} · you are the doctor"
    console.print(Text(title, style="bold"))
    console.print(
        Text("No medical device: a test bench with simulated or published patients.", style="dim")
    )
    person = Person(source, round_.environment, console, ask)
    try:
        yours = round_.played_by(person, case)
    except (EOFError, KeyboardInterrupt) as left:
        again = f"--case {index}, and the rest of the command as it was"
        console.print(Text(f"\nYou left. The same patient again: {again}", style="dim"))
        if isinstance(left, KeyboardInterrupt):
            raise
        return []
    if yours.ending is Ending.OUT_OF_TURNS:
        person.show(yours.turns[-1].observation)
    others = {label: round_.run(doctor, case) for label, doctor in round_.rivals(against).items()}
    records = [round_.judge(label, episode) for label, episode in {"you": yours, **others}.items()]
    review(console, source, played, records, craft.Settings())
    return records


@dataclass(frozen=True)
class _Round:
    """What all players of the case share: the source, the environment, the seed."""

    source: Source
    environment: Environment
    seed: int

    def rivals(self, against: Doctor | None) -> dict[str, Doctor]:
        """The other players by label: the policy, and the anchors if the source has a model."""
        doctors = {} if against is None else {"policy": against}
        known = self.environment.about.anchors(self.source, self.seed)
        order = ("greedy information", "random doctor", "told information")
        doctors |= {label: known[label] for label in order if label in known}
        return doctors

    def played_by(self, person: Person, case: Case) -> Episode:
        """A person's encounter.

        They are asked outside any event loop: only there does the first Ctrl-C end the waiting.
        """
        encounter = Interaction(case, self.environment)
        while not encounter.done:
            act = person.act(case, encounter.opening, encounter.turns)
            run_to_end(encounter.act(act))
        return encounter.episode

    def run(self, doctor: Doctor, case: Case) -> Episode:
        job = ToPlay(case, seed_key("play", self.seed, case.id))
        return run_to_end(rollout(job, self.environment, doctor, Play()))

    def judge(self, label: str, episode: Episode) -> Record:
        """The verdict, CRAFT's score if the findings have weights, and the measures.

        None of them for a failed episode.
        """
        if episode.ending is Ending.FAILED:
            return Record(label, episode)
        acc = run_to_end(accuracy(episode, ExactJudge()))
        T = self.environment.max_turns
        score = craft.score(episode, acc, craft.Settings(), T) if scored(episode) else None
        record = Record(label, episode, correct=bool(acc), score=score)
        return measured(record, self.environment)


def _choose(source: Source, index: int | None, seed: int) -> int:
    count = len(source.test)
    if not count:
        raise UserError(
            f"{source.name} holds no test case to play; a file needs at least a handful of cases "
            "to hold some out"
        )
    if index is None:
        return int(np.random.default_rng([seed]).integers(count))
    if not 0 <= index < count:
        raise UserError(f"no test case {index} in {source.name}: write --case 0 to {count - 1}")
    return index
