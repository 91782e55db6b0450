"""Whole conversations, for supervised fine-tuning: TRL's and Hugging Face's `messages`."""

from __future__ import annotations

from pathlib import Path

from workup.interop.exports import Written
from workup.interop.exports.material import Chosen
from workup.interop.exports.talk import PLACE, all_failed, place, schema, whole, write

summary = "whole conversations (`messages`) for supervised fine-tuning"

COLUMNS = {
    "messages": "the conversation from the rules to the doctor's last words, as it was said",
    "correct": "the judge's verdict; null if there is none",
    "return": "the sum of the turns' scores; null if the episode was not scored",
    **PLACE,
}
TYPES = {
    "messages": "messages",
    "correct": "bool",
    "return": "float64",
}
NOTE = (
    "A trainer that learns every message also learns the patient's words. In TRL's SFTTrainer set "
    "`assistant_only_loss=True`, take the set `prompt-completion`, whose completions are single "
    "messages of the doctor, or `tokens`, which has the mask."
)


def of_run(chosen: Chosen, folder: Path) -> Written:
    rows = (
        {
            "messages": whole(record.episode),
            "correct": record.correct,
            "return": record.score.total if record.score else None,
            **place(record),
        }
        for record in chosen.finished()
    )
    return Written(
        write(rows, schema(TYPES), folder, all_failed(chosen)), COLUMNS, (NOTE, *chosen.lost)
    )
