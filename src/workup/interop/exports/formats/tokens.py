"""Token ids as they were sampled, for supervised fine-tuning without tokenising again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workup.interop.exports import Written
from workup.interop.exports.material import Chosen
from workup.interop.exports.talk import PLACE, place, schema, write
from workup.rl.samples import spoken
from workup.runs import Record

summary = "exact token ids with mask, log-probabilities and advantages (`input_ids`)"

COLUMNS = {
    "input_ids": "the whole transcript's token ids, exactly as they were read and sampled",
    "assistant_masks": "1 where the doctor sampled the token, else 0; TRL learns the former alone",
    "logprobs": "the token's log-probability when it was sampled, in nats; 0 outside the mask",
    "advantages": "the token's advantage in training, 0 outside the mask; null elsewhere",
    "turn_ids": "the number of the action that the token belongs to, from 0",
    "correct": "the judge's verdict; null if there is none",
    "return": "the sum of the turns' scores; null if the episode was not scored",
    **PLACE,
}
TYPES = {
    "input_ids": "int32[]",
    "assistant_masks": "int8[]",
    "logprobs": "float32[]",
    "advantages": "float32[]",
    "turn_ids": "int32[]",
    "correct": "bool",
    "return": "float64",
}
_NOTE = "The ids belong to the tokenizer of the policy that played: train that policy with them."


def of_run(chosen: Chosen, folder: Path) -> Written:
    """The episodes of token policies; all others are left out. Raises UserError if none is left."""
    left_out = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal left_out
        for record in chosen.finished():
            if not exact(record):
                left_out += 1
                continue
            made = spoken(record.episode)
            yield {
                "input_ids": list(made.tokens),
                "assistant_masks": list(map(int, made.mask)),
                "logprobs": list(made.logprobs),
                "advantages": list(record.advantages) or None,
                "turn_ids": list(made.turn_ids),
                "correct": record.correct,
                "return": record.score.total if record.score else None,
                **place(record),
            }

    none = (
        f"{chosen.run.path}: no episode there has token ids, which only a local policy's own have; "
        "take --as chat or prompt-completion"
    )
    files = write(rows(), schema(TYPES), folder, none)
    others = f"{left_out:,} episodes without token ids are left out: no token policy played them."
    return Written(files, COLUMNS, (_NOTE, *([others] if left_out else []), *chosen.lost))


def exact(record: Record) -> bool:
    """Whether every action of the episode has the ids with which it was sampled."""
    return all(turn.completion.tokens for turn in record.episode.turns)
