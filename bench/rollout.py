"""Seconds for 128 episodes of 10 turns, ours beside three other ways to play them.

All four play the same cases with the same model (`ward.Interviewer`), consultation, temperature and
stop rule, in one process on one thread, and end up with transcripts of the same lengths; `played`
checks it. None is charged for what it need not do: only ours and the re-prefilling loop hand out
log-probabilities, `generate()` and TRL leave them to the training step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from datasets import Dataset
from transformers import DynamicCache, GenerationConfig

from bench.figures import Figure, race
from bench.ward import EPISODES, MAX_TOKENS, TURNS, Ward
from workup.core.episode import Episode
from workup.environments.consultation import Consultation
from workup.rl.rollout import Play, TokenDoctor, ToPlay, play_all

ROUNDS = 7
Transcripts = list[list[int]]


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    ward = Ward.open()
    with TemporaryDirectory() as folder:
        tool_loop = trl(folder)
        contestants: dict[str, Callable[[], Transcripts]] = {
            "ours": lambda: ours(ward),
            "a loop that re-prefills every turn": lambda: reprefill(ward),
            "generate() per turn": lambda: generate(ward),
            "TRL's multi-turn rollout": tool_loop,
        }
        for name, play in contestants.items():
            played(name, play(), ward)
        seconds = race(contestants, ROUNDS)
    mine = seconds.pop("ours")
    return [
        Figure(f"rollout, beside {name}", mine, theirs, "s", theirs / mine, target, True)
        for (name, theirs), target in zip(seconds.items(), (3.0, 2.0, 1.5), strict=True)
    ]


def played(name: str, transcripts: Transcripts, ward: Ward) -> None:
    """Stops the bench unless every transcript has ten whole actions and what lies between them."""
    asks = [ward.ends[0]] * TURNS
    opened = ward.prompts()
    for transcript, prompt in zip(transcripts, opened, strict=True):
        whole = [token for token in transcript if token in ward.ends] == asks and transcript[
            : len(prompt)
        ] == prompt
        # Three tokens per action and one per answer; whether the last action is answered is left to
        # each contestant.
        if (
            not whole
            or not len(prompt) + 4 * TURNS - 1 <= len(transcript) <= len(prompt) + 4 * TURNS
        ):
            raise SystemExit(f"{name} played something else: {ward.tokenizer.decode(transcript)}")


def ours(ward: Ward) -> Transcripts:
    """`play_all` on a `LocalPolicy`.

    Its KV cache is forgotten first, as after an update of the weights.
    """
    ward.policy.refresh()
    jobs = [ToPlay(case, key) for key, case in enumerate(ward.cases)]
    play = Play(temperature=1.0, max_tokens=MAX_TOKENS)
    episodes: list[Episode] = asyncio.run(
        play_all(jobs, ward.environment, TokenDoctor(ward.policy), play)
    )
    return [
        [i for turn in e.turns for i in (*turn.prompt_tokens, *turn.completion.tokens)]
        for e in episodes
    ]


def reprefill(ward: Ward) -> Transcripts:
    """A minimal loop: one padded batch of all episodes, and its own sampling.

    A KV cache lasts within each turn.

    It lacks one thing: the cache is thrown away between turns, so that each computes the whole
    transcript again.
    """
    transcripts = ward.prompts()
    for _ in range(TURNS):
        said = continued(ward, transcripts)
        for case, transcript, (tokens, _) in zip(ward.cases, transcripts, said, strict=True):
            transcript += [*tokens, *ward.reply(case, tokens)]
    return transcripts


@torch.no_grad()
def continued(
    ward: Ward, transcripts: Sequence[Sequence[int]]
) -> list[tuple[list[int], list[float]]]:
    """One completion of every transcript, with its log-probabilities."""
    ids, mask = ward.padded(transcripts)
    positions = (mask.cumsum(-1) - 1).clamp_(min=0)
    # A ready four-dimensional mask spares the model making one.
    seen = mask[:, None, None] & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    cache, ends = DynamicCache(config=ward.model.config), torch.tensor(ward.ends)
    done = torch.zeros(len(transcripts), dtype=torch.bool)
    drawn: list[torch.Tensor] = []
    logprobs: list[torch.Tensor] = []
    while len(drawn) < MAX_TOKENS and not done.all():
        out = ward.model(
            input_ids=ids,
            attention_mask=seen,
            position_ids=positions,
            past_key_values=cache,
            logits_to_keep=1,
        )
        distribution = torch.log_softmax(out.logits[:, -1], dim=-1)
        ids = torch.multinomial(distribution.exp(), 1)
        drawn.append(ids)
        logprobs.append(distribution.gather(1, ids))
        done |= torch.isin(ids[:, 0], ends)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        positions, seen = positions[:, -1:] + 1, mask[:, None, None]
    tokens, chances = torch.cat(drawn, dim=1).tolist(), torch.cat(logprobs, dim=1).tolist()
    lengths = [
        next((i + 1 for i, token in enumerate(row) if token in ward.ends), len(row))
        for row in tokens
    ]
    return [(row[:n], chance[:n]) for row, chance, n in zip(tokens, chances, lengths, strict=True)]


def generate(ward: Ward) -> Transcripts:
    """`model.generate()` once per turn on one padded batch of all episodes.

    The closing tags are end-of-sequence ids, its fastest stop rule: stop strings and criteria run
    Python for every token.
    """
    pad = ward.tokenizer.pad_token_id
    how = GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=ward.ends,
        pad_token_id=pad,
    )
    transcripts = ward.prompts()
    for _ in range(TURNS):
        ids, mask = ward.padded(transcripts)
        with torch.no_grad():
            grown = ward.model.generate(
                input_ids=ids, attention_mask=mask.long(), generation_config=how
            )
        for case, transcript, row in zip(
            ward.cases, transcripts, grown[:, ids.shape[1] :].tolist(), strict=True
        ):
            tokens = [token for token in row if token != pad]
            transcript += [*tokens, *ward.reply(case, tokens)]
    return transcripts


# The tiny policy's template with what TRL needs of one: tool calls and their results. It renders to
# the same tokens.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['content'] }}{% for c in "
    "m['tool_calls'] or [] %}<{{ c['function']['name'] }}>{% for k, v in "
    "c['function']['arguments'].items() %}{% if k != 'item' %}{{ k }} {% endif %}{{ v }}{% endfor "
    "%}</{{ c['function']['name'] }}>{% endfor %}{% endif %}{% endfor %}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    # The template puts nothing of the assistant's words before those that it samples.
    "start_anchor_pattern": r"\Z",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<(?P<name>ask)>",
            "close_pattern": r"</ask>",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": {"item": "{content}"}},
            },
        },
        "content": {"content": "text"},
    },
}


class Consulted:
    """The consultation as an environment of TRL, one object per episode."""

    environment: ClassVar[Consultation]
    case: Any = None

    def reset(self, **_: Any) -> None:
        """Nothing: the case is set from outside."""

    def ask(self, item: str) -> str:
        """Asks the patient.

        Args:
            item: what to ask for.
        """
        action = self.environment.read(f"<ask>{item}</ask>")
        return self.environment.reply(self.case, action).messages[0].content

    def get_reward(self) -> float:
        """Nothing is trained."""
        return 0.0


def trl(folder: str) -> Callable[[], Transcripts]:
    """TRL's own multi-turn rollout: `GRPOTrainer(environment_factory=…)` with the consultation.

    Measured is `_generate`, which renders, generates, parses, calls the tools and goes on; the
    dataset, the drawing of environments, rewards and training are not. It gets the one tool that is
    called, since each more costs it time.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from trl import GRPOTrainer

    ward = Ward.open()
    ward.tokenizer.chat_template, ward.tokenizer.response_template = TEMPLATE, RESPONSE
    ward.model.generation_config.eos_token_id = ward.ends

    class Encounter(Consulted):
        """One episode on this ward."""

        environment = ward.environment

    chats = [
        [{"role": m.role, "content": m.content} for m in ward.environment.open(case)]
        for case in ward.cases
    ]
    trainer = GRPOTrainer(
        model=ward.model,
        processing_class=ward.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": chats}),
        environment_factory=Encounter,
        args=trl_arguments(folder),
    )
    trainer.model.eval()
    environments = [Encounter() for _ in ward.cases]
    for environment, case in zip(environments, ward.cases, strict=True):
        environment.case = case
    # What `_generate_and_score_completions` does before it calls `_generate`.
    trainer.environments, trainer._batch_environments = environments, [None] * EPISODES
    trainer._sync_tool_dicts = [{"ask": environment.ask} for environment in environments]
    trainer._async_tool_dicts = [{} for _ in environments]

    def play() -> Transcripts:
        prompts, completions, *_ = trainer._generate(chats)
        return [
            [*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)
        ]

    return play


def trl_arguments(folder: str) -> Any:
    """TRL's settings for the same episodes as everybody's."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=EPISODES,
        temperature=1.0,
        # Of the whole transcript, and one tool call fewer than turns: the last action is not
        # answered.
        max_completion_length=TURNS * MAX_TOKENS,
        max_tool_calling_iterations=TURNS - 1,
    )
