"""One encounter, step by step: the caller plays the doctor and says one thing at a time.

`workup.rl.rollout.rollout` asks a doctor for every action; here the caller hands each action in.
Both make their turns with `turn_after` and their episodes with `ended`.
"""

from __future__ import annotations

from dataclasses import replace

from workup.core.case import Case
from workup.core.episode import Completion, Ending, Episode, Observation, Turn
from workup.core.errors import RolloutError, WorkupError, reason
from workup.core.ports import Act, Environment
from workup.core.text import up_to
from workup.rl.rollout import ended, turn_after


class Interaction:
    """An encounter with `case` that has begun.

    `opening` is what the doctor reads first, `turns` all turns so far, the last one too.
    """

    def __init__(self, case: Case, environment: Environment) -> None:
        self.case, self.environment = case, environment
        self.opening = environment.open(case)
        self.turns: list[Turn] = []
        self._over: Episode | None = None

    @property
    def done(self) -> bool:
        return self._over is not None

    async def say(self, text: str, *, truncated: bool = False) -> Observation:
        """What a chat model said, up to the first stop string; returns the reply as `act` does.

        `truncated` says that a limit cut the text off.
        """
        world = self.environment
        said = up_to(text, world.stop, in_thoughts=world.about.acts_in_thoughts)
        cut = truncated and not said.endswith(self.environment.stop or "\0")
        return await self.act(Act((), Completion(said, truncated=cut)))

    async def act(self, act: Act) -> Observation:
        """The reply to an action. Its `done` is True if the encounter is over.

        It is over after the diagnosis, the last turn, a text that was cut off, and when a model
        behind the environment gave up. Raises WorkupError if it was over before.
        """
        if self._over is not None:
            raise WorkupError(f"case '{self.case.id}': this encounter is over; open another one")
        try:
            turn = await turn_after(self.case, self.environment, self.turns, act)
            if turn.observation.done:
                self._over = ended(self.case, self.opening, self.turns, turn)
                self.turns = list(self._over.turns)
                return turn.observation
        except RolloutError as error:
            self._end(Ending.FAILED, reason(error))
            return Observation(done=True)
        self.turns.append(turn)
        if len(self.turns) == self.environment.max_turns:
            self._end(Ending.OUT_OF_TURNS)
        return replace(turn.observation, done=self.done)

    def leave(self, reason: str = "") -> None:
        """Ends an encounter that the caller stops early; nothing happens if it is over.

        With a `reason`, or without any turn, the episode has failed. Otherwise it counts as ended
        by the doctor's token limit.
        """
        if self._over is not None:
            return
        if reason or not self.turns:
            self._end(Ending.FAILED, reason or "the doctor said nothing")
        else:
            self._end(Ending.OUT_OF_TOKENS)

    @property
    def episode(self) -> Episode:
        """The whole encounter. Raises WorkupError while it goes on."""
        if self._over is None:
            raise WorkupError(f"case '{self.case.id}': this encounter is not over yet")
        return self._over

    def _end(self, ending: Ending, reason: str = "") -> None:
        self._over = Episode(self.case, self.opening, tuple(self.turns), ending, reason)
