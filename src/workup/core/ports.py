"""The protocols that join the parts: whatever fits one can take its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from workup.core.case import Case, Evidence, Passage, Source
from workup.core.channel import Channel
from workup.core.draws import uniform
from workup.core.episode import (
    Action,
    Batch,
    Completion,
    Message,
    Observation,
    Sample,
    Scores,
    Turn,
)
from workup.core.errors import UserError, WorkupError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw one completion.

    `stop` strings end it and stay part of it. `temperature` 0 is greedy. `key` makes the draw
    reproducible: the same key, prompt and weights give the same tokens in every batch. Without
    `in_thoughts` a stop string within a finished `<think>…</think>` ends no text that an endpoint
    returned whole; samplers of tokens stop at it all the same.
    """

    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    temperature: float = 1.0
    key: int = 0
    in_thoughts: bool = True

    @classmethod
    def of(
        cls, environment: Environment, max_tokens: int, temperature: float = 1.0, key: int = 0
    ) -> Sampling:
        """How an action of `environment` is drawn: it says which strings stop, and where."""
        acts = environment.about.acts_in_thoughts
        return cls(environment.stop, max_tokens, temperature, key, acts)


class Policy(Protocol):
    """A language model that continues token ids.

    It keeps no state that its caller could see; a prefix cache may be inside.
    """

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of bare text, without special tokens."""
        ...

    def render(self, messages: Sequence[Message], past: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids to append to `past`, by the chat template, with its generation prompt at the end.

        With an empty `past` this is the whole prompt. Otherwise `past` ends with the policy's own
        completion, and the ids close that turn, hold `messages`, and open the next turn.
        """
        ...

    async def sample(self, prompt: Sequence[int], sampling: Sampling) -> Completion: ...


class LivePolicy(Policy, Protocol):
    """A policy whose weights an engine is training.

    It may share the engine's module, or hold a copy of the weights in another process.
    """

    def refresh(self) -> None:
        """The weights have changed: use the new ones from the next sample on.

        What was computed with the old weights is forgotten. Nothing is being sampled meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class Act:
    """One action of a doctor: the prompt ids that it read, and its completion.

    A doctor that is no token policy has no prompt ids.
    """

    prompt_tokens: tuple[int, ...]
    completion: Completion


class Doctor(Protocol):
    """What takes the doctor's actions: a token policy, an endpoint, an anchor, a person.

    It may use only `opening`, the observations of the past turns, and `case.given`, which the
    opening states anyway.
    """

    async def act(
        self, case: Case, opening: Sequence[Message], past: Sequence[Turn], sampling: Sampling
    ) -> Act: ...


class Environment(Protocol):
    """The other side of an encounter.

    Stateless: the past comes in as an argument, so any turn can be replayed. `about`, `lessons` and
    `roles` are its further sides. `environments.base.encounter.Encounter` has a default for each.
    """

    @property
    def max_turns(self) -> int:
        """Actions per episode, the diagnosis included."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a completion in this environment's grammar."""
        ...

    def open(self, case: Case) -> tuple[Message, ...]:
        """What the doctor reads first."""
        ...

    def read(self, text: str) -> Action:
        """The one parse of a completion; linear in its length, never raises."""
        ...

    def write(self, kind: str, content: str) -> str:
        """An action as text: what `read` reads back."""
        ...

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """The reply to `action` after the turns `past`.

        Raises RolloutError when a model or a library gives up.
        """
        ...

    def conclude(self, case: Case) -> str:
        """What asks the doctor to name the diagnosis now, in the case's language."""
        ...

    @property
    def about(self) -> About: ...

    @property
    def lessons(self) -> Lessons: ...

    @property
    def roles(self) -> Roles: ...


class About(Protocol):
    """What is known of an environment: what can be measured in it, and who bounds the results."""

    @property
    def asks(self) -> bool:
        """Whether findings can be asked for one by one, each by `write(item.kind, item.name)`."""
        ...

    @property
    def searches(self) -> bool:
        """Whether documents can be searched."""
        ...

    @property
    def acts_in_thoughts(self) -> bool:
        """Whether actions stand within a thought; elsewhere what a thought names is no action."""
        ...

    @property
    def measures(self) -> Sequence[str]:
        """The further measures (`workup.metrics.extra`) that evaluations in it always take."""
        ...

    def known(self, case: Case) -> Evidence:
        """The findings that the opening tells."""
        ...

    @property
    def channel(self) -> Channel | None:
        """How answers deviate from the truth; None where all are true."""
        ...

    def anchors(self, source: Source, seed: int) -> Mapping[str, Doctor]:
        """Doctors that know the model of the cases and bound every curve, by label.

        They stand from the lowest to the highest; `seed` decides what they draw. Empty if the
        source has no model of its cases, and no library with one is searched.
        """
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What the reader of a run should know of it, such as anchors that are missing and why."""
        ...

    def presented(self, source: Source, seed: int) -> Source:
        """`source` with its cases as this environment presents them; often they are unchanged.

        The training and the test cases change alike; `seed` decides what is drawn.
        """
        ...


class Lessons(Protocol):
    """What an environment teaches a policy before it plays."""

    @property
    def phrases(self) -> Sequence[str]:
        """All phrases of the environment's own, for a tiny policy's vocabulary."""
        ...

    def demonstrate(
        self, source: Source, teaching: Teaching, seed: int, index: int
    ) -> Demonstration:
        """The index-th demonstration: the same arguments make the same one.

        Raises UserError where none can be made from `source`.
        """
        ...

    def conclusion(self, case: Case) -> tuple[str, str]:
        """The right diagnosis as a policy writes it: the action's beginning, and its rest."""
        ...


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles that language models can play in an environment.

    `names` are "simulator", "patient", "checker" and the like. `played_by` makes the environment
    with models (role → model) in place of its built-in roles; one without a model stays built-in.
    """

    names: tuple[str, ...]
    played_by: Callable[[Mapping[str, Model]], Environment]


@dataclass(frozen=True, slots=True)
class Request:
    """What a model in a supporting role is asked.

    `role` ("judge", "patient", …) is for the ledger. `version` names the prompt from which the
    messages were made, so that an edited prompt is a new request. `schema` is a JSON Schema as JSON
    text, or "" for free text. `sample` distinguishes several draws of the same request. Equal
    requests to the same model may share one answer. `whole` asks for free text with its thought,
    as an encounter's grammar has one; else local models leave the thought out.
    """

    role: str
    version: str
    messages: tuple[Message, ...]
    schema: str = ""
    max_tokens: int = 1024
    temperature: float = 0.0
    sample: int = 0
    whole: bool = field(default=False, repr=False)  # draws are keyed by the rest, which is shown


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer, and its cost: tokens read and written.

    It costs nothing if `cached` is True: it was kept before it was asked for.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    truncated: bool = False
    cached: bool = False


class Model(Protocol):
    """A model in a supporting role: judge, patient, checker.

    Raises RolloutError when it gives up after its retries; it never returns a default answer.
    """

    @property
    def name(self) -> str:
        """The model's unique name, part of every cache key and of every record's provenance.

        It holds no secret.
        """
        ...

    async def complete(self, request: Request) -> Reply: ...


# What a model reads after the opening, piece by piece: texts, or token ids exactly as they were
# sampled.
Piece = str | tuple[int, ...]
Context = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """How probable is `answer` after each of `contexts`?

    `opening` ends with a user message; the pieces of a context continue that message. Then comes
    the model's turn: first `lead`, which is given ("<diagnose>"), then `answer`, which is scored.
    Without an opening, a context is the whole transcript up to the model's turn. Every piece is
    tokenised by itself, so that equal pieces are equal tokens, and contexts with the same beginning
    share its computation. `case` is the case's id, for messages.
    """

    case: str
    answer: str
    opening: tuple[Message, ...] = ()
    contexts: tuple[Context, ...] = ((),)
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """log P(answer | context) in nats for each context of a request.

    `tokens` is the number of the answer's tokens.
    """

    totals: tuple[float, ...]
    tokens: int

    @property
    def means(self) -> tuple[float, ...]:
        """The totals divided by the number of the answer's tokens."""
        return tuple(total / self.tokens for total in self.totals)


class Scorer(Protocol):
    """Log-probabilities of answers, under a frozen reference or under the live policy.

    Raises RolloutError for a request that does not fit the model's context, WorkupError for an
    answer without tokens and for a value that is not finite.
    """

    @property
    def seconds(self) -> float:
        """How long its forward passes have taken so far."""
        ...

    @property
    def tokens(self) -> int:
        """How many tokens its forward passes have read so far."""
        ...

    async def score(self, request: ScoreRequest) -> Logprobs: ...

    def refresh(self) -> None:
        """Forgets what it computed with older weights."""
        ...


class LanguageModel(Protocol):
    """Weights, and the three ways to use them: as a policy, as a chat model, as a scorer."""

    @property
    def policy(self) -> Policy: ...

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        ...

    def chat(self, name: str) -> Model | None:
        """The same weights as a model in a supporting role; None without a chat template."""
        ...

    def scorer(self) -> Scorer:
        """Log-probabilities under the same weights."""
        ...


class Judge(Protocol):
    """Decides whether a diagnosis names the truth.

    Raises RolloutError when it cannot decide; it never returns False instead.
    """

    async def same(self, answer: str, case: Case) -> bool: ...

    async def grade(self, answer: str, case: Case) -> float:
        """1 where `same` holds, 0.5 for an answer that is partly right, else 0 (R_answer / 2)."""
        ...


class Retriever(Protocol):
    """A library that can be searched: at most `k` passages, best first; none if nothing matches.

    Any text is a query. Raises RolloutError when the library cannot be reached after retries.
    """

    async def search(self, query: str, k: int) -> Sequence[Passage]: ...


# Scorers that a stage may ask for: the policy as it was when the stage began, and as it is now.
REFERENCE, LIVE = "reference", "policy"
# The role in which a reward asks the present doctor itself, to write down what it understands.
DOCTOR = "doctor"

AllGather = Callable[[Sequence[float]], Sequence[float]]


def alone(values: Sequence[float]) -> Sequence[float]:
    """The `all_gather` of a run with one process: returns the values."""
    return values


@dataclass(frozen=True)
class Instruments:
    """What a reward or an environment may use.

    `all_gather` concatenates a list of numbers over all processes, in rank order.
    Statistics over the batch must use it. `key` seeds what a reward draws. In reinforcement it is
    another one in each step, the same in all processes.
    """

    judge: Judge
    all_gather: AllGather = alone
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    key: int = 0

    def scorer(self, name: str) -> Scorer:
        """The scorer REFERENCE or LIVE. Raises WorkupError when the stage did not ask for it."""
        if name not in self.scorers:
            raise WorkupError(f"this stage has no scorer '{name}': name it in GrpoStage.scorers")
        return self.scorers[name]

    def model(self, role: str) -> Model:
        """The model that plays DOCTOR or a supporting role. Raises UserError when there is none."""
        if role not in self.models:
            raise UserError(f"the reward asks a language model as '{role}', and this run has none")
        return self.models[role]


# batch, instruments → scores[group][episode]; failed episodes never reach it
Reward = Callable[[Batch, Instruments], Awaitable[Scores]]
# scores[group][episode], all_gather → advantage[group][episode][turn]
Credit = Callable[[Batch, Scores, AllGather], Sequence[Sequence[Sequence[float]]]]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A transcript to imitate, as text: the opening, then (completion, observation) pairs.

    Each of `branches` is (number of exchanges before it, beginning of the completion, its rest). It
    branches off the transcript there: it sees the same past, and nothing after it sees it. Only the
    rest is imitated.
    """

    opening: tuple[Message, ...]
    exchanges: tuple[tuple[str, tuple[Message, ...]], ...]
    branches: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Teaching:
    """What a method wants of the demonstrations of a warm start.

    `summary_share` of the demonstrations are summaries. Of the others `textbook_share` are textbook
    records, and the rest dialogues. Both shares are within [0, 1]. In both the questions are drawn
    at random. If there is a `doctor`, in `doctor_share` of these they are what that one does with
    the case, to its diagnosis.

    In a summary some of the patient's findings stand as lines behind the presentation. A reward
    that asks how probable the diagnosis is given some facts writes its prompts so.

    Each item is drawn with probability `focus` from those that the patient's record has a finding
    for, otherwise from all. No item is drawn twice, and none that the presentation answers. So
    evidence is seen even where most answers are normal. Where every item has a finding, `focus`
    changes nothing. With `focus` above 0 the choice of the items itself tells something about the
    patient, so that the learned posterior is a little off the exact one. Criticality plays no part
    in the choice, because it depends on the diagnosis.

    Items are not equally popular: of those left, the one of rank r = 0, 1, … is drawn in proportion
    to (1 + r)^−popularity. Each set of items that an opening tells has ranks of its own, at random.
    Without this a repeated question is hardly unlikely: with k of n items asked, a policy that
    forgets them loses log(n / (n − k)) nats, too little to learn to remember them.

    An environment in which nothing can be asked for has demonstrations of its own. There too the
    `doctor` plays where else random searches or orders are shown.
    """

    textbook_share: float = 0.5
    focus: float = 0.5
    summary_share: float = 0.0
    popularity: float = 1.5
    doctor: Doctor | None = None
    doctor_share: float = 1.0

    def demonstrate(
        self, source: Source, environment: Environment, seed: int, index: int
    ) -> Demonstration:
        """The index-th demonstration, in the signature that `SftStage.demonstrate` needs."""
        absent = uniform("doctor", seed, index) >= self.doctor_share
        teaching = replace(self, doctor=None) if absent else self
        return environment.lessons.demonstrate(source, teaching, seed, index)


Pair = tuple[Sample, Sample]  # an episode and another of the same case that it is preferred to
# (live policy, step) → this process's samples
Collect = Callable[[Policy, int], Coroutine[Any, Any, Sequence[Sample]]]


OnStep = Callable[[int, Mapping[str, float]], None]  # step of the stage, from 1, and its metrics
T = TypeVar("T")


class Processes(Protocol):
    """The processes that run one training together. Every process must make the same calls."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def world(self) -> int:
        """How many processes there are."""
        ...

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which alone writes to the run folder."""
        ...

    def all_gather(self, values: Sequence[float]) -> Sequence[float]:
        """All-gather: everyone's `values`, concatenated in rank order."""
        ...

    def send_to_main(self, value: T) -> list[T]:
        """Everyone's `value` on the main process, in rank order; an empty list on the others."""
        ...

    def from_main(self, value: T) -> T:
        """Broadcast: the main process's `value` on every process."""
        ...


class LiveModel(Protocol):
    """The model that an engine is training, with its weights as they are now."""

    @property
    def policy(self) -> LivePolicy:
        """What samples with these weights; it is refreshed after every change."""
        ...

    def chat(self) -> Model:
        """The policy as a chat model."""
        ...

    def scorer(self, name: str) -> Scorer:
        """A new scorer: REFERENCE keeps the weights of this moment, LIVE follows the training."""
        ...

    def save(self, folder: Path, *, merged: bool = True) -> None:
        """The main process writes a model folder, which appears whole.

        With `merged` any policy can begin with it (`workup.models.weights.load`): adapters are
        merged into the weights, or stand alone beside the name of their base model.
        """
        ...

    def load(self, folder: Path) -> str:
        """Takes the weights of a folder written with `merged=False`, in all processes or in none.

        Returns why they do not fit; "" where they were taken.
        """
        ...


class Engine(Protocol):
    """Trains a policy. The training loop is the engine's: it calls `collect` for samples.

    Each call of `sft`, `dpo` or `grpo` is one stage with checkpoints of its own. The same calls in
    the same order, after an interruption, continue: finished stages load what they ended with, the
    unfinished one goes on from its newest checkpoint. A checkpoint holds weights, optimiser,
    schedule and random state, so that a run ends as it would have ended.

    The caller sets `on_step(step, metrics)`. The engine calls it on every process after step 1, 2,
    … of a stage, with what it measured of the update (loss, grad_norm, lr, …).
    """

    on_step: OnStep

    @property
    def processes(self) -> Processes: ...

    @property
    def live(self) -> LiveModel: ...

    def sft(
        self, batches: Iterable[Sequence[Demonstration | Sample]], steps: int, rate: Any
    ) -> None:
        """Supervised fine-tuning: `steps` updates, each on this process's share of the next batch.

        `workup.rl.samples.rows` lays out demonstrations and samples alike
        (`workup.rl.samples.Packed`): the loss is on the tokens that are `labelled`, each predicted
        at its place in `parents`. Where a row is `branched`, several endings follow one beginning;
        an ending sees that beginning up to `reach`, and itself. The loss of a sample is on its own
        token ids where its mask is True. `rate` says how the learning rate changes
        (`engines.settings.RateSettings`). `batches` always begin with the first one: an engine that
        continues a stage skips what is done.
        """
        ...

    def dpo(self, batches: Iterable[Sequence[Pair]], steps: int) -> None:
        """Direct preference optimisation; the reference model is the policy as the stage begins."""
        ...

    def grpo(self, collect: Collect, steps: int) -> None:
        """Policy gradient on the samples of `steps` batches.

        `workup.rl.running.run_to_end` of `collect(policy, step)`, step from 0, gives this process's
        samples. Only tokens in a sample's `mask` are learned, with their `advantages` and the
        `logprobs` that they were drawn with.
        """
        ...

    def done(self, kind: str) -> int:
        """How many steps of the next stage ("sft", "dpo", "grpo") its newest checkpoint has.

        0 for a new run. What the run folder holds of later steps is dropped.
        """
        ...

    def stop(self) -> None:
        """Ends the present stage after its present step, with a checkpoint; later ones do nothing.

        Safe in a signal handler.
        """
        ...

    @property
    def stopped(self) -> bool:
        """Whether a stage was ended by `stop` before its last step."""
        ...

    @property
    def recipe(self) -> str:
        """What affects the weights besides settings and data: tokenizer, device, libraries.

        Runs share a warm start only where it is the same.
        """
        ...
