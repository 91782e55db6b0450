"""What an evaluation will ask for and cost, said before anything is sent.

Calls are counted from above: every turn that may be taken, and the question how sure the doctor
is. The price is an estimate: a turn writes `SAID` tokens and gets a reply of `REPLIED`, or of
`FOUND` where documents are searched. The `most` is the same for a policy that writes as much as it
may. What further settings ask for, such as drawn probabilities, is not counted, nor what roles are
asked by anchors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workup.core.text import several
from workup.loops.evaluation.loop import Evaluation
from workup.metrics.calibration import STATED
from workup.roles.account import MILLION
from workup.runs.words import duration

SAID, REPLIED, FOUND = 60, 40, 300  # tokens of a turn, of an answer, of the passages of a search
BYTES = 4  # of a token
LATENCY, PACE = 1.0, 60.0  # seconds of a call to an endpoint; tokens a second of local weights
ALOUD = 240  # tokens that local weights write in a turn, where their limit lets them
LOOKED = 8  # cases whose opening is measured
JUDGED = 600  # tokens that a judge reads for one verdict


@dataclass(frozen=True, slots=True)
class Foretold:
    """One doctor's evaluation.

    `calls` are the doctor's own, at most. `price` and `most` are in the currency of the endpoints'
    prices, roles included; `priced` says whether one of these has a price. `seconds` are about
    those of the doctor's calls. `weights`: local weights play, whose calls cost nothing.
    """

    episodes: int
    calls: int
    price: float
    most: float
    seconds: float
    weights: bool

    @classmethod
    def of(cls, evaluation: Evaluation) -> Foretold:
        """The estimate of an evaluation that is opened and not begun."""
        settings, examination = evaluation.settings, evaluation.examination
        episodes, turns = examination.total, examination.environment.max_turns
        if evaluation.policy.name in evaluation.anchors:
            return cls(episodes, 0, 0.0, 0.0, 0.0, weights=False)
        asked = turns + (settings.evaluation.probabilities == STATED)
        opening = _opening(evaluation)
        replied = FOUND if examination.environment.about.searches else REPLIED
        limit = settings.max_tokens or examination.max_tokens
        end = (
            settings.endpoints.get(evaluation.policy.label) if evaluation.policy.endpoint else None
        )
        limit = end.tokens(limit) if end else limit

        def money(said: int) -> float:
            read = sum(opening + turn * (said + replied) for turn in range(asked))
            if end is None:
                return 0.0
            return episodes * (end.price.input * read + end.price.output * asked * said) / MILLION

        others = _roles(evaluation, episodes, turns)
        calls = episodes * asked
        at_once = min(settings.concurrency, end.concurrency, episodes) if end else 1
        seconds = calls * LATENCY / at_once if end else calls * min(limit, ALOUD) / PACE
        price, most = money(SAID) + others, money(limit) + others
        return cls(episodes, calls, price, most, seconds, weights=end is None)


def _opening(evaluation: Evaluation) -> int:
    """The tokens of an opening, on average of the first cases."""
    environment, cases = evaluation.examination.environment, evaluation.examination.played[:LOOKED]
    texts = [message.content for case in cases for message in environment.open(case)]
    return sum(len(text.encode()) for text in texts) // BYTES // max(len(cases), 1)


def _roles(evaluation: Evaluation, episodes: int, turns: int) -> float:
    """What the endpoints in supporting roles cost."""
    total = 0.0
    for role, spec in evaluation.supporting.roles.items():
        for name in spec.split(","):
            end = evaluation.settings.endpoints.get(name.strip().removeprefix("endpoint:"))
            calls = episodes * (1 if role == "judge" else turns)
            if end is not None:
                each = end.price.input * JUDGED + end.price.output * SAID
                total += calls * each / MILLION
    return total


def lines(loads: Sequence[Foretold], values: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal, as "ahead   36 episodes, at most 312 calls of the doctors".

    The next ones have the price, with the budget, and the time.
    """
    calls, episodes = (sum(getattr(each, k) for each in loads) for k in ("calls", "episodes"))
    price, most = (sum(getattr(each, k) for each in loads) for k in ("price", "most"))
    told = [f"ahead   {several(episodes, 'episode')}, at most {calls:,} calls of the doctors"]
    if price:
        budget = values.get("budget")
        rest = "" if budget is None else f"; the budget is {budget:g}"
        if budget is not None and price > budget:
            rest += " and may end it early, with what was played kept"
        told.append(f"ahead   about {price:.2f}, at most {most:.2f}{rest}")
    elif values.get("budget") is not None:
        told.append("ahead   no endpoint here has a price, so that the budget ends nothing")
    how = (
        f"{PACE:g} tokens a second of local weights"
        if any(each.weights and each.calls for each in loads)
        else f"{LATENCY:g} s a call"
    )
    told.append(f"ahead   about {duration(sum(each.seconds for each in loads))}, at {how}")
    return told
