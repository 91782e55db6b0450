"""The tiny policy: a language model that trains from nothing in a minute on one CPU core.

Its vocabulary is made from the cases. Every fixed phrase of the source (a finding's name, a
diagnosis, a whole answer) is one token, so that an encounter of ten questions has about fifty
tokens and still reads as English. Other text is split into sub-words learned from the cases. The
result is an ordinary Hugging Face model folder, so that real weights take the same code path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from workup.core.case import Kind, Source
from workup.core.shapes import ClosedModel
from workup.models.chat_tokens import PLAIN

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# The tiny policy knows one task only, so its template leaves out the instructions. They would cost
# tokens without any use.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['content'] }}{% endif %}{% endfor %}"
)
TAGS = tuple(
    f"<{slash}{tag}>" for tag in (*(kind.value for kind in Kind), "diagnose") for slash in ("", "/")
)
END, PAD, UNKNOWN = "<|end|>", "<|pad|>", "<|unknown|>"
SAMPLE = 2_000  # training cases read to learn sub-words from
SUBWORDS = 4_096


class TinySettings(ClosedModel):
    """The size of the tiny policy (a Qwen3 in miniature)."""

    width: int = Field(64, ge=8, le=4096, description="hidden size")
    layers: int = Field(2, ge=1, le=64, description="how many")
    heads: int = Field(4, ge=1, le=64, description="attention heads of a layer")
    context: int = Field(1024, ge=64, le=131_072, description="longest transcript in tokens")


def build(
    source: Source, said: Iterable[str], settings: TinySettings, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """An untrained policy for `source`; `said` are the environment's own phrases.

    The same source, settings and seed give the same weights.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer(source, said)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=2 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        head_dim=max(16, settings.width // settings.heads // 2 * 2),  # rotations need an even one
        max_position_embeddings=settings.context,
        # Own output weights, and rotations that hardly blur content: so it learns sooner to look up
        # what it has asked.
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model, tokenizer


def build_tokenizer(source: Source, said: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """One token per phrase and tag, and sub-words for other text.

    If the source is all phrases, sub-words are single characters.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    phrases = list(dict.fromkeys([*TAGS, *said, *source.phrases]))
    raw = Tokenizer(models.BPE(unk_token=UNKNOWN))
    # A word carries the space before it, so that decoding is plain concatenation.
    raw.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_next")
    raw.decoder = decoders.Fuse()
    size = 0 if source.phrases else SUBWORDS
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[PAD, END, UNKNOWN], show_progress=False
    )
    raw.train_from_iterator(corpus(source, phrases), trainer)
    # `lstrip` swallows the space that separates two phrases.
    raw.add_tokens([AddedToken(phrase, lstrip=True, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def converses(tokenizer: Any) -> bool:
    """Whether a chat template came with the model, and is none of ours for those without."""
    return tokenizer.chat_template not in (None, PLAIN, TEMPLATE)


def corpus(source: Source, phrases: Sequence[str]) -> Iterator[str]:
    """The text from which sub-words are learned: the phrases, or else the training cases."""
    yield from phrases
    if source.phrases:
        return
    for index in range(min(SAMPLE, len(source.train))):
        case = source.train[index]
        yield from (case.presentation, case.question, *case.options, case.truth.diagnosis)
        yield from (fact.text for fact in case.truth.facts)
