"""Text and chat messages as token ids, and sampled ids as completions: what all policies share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from jinja2 import TemplateError

from workup.core.episode import Completion, Message
from workup.core.errors import RolloutError

MARK = "⁂"  # stands for the assistant's words when the text that follows them is rendered
PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ChatTokens:
    """The half of a `Policy` that needs a tokenizer and no weights.

    `eos` are the ids that end a turn. A tokenizer without a chat template gets a plain one. No text
    can write a control token: in bare text its name is text, in a message a space parts it.
    """

    def __init__(self, tokenizer: Any, eos: frozenset[int]) -> None:
        if tokenizer.chat_template is None:
            tokenizer.chat_template = PLAIN
        self.tokenizer, self.eos = tokenizer, eos
        self._encoded = lru_cache(maxsize=65_536)(
            lambda text: tuple(
                tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            )
        )
        self._marked = lru_cache(maxsize=65_536)(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))
        )
        # Tiny policies sample the same few texts again and again.
        self._decode = lru_cache(maxsize=8_192)(tokenizer.decode)
        self._suffix = lru_cache(maxsize=65_536)(self._render_suffix)
        self._first = lru_cache(maxsize=4_096)(
            lambda messages: self.markup(self.template(messages))
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of bare text, without control tokens; the name of one is text."""
        return self._encoded(text)

    def markup(self, text: str) -> tuple[int, ...]:
        """Token ids of text that the chat template wrote, with its control tokens."""
        return self._marked(text)

    def render(self, messages: Sequence[Message], past: Sequence[int] = ()) -> tuple[int, ...]:
        """As `Policy` says. Raises RolloutError when the chat template refuses the messages."""
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

    def template(self, messages: Sequence[Message]) -> str:
        """The messages by the chat template, with its generation prompt.

        Where it refuses a system message, the first user message begins with it. Raises
        RolloutError when it refuses the messages even so.
        """
        chat = [(m.role, self._harmless(m.content)) for m in messages]
        if chat and chat[0][0] == "system" and not self._has_system:
            begun = "\n\n".join(text for _, text in chat[:2])
            chat = [("user", begun), *chat[2:]]
        try:
            return self._apply(chat)
        except TemplateError as error:
            raise RolloutError(f"the chat template refuses the messages: {error}") from error

    def _apply(self, chat: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": content} for role, content in chat]
        return str(
            self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    @cached_property
    def _has_system(self) -> bool:
        """Whether the chat template accepts a system message."""
        try:
            self._apply([("system", "x"), ("user", "x")])
        except TemplateError:
            return False
        return True

    @cached_property
    def _control(self) -> list[str]:
        """The names of the control tokens, the longest first."""
        added = self.tokenizer.added_tokens_decoder.values()
        names = {*self.tokenizer.all_special_tokens, *(str(t) for t in added if t.special)}
        return sorted(names, key=lambda name: (-len(name), name))

    def _harmless(self, text: str) -> str:
        for name in self._control:
            if name in text:
                text = text.replace(name, f"{name[0]} {name[1:]}" if len(name) > 1 else "□")
        return text

    def _render_suffix(self, messages: tuple[Message, ...], ended: bool) -> tuple[int, ...]:
        """The chat template's tokens between the assistant's text and its next turn.

        `ended` says that the assistant closed its turn itself, so that the closing token is not
        written twice.
        """
        whole = self.template((Message("user", "x"), Message("assistant", MARK), *messages))
        ids = self.markup(whole[whole.index(MARK) + len(MARK) :])
        first = next((place for place, each in enumerate(ids) if each in self.eos), None)
        if not ended or first is None or self.tokenizer.decode(ids[:first]).strip():
            return ids
        return ids[first + 1 :]  # some templates write a blank before it


def endings(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a turn: those of a model's generation settings, and the tokenizer's own."""
    configured = getattr(generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if i is not None)
