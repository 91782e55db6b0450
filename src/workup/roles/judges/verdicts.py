"""Every diagnosis is judged once: the same answer to the same case has one verdict."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from workup.core.case import Case
from workup.core.episode import Ending, Episode
from workup.core.errors import RolloutError
from workup.core.ports import Judge
from workup.core.stages import Settle


class Verdicts:
    """A `Judge` that remembers, so that reward and measures share one verdict.

    Equal requests that run at the same time are one call. A judge that failed is asked again.
    `further` asks what else has to be judged of an episode.
    """

    def __init__(self, judge: Judge, further: Settle | None = None) -> None:
        self._judge, self._further = judge, further
        self._asked: dict[tuple[str, str], asyncio.Future[float]] = {}

    async def same(self, answer: str, case: Case) -> bool:
        return await self.grade(answer, case) == 1

    async def grade(self, answer: str, case: Case) -> float:
        key = case.id, answer
        if key not in self._asked:
            self._asked[key] = asyncio.ensure_future(self._judge.grade(answer, case))
        asked = self._asked[key]
        try:
            # Shielded: a caller that is cancelled must not cancel the verdict of the others.
            return await asyncio.shield(asked)
        finally:
            if asked.done() and (asked.cancelled() or asked.exception()):
                self._asked.pop(key, None)

    async def settle(self, episode: Episode) -> tuple[Episode, bool | None]:
        """The episode with its verdict; without one, the episode FAILED with the reason, and None.

        An episode that ended without a diagnosis is wrong by definition; whether it names the truth
        is not asked.
        """
        if episode.ending is Ending.FAILED:
            return episode, None
        named = episode.ending is Ending.DIAGNOSED and bool(episode.answer)
        try:
            if self._further is not None:
                await self._further(episode)
            return episode, named and await self.same(episode.answer[0], episode.case)
        except RolloutError as error:
            return replace(episode, ending=Ending.FAILED, reason=f"judge: {error}"), None
