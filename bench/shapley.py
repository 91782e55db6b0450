"""Shapley values from packed orders, and antithetic pairs.

The baselines are batches of separate prompts, and plain sampling.

Cases have the proportions of mediQ's in tokens: 130 of instructions (the encounter's), 60 of
question, options and first sentence, 12 per fact, 5 in the answer (a BPE of 8,000 pieces makes 177,
88, 14 and 7 of them); random words of one token each in a chat template. Both sides score the same
coalitions of the same orders with the same weights and agree to 1e-4; `agree` checks it. The
separate prompts are not slowed down: nothing is scored twice, they are sorted by length, padded on
the right, attend causally without any mask, and pass the output layer only where an answer's token
is predicted; their batches are as large as does them good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from bench.figures import Figure, race
from workup.cases.clinic import open_clinic
from workup.core.case import evidence_of
from workup.core.episode import Message
from workup.core.ports import Context, ScoreRequest
from workup.methods.promed.shapley import (
    Coalition,
    Game,
    ShapleySettings,
    answer_game,
    estimate,
    exact,
)
from workup.models.local import LocalPolicy
from workup.models.scorer import LocalScorer

ROUNDS = 3
CASES, ORDERS = 2, 4  # per measurement
VOCABULARY, WIDTH, LAYERS = 2_000, 512, 2
RULES, QUESTION, FACT, ANSWER = 130, 60, 12, 5
TARGETS = {8: 5.0, 16: 8.0, 30: 15.0}
MARKS = ("<|start|>", "<|end|>", "user", "assistant", "\n")
CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    policy = untrained()
    return [*(packing(policy, facts, target) for facts, target in TARGETS.items()), *sampling()]


def untrained(width: int = WIDTH) -> LocalPolicy:
    """A Qwen3, of about 6 M parameters by default, and one token per word."""
    vocabulary = {word: i for i, word in enumerate((*MARKS, *(f"w{i}" for i in range(VOCABULARY))))}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>", chat_template=CHAT
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        max_position_embeddings=4_096,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
    )
    return LocalPolicy(Qwen3ForCausalLM(config).eval(), tokenizer)


def words(rng: np.random.Generator, count: int) -> str:
    return " ".join(f"w{i}" for i in rng.integers(VOCABULARY, size=count))


def case(index: int, facts: int) -> tuple[ScoreRequest, list[str]]:
    """A case to score, and its facts as lines of the prompt."""
    rng = np.random.default_rng([1, index, facts])
    opening = (Message("user", f"{words(rng, RULES)}\n{words(rng, QUESTION)}"),)
    return ScoreRequest(str(index), words(rng, ANSWER), opening), [
        f"\n{words(rng, FACT)}" for _ in range(facts)
    ]


# --- packed orders beside separate prompts ---


def packing(policy: LocalPolicy, facts: int, target: float) -> Figure:
    cases = [case(index, facts) for index in range(CASES)]
    scorer = LocalScorer(policy)

    def packed() -> list[tuple[float, ...]]:
        scorer.refresh()
        return values(
            cases, lambda request, lines: answer_game(scorer, request, lines, "permutation")
        )

    def separate() -> list[tuple[float, ...]]:
        return values(cases, partial(prompts, policy))

    agree(packed(), separate())
    seconds = race({"packed": packed, "separate": separate}, ROUNDS)
    ours, theirs = seconds["packed"], seconds["separate"]
    return Figure(
        f"Shapley values of {facts} facts, beside separate prompts",
        ours,
        theirs,
        "s",
        theirs / ours,
        target,
        True,
    )


def values(
    cases: Sequence[tuple[ScoreRequest, list[str]]], play: Callable[[ScoreRequest, list[str]], Game]
) -> list[tuple[float, ...]]:
    """φ of every case over the same orders, all cases at once."""
    plan = ShapleySettings(permutations=ORDERS, epsilon=0, at_once=ORDERS)

    async def all_of() -> list[tuple[float, ...]]:
        games = [(play(request, lines), len(lines)) for request, lines in cases]
        found = await asyncio.gather(
            *(estimate(game, n, plan, [index]) for index, (game, n) in enumerate(games))
        )
        return [one.values for one in found]

    return asyncio.run(all_of())


def agree(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> None:
    difference = np.abs(np.subtract(ours, theirs)).max()
    if difference > 1e-4:
        raise SystemExit(f"shapley: packed and separate values differ by {difference}")


def prompts(policy: LocalPolicy, request: ScoreRequest, lines: Sequence[str]) -> Game:
    """The game whose coalitions are scored as separate prompts in padded batches."""

    async def worth(coalitions: Sequence[Coalition]) -> list[float]:
        distinct = list(dict.fromkeys(coalitions))
        found = dict(
            zip(
                distinct,
                separately(policy, request, [tuple(lines[f] for f in c) for c in distinct]),
                strict=True,
            )
        )
        return [found[coalition] for coalition in coalitions]

    return worth


PADDED = 2_048  # tokens of a batch of separate prompts; half and twice as many are no faster


def separately(
    policy: LocalPolicy, request: ScoreRequest, contexts: Sequence[Context]
) -> list[float]:
    """log P of the request's answer after each context, in nats."""
    answer = policy.encode(request.answer)
    rows = []
    for context in contexts:
        message = Message("user", "".join([request.opening[-1].content, *map(str, context)]))
        rows.append(
            [
                *policy.render((*request.opening[:-1], message)),
                *policy.encode(request.lead),
                *answer[:-1],
            ]
        )
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    found = [0.0] * len(rows)
    while order:
        count = max(1, PADDED // len(rows[order[-1]]))
        batch, order = order[-count:], order[:-count]
        for place, value in zip(
            batch, forward(policy.model, [rows[place] for place in batch], answer), strict=True
        ):
            found[place] = value
    return found


@torch.no_grad()
def forward(model: Any, rows: Sequence[Sequence[int]], answer: Sequence[int]) -> list[float]:
    """log P of `answer`, whose last token is left out at the end of each row.

    Nothing depends on that token's output.
    """
    width, scored = max(map(len, rows)), len(answer)
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    where = torch.tensor([[len(row) - scored + i for i in range(scored)] for row in rows])
    logits = model.lm_head(hidden.gather(1, where[:, :, None].expand(-1, -1, hidden.shape[-1])))
    logprobs = -F.cross_entropy(
        logits.flatten(0, 1), torch.tensor(answer).repeat(len(rows)), reduction="none"
    )
    return [float(value) for value in logprobs.view(len(rows), scored).double().sum(-1)]


# --- antithetic pairs beside plain sampling ---

REPEATS = 200  # estimates per case and way
PATIENTS = 8


def sampling() -> list[Figure]:
    """Variance of φ on the clinic's exact posterior, alone and times the tokens of an order.

    The tokens are those that each way takes to score an order.
    """
    plain, paired = variance(antithetic=False), variance(antithetic=True)
    separate, packed = tokens(8)
    return [
        Figure(
            "variance of φ at 4 orders, antithetic beside plain",
            paired,
            plain,
            "nat²",
            plain / paired,
            2.0,
            True,
        ),
        Figure(
            "variance × tokens at 8 facts, beside plain sampling with separate prompts",
            paired * packed,
            plain * separate,
            "nat² tokens",
            plain * separate / (paired * packed),
            8.0,
            True,
        ),
    ]


def variance(*, antithetic: bool) -> float:
    """Summed over facts, mean over patients of clinic m with eight hidden facts."""
    plan = ShapleySettings(permutations=4, epsilon=0, antithetic=antithetic)
    found = []
    for game in games():
        estimates = [asyncio.run(estimate(game, 8, plan, [seed])).values for seed in range(REPEATS)]
        true = asyncio.run(exact(game, 8)).values
        found.append(np.square(np.subtract(estimates, true)).mean(0).sum())
    return float(np.mean(found))


def games() -> list[Game]:
    source = open_clinic("m")
    knowledge = source.knowledge
    assert knowledge is not None
    patients = [
        patient
        for patient in (source.train[i] for i in range(400))
        if len(patient.truth.facts) == 8
    ][:PATIENTS]

    def game(patient: Any) -> Game:
        truth, facts = list(knowledge.diagnoses).index(patient.truth.diagnosis), patient.truth.facts
        known: dict[frozenset[int], float] = {}

        async def worth(coalitions: Sequence[Coalition]) -> list[float]:
            for s in set(map(frozenset, coalitions)) - known.keys():
                evidence = evidence_of((*patient.given, *(facts[f] for f in sorted(s))))
                known[s] = float(np.log(knowledge.posterior(evidence)[truth]))
            return [known[frozenset(coalition)] for coalition in coalitions]

        return worth

    return list(map(game, patients))


def tokens(facts: int) -> tuple[float, float]:
    """Tokens per order, in separate prompts and as the scorer counts them.

    The separate prompts are counted without padding, the scorer's tokens with it.
    """
    policy = untrained()
    cases = [case(index, facts) for index in range(CASES)]
    scorer = LocalScorer(policy)
    values(cases, lambda request, lines: answer_game(scorer, request, lines, "permutation"))
    request, lines = cases[0]
    whole = [
        policy.render((Message("user", request.opening[0].content + "".join(lines[:n])),))
        for n in range(1, facts + 1)
    ]
    return sum(map(len, whole)) + facts * (ANSWER - 1), scorer.work.tokens / (CASES * ORDERS)
