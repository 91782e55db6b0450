"""The figures of a training step that are no measures of an episode: what engines and searches log.

They stand in metrics.jsonl beside the means of the episodes' measures.
"""

from __future__ import annotations

from workup.metrics.metric import ANY, COUNT, Metric, Where

REWARD = Metric(
    "reward", "mean of the episodes' rewards", range=ANY, where=Where.NOWHERE, curve="Reward"
)
RISE = Metric(
    "rise",
    "whether the reward still rose when training ended: the mean of the last quarter of the "
    "updates less that of the quarter before, with a 95 % interval over the updates",
    "reward at the end",
    range=ANY,
    where=Where.NOWHERE,
)
SEARCHED = (
    Metric("kept", "share of the cases of which an episode was kept", rank=1010, where=Where.LIVE),
    Metric(
        "right", "share of the searched episodes with a right answer", rank=1020, where=Where.LIVE
    ),
    Metric("depth", "how deep the search of a case went", range=COUNT, rank=1030, where=Where.LIVE),
    Metric(
        "calls",
        "completions that the search of a case took",
        range=COUNT,
        rank=1040,
        where=Where.LIVE,
    ),
)
ENGINE = (
    Metric("loss", "loss of the update", range=ANY, rank=1050, where=Where.LIVE, curve="Loss"),
    Metric(
        "kl",
        "divergence from the reference, in nats per token",
        "KL",
        range=ANY,
        rank=1060,
        where=Where.LIVE,
        curve="KL to the reference",
    ),
    Metric(
        "entropy",
        "entropy of the policy, in nats per token",
        "entropy (nats)",
        range=COUNT,
        rank=1070,
        where=Where.LIVE,
        curve="Entropy (nats)",
    ),
    Metric(
        "margin", "how much DPO prefers the chosen text", range=ANY, rank=1080, where=Where.LIVE
    ),
    Metric(
        "preferred", "share of the pairs whose chosen text DPO prefers", rank=1090, where=Where.LIVE
    ),
    Metric(
        "tokens_per_second",
        "tokens that were trained on, in a second",
        range=COUNT,
        where=Where.NOWHERE,
        curve="Tokens per second",
    ),
    Metric(
        "staleness",
        "steps between the weights that played the episodes and those that learn from them",
        range=COUNT,
        where=Where.NOWHERE,
    ),
    Metric("grad_norm", "norm of the gradient", "gradient norm", range=COUNT, where=Where.NOWHERE),
    Metric(
        "length",
        "the doctor's tokens per episode",
        "tokens per episode",
        range=COUNT,
        where=Where.NOWHERE,
    ),
)
METRICS = (REWARD, RISE, *SEARCHED, *ENGINE)
