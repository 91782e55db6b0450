"""Text and chat messages as token ids, and sampled ids as completions: what all policies share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from workup.episode import Completion, Message

MARK = "⁂"  # stands for the assistant's words when the text that follows them is rendered
PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ChatTokens:
    """The half of a `Policy` that needs a tokenizer and no weights.

    `eos` are the ids that end a turn. A tokenizer without a chat template gets a plain one.
    """

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        if tokenizer.chat_template is None:
            tokenizer.chat_template = PLAIN
        self.tokenizer, self.eos = tokenizer, eos
        self._encoded = lru_cache(maxsize=65_536)(self._encode)
        # Tiny policies sample the same few texts again and again.
        self._decode = lru_cache(maxsize=8_192)(tokenizer.decode)
        self._suffix = lru_cache(maxsize=65_536)(self._render_suffix)
        self._first = lru_cache(maxsize=4_096)(self._render_first)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of bare text, without any special tokens added."""
        return self._encoded(text)

    def render(self, messages: Sequence[Message], past: Sequence[int] = ()) -> tuple[int, ...]:
        if not past:
            return self._first(tuple(messages))
        return self._suffix(tuple(messages), past[-1] in self.eos)

    def completion(
        self, tokens: Sequence[int], logprobs: Sequence[float], room: int, stop: Sequence[str]
    ) -> Completion:
        """What was sampled, as a completion; `room` was the limit, `stop` the strings that end it.

        An id of `eos` at the end is one of its tokens and no part of its text.
        """
        ended = tokens[-1] in self.eos
        text = self._decode(tuple(tokens[:-1] if ended else tokens))
        cut = not ended and len(tokens) >= room and not any(s in text for s in stop)
        return Completion(text, tuple(tokens), tuple(logprobs), cut)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _render_first(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return self.encode(self._template(messages))

    def _render_suffix(self, messages: tuple[Message, ...], ended: bool) -> tuple[int, ...]:
        """The chat template's tokens between the assistant's text and its next turn.

        `ended` says that the assistant closed its turn itself, so that the closing token is not
        written twice.
        """
        whole = self._template((Message("user", "x"), Message("assistant", MARK), *messages))
        ids = self.encode(whole[whole.index(MARK) + len(MARK) :])
        return ids[1:] if ended and ids and ids[0] in self.eos else ids

    def _template(self, messages: Sequence[Message]) -> str:
        chat = [{"role": m.role, "content": m.content} for m in messages]
        return str(
            self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        )


def endings(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a turn: those of a model's generation settings, and the tokenizer's own."""
    configured = getattr(generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if i is not None)
