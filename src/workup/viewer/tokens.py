"""An episode's tokens as a trainer reads them: mask, log-probability, reward and advantage.

A run keeps ids, not texts. A tokenizer in the run's own folder gives the texts; none is looked for
elsewhere, since no file outside the run may be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from workup.runs import Record

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST = 20_000  # tokens on one page
LARGEST = 64 * 2**20  # bytes of a tokenizer's file
COLOURS = ("advantage", "logprob", "reward")
SHADES = 5
# The upper ends of the shades of −log p, in nats: p above .90, .61, .37, .14, and below.
SURPRISE = (0.1, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Token:
    """One token. The figures are texts, "" where there is none; `shade` is a class of the style."""

    id: int
    text: str
    sampled: bool
    logprob: str = ""
    advantage: str = ""
    reward: str = ""
    shade: str = ""


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """One turn: the environment's tokens, then those that the policy sampled."""

    number: int
    prompt: Sequence[Token]
    completion: Sequence[Token]
    reward: str


Spell = Callable[[int], str]


def spelling(folder: Path) -> Spell | None:
    """id → text by the tokenizer of the run in `folder`; None if there is none to read."""
    root = folder.resolve()
    candidates = [folder / "policy" / "tokenizer.json"]
    candidates += sorted((folder / "checkpoints").glob("*/tokenizer.json"))
    for path in islice(candidates, 16):
        inside = path.is_file() and path.resolve().is_relative_to(root)
        if inside and path.stat().st_size <= LARGEST:
            return _spelling(path, path.stat().st_mtime_ns)
    return None


@cache
def _spelling(path: Path, written: int) -> Spell | None:
    from tokenizers import Tokenizer

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # the library has no error of its own
        return None

    def spell(id: int) -> str:
        text = str(tokenizer.decode([id], skip_special_tokens=False))
        # Part of a character has no text; its name in the vocabulary says which part.
        return (
            text if text and "\N{REPLACEMENT CHARACTER}" not in text else tokenizer.id_to_token(id)
        ) or f"#{id}"

    return spell


def turns(record: Record, spell: Spell | None, colour: str) -> list[TurnTokens]:
    """The turns of an episode that has tokens, with at most `MOST` tokens in all."""
    rewards = record.score.turns if record.score else ()
    advantages = list(record.advantages)
    scale = {
        "advantage": max(map(abs, advantages), default=0.0),
        "reward": max(map(abs, rewards), default=0.0),
    }
    write = spell or (lambda id: f"#{id}")
    made, at = [], 0
    for place, turn in enumerate(record.episode.turns):
        reward = rewards[place] if place < len(rewards) else None
        prompt = [Token(id, write(id), sampled=False) for id in turn.prompt_tokens[: MOST - at]]
        at += len(turn.prompt_tokens)
        own = list(zip(turn.completion.tokens, turn.completion.logprobs, strict=True))
        completion = []
        for k, (id, logprob) in enumerate(own[: max(0, MOST - at)]):
            advantage = advantages[at + k] if advantages else None
            last = k == len(own) - 1
            value = {"advantage": advantage, "logprob": logprob, "reward": reward}[colour]
            completion.append(
                Token(
                    id,
                    write(id),
                    sampled=True,
                    logprob=signed(logprob),
                    advantage=signed(advantage),
                    reward=signed(reward) if last else "",
                    shade=shade(colour, value, scale.get(colour, 0.0)),
                )
            )
        at += len(own)
        made.append(TurnTokens(place + 1, prompt, completion, signed(reward)))
        if at >= MOST:
            break
    return made


def signed(value: float | None) -> str:
    """ "+0.31", "−1.20"; "" for None."""
    if value is None:
        return ""
    return f"{value:+.2f}".replace("-", "−") if abs(value) >= 0.005 else "0"


def shade(colour: str, value: float | None, most: float) -> str:
    """The class of a token's colour: "up3", "down2", or "" for nothing.

    Advantages and rewards are measured by the largest of the episode, log-probabilities in nats.
    """
    if value is None or not math.isfinite(value):
        return ""
    if colour == "logprob":
        return f"odd{sum(-value > bound for bound in SURPRISE) + 1}"
    if not most or not value:
        return ""
    return f"{'up' if value > 0 else 'down'}{max(1, math.ceil(SHADES * abs(value) / most))}"
