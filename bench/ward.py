"""The setting that all contestants share: cases, consultation and model.

The cases are the clinic's; the model has about 0.6 M parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from workup.cases.clinic import open_clinic
from workup.core.case import Case, Source
from workup.environments.consultation import Consultation
from workup.models.local import LocalPolicy
from workup.models.tiny import TinySettings, build

EPISODES, TURNS = 128, 10
MAX_TOKENS = 16  # per completion; each takes three
SIZE = TinySettings(
    width=168, layers=2, heads=4, context=512
)  # the tiny policy's own two layers, made wider


class Interviewer(Qwen3ForCausalLM):  # type: ignore[misc]  # transformers ships no types here
    """A tiny policy that always asks: `<ask>`, a random item, `</ask>`.

    The item is drawn from its own distribution. What may come next is decided by the last token
    alone, inside the model: so every contestant samples the same distribution at the same cost, and
    each episode has exactly its ten turns without any training.
    """

    def follow(self, opening: int, items: Sequence[int], closing: int) -> None:
        """Sets the ids of the three steps."""
        size = self.config.vocab_size
        after = torch.zeros(
            size, dtype=torch.long
        )  # last token → what comes next: 0 the tag, 1 an item, 2 the tag's end
        after[opening], after[items] = 1, 2
        allowed = torch.full((3, size), float("-inf"))
        allowed[0, opening] = allowed[1, items] = allowed[2, closing] = 0.0
        self.register_buffer("after", after, persistent=False)
        self.register_buffer("allowed", allowed, persistent=False)

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        out = super().forward(input_ids=input_ids, **kwargs)
        out.logits = out.logits + self.allowed[self.after[input_ids[:, -out.logits.shape[1] :]]]
        return out


def interviewer(
    source: Source, phrases: Sequence[str], tag: str = "ask", size: TinySettings = SIZE
) -> tuple[Interviewer, Any]:
    """Model and tokenizer; `tag` is what it does in every turn, `phrases` are the environment's."""
    plain, tokenizer = build(source, phrases, size, seed=1)
    model = Interviewer(plain.config)
    model.load_state_dict(plain.state_dict())
    ids = tokenizer.convert_tokens_to_ids
    model.follow(ids(f"<{tag}>"), ids([item.name for item in source.items]), ids(f"</{tag}>"))
    return model.eval(), tokenizer


@dataclass
class Ward:
    """What one contestant gets: always the same, but nobody else's objects."""

    source: Source
    environment: Consultation
    model: Any
    tokenizer: Any

    @classmethod
    def open(cls) -> Ward:
        source = open_clinic("s")
        environment = Consultation(source.items, source.diagnoses, TURNS)
        return cls(source, environment, *interviewer(source, environment.phrases))

    @cached_property
    def cases(self) -> list[Case]:
        return [self.source.train[index] for index in range(EPISODES)]

    @cached_property
    def policy(self) -> LocalPolicy:
        return LocalPolicy(self.model, self.tokenizer)

    @cached_property
    def ends(self) -> list[int]:
        """The stop strings as ids: each is one token of the tiny vocabulary."""
        ids: list[int] = self.tokenizer.convert_tokens_to_ids(list(self.environment.stop))
        return ids

    def prompts(self) -> list[list[int]]:
        return [list(self.policy.render(self.environment.open(case))) for case in self.cases]

    def reply(self, case: Case, tokens: Sequence[int]) -> tuple[int, ...]:
        """The ids of the environment's answer to a completion.

        `render` remembers those that it has tokenised before.
        """
        action = self.environment.read(self.tokenizer.decode(tokens))
        return self.policy.render(self.environment.reply(case, action).messages, tokens)

    def padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Left-padded ids and their mask, both (rows, width)."""
        width, pad = max(map(len, rows)), self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows])
        return ids, torch.arange(width) >= torch.tensor([[width - len(row)] for row in rows])
