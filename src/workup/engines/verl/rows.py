"""Samples as the rows of TransferQueue that verl's trainer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from workup.core.episode import Sample
from workup.core.errors import WorkupError
from workup.core.ports import Demonstration, Policy
from workup.rl.samples import TokenTree, token_tree


@dataclass(frozen=True)
class TokenRow:
    """One episode: its key, the tensors, and the figures that verl keeps about it."""

    key: str
    fields: dict[str, Any]
    tag: dict[str, Any]


def rows(samples: Sequence[Sample], uids: Sequence[str], step: int) -> list[TokenRow]:
    """The rows of step `step` ≥ 1, in the order of the samples.

    A key is `{uid}_{number}_0`. Neighbours with the same prompt are one group and share a uid of
    `uids`, which are those of the step's prompts. Nothing is compared by group any more, so that a
    group may have lost episodes, and uids may be left over. Raises WorkupError for more groups than
    uids.

    Example: the prompt P P, the completion C, the reply R, the completion C C. Then `prompts` is
    P P, `responses` is C R C C, and `response_mask` is 1 0 1 1.
    """
    by_prompt = groupby(samples, key=lambda sample: sample.tokens[: sample.mask.index(True)])
    groups = [list(alike) for _, alike in by_prompt]
    if len(groups) > len(uids):
        raise WorkupError(f"step {step}: {len(groups)} groups for {len(uids)} prompts")
    return [
        _row(f"{uid}_{number}_0", uid, sample, step)
        for uid, group in zip(uids, groups, strict=False)
        for number, sample in enumerate(group)
    ]


def lessons(samples: Sequence[Sample], uid: str, step: int) -> list[TokenRow]:
    """The rows of a step whose samples are given, not played; all belong to one of its prompts."""
    return [_row(f"{uid}_{number}_0", uid, sample, step) for number, sample in enumerate(samples)]


def place(key: str) -> int:
    """A row's number among those of its prompt."""
    return int(key.rsplit("_", 2)[1])


def _row(key: str, uid: str, sample: Sample, step: int) -> TokenRow:
    begin = sample.mask.index(True)
    tokens = torch.tensor(sample.tokens, dtype=torch.int64)
    mask = torch.tensor(sample.mask[begin:], dtype=torch.int64)
    fields = {
        "uid": uid,
        "prompts": tokens[:begin],
        "responses": tokens[begin:],
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": tokens,
        "position_ids": torch.arange(len(tokens)),
        "rollout_log_probs": torch.tensor(sample.logprobs[begin:], dtype=torch.float32),
        "rm_scores": torch.tensor(sample.advantages[begin:], dtype=torch.float32),
        "num_turns": len(set(sample.turn_ids)),
    }
    versions = dict.fromkeys(("min_global_steps", "max_global_steps"), step - 1)
    tag = {
        "status": "success",
        "prompt_len": begin,
        "response_len": len(tokens) - begin,
        "seq_len": len(tokens),
        "global_steps": step,
        **versions,  # versions of the weights that played
    }
    return TokenRow(key, fields, tag)


def sequences(items: Sequence[Demonstration | Sample], policy: Policy) -> list[Sample]:
    """What is learned as plain sequences, since verl knows no trees.

    A branch becomes a sequence with the trunk before it, so that its loss is the same.
    """
    found = []
    for item in items:
        if isinstance(item, Sample):
            found.append(_labelled(item.tokens, item.mask))
        else:
            found += plain(token_tree(item, policy))
    return [sample for sample in found if any(sample.mask)]


def plain(tree: TokenTree) -> list[Sample]:
    """The trunk, and each branch after the trunk before it; only the branch is labelled there."""
    branches = [
        _labelled(
            (*tree.trunk[: branch.at], *branch.tokens),
            [False] * (branch.at + branch.given) + [True] * (len(branch.tokens) - branch.given),
        )
        for branch in tree.branches
    ]
    return [_labelled(tree.trunk, tree.labelled), *branches]


def _labelled(tokens: Sequence[int], mask: Sequence[bool]) -> Sample:
    nothing = (0.0,) * len(tokens)
    known = (False, *mask[1:])  # nothing predicts the first token
    return Sample(tuple(tokens), known, nothing, nothing, (0,) * len(tokens))
