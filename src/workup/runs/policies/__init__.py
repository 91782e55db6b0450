"""What a policy's name stands for, found out once: `resolve` makes one frozen value of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from workup import methods
from workup.core.disk import there
from workup.core.errors import UserError
from workup.doctors import strategies
from workup.models import hub, smollm2
from workup.roles.config import Config
from workup.roles.endpoint import ENDPOINT
from workup.runs import Run
from workup.runs.folder import FOLDS, goes_on, is_run, named, needed
from workup.runs.policies.trained import Trained
from workup.runs.settings import SupportSettings

FORMS = "smollm2, a run or model folder, a hub id, endpoint:NAME or the name of an anchor"
TINY = "tiny"  # the policy that starts from nothing, made from the cases
TRAINABLE = "tiny, smollm2, a model folder, a run folder or a hub id"
OURS = (TINY, smollm2.NAME)  # a folder of such a name is written ./tiny
_WITHIN = ("policy", "checkpoints")  # where a run keeps weights


@dataclass(frozen=True)
class Resolved:
    """What the `name` of a policy stands for: `resolve` makes it.

    `place` is the folder or file of that name; None for tiny, smollm2, an endpoint, a hub id and an
    anchor. `run` is the run folder that the policy lies in: `place` itself or one above it.
    """

    name: str
    place: Path | None
    run: Path | None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The configuration of `run`; empty without one. Raises UserError if it cannot be read."""
        if self.run is None:
            return {}
        with Run.open(self.run) as opened:
            return opened.config

    @property
    def is_tiny(self) -> bool:
        return self.name == TINY

    @property
    def endpoint(self) -> bool:
        return self.name.startswith(ENDPOINT)

    @property
    def is_run(self) -> bool:
        """Whether the name is that of a run folder."""
        return self.run is not None and self.run == self.place

    @property
    def label(self) -> str:
        """An endpoint's name, or the last part of a folder or a hub id, for tables."""
        if self.endpoint:
            return self.name.removeprefix(ENDPOINT)
        folder = named(self.place or Path(self.name))
        # a policy of a cross-validation is called after all of them
        return folder.parent.parent.name if folder.parent.name == FOLDS else folder.name

    @cached_property
    def folds(self) -> tuple[str, ...]:
        """The run folders of the policies that a cross-validation trained; else none."""
        if not self.is_run or "method" not in self.config:
            return ()
        with Run.open(Path(self.name).expanduser()) as run:
            return tuple(str(Path(self.name) / folder) for folder in run.parts.values())

    @cached_property
    def history(self) -> tuple[Trained, ...]:
        """What the policy was trained on, run by run, the newest first; empty if not known.

        The policies of a cross-validation were trained on the same cases: the first one's counts.
        """
        if self.folds:
            return resolve(self.folds[0]).history
        if self.run is None or "method" not in self.config:
            return ()
        fields = ("cases", "split", "trained_before")
        cases, split, before = (needed(self.run, self.config, field) for field in fields)
        return (Trained(str(self.run), str(cases), split), *(Trained(**one) for one in before))

    def trained(self) -> Mapping[str, Any]:
        """The settings of the run that trained the policy; empty if its name is no run's.

        Raises UserError for an evaluation, which trains none, and for a cross-validation.
        """
        if not self.is_run:
            return {}
        if self.folds:
            raise UserError(
                f"{self.name} is a cross-validation with {len(self.folds)} policies: name one, as "
                f"in {self.folds[0]}"
            )
        if "method" not in self.config:
            raise UserError(
                f"{self.name} is an evaluation and holds no policy; name what it evaluated: "
                f"'{self.config.get('policy')}'"
            )
        return self.config

    def weights(self, forms: str = FORMS) -> str:
        """The folder of the weights (for a run the policy that it trained), smollm2, or a hub id.

        Raises UserError for a name that cannot be a policy, and for a hub id that neither the cache
        nor the hub knows (`hub.weights`). `forms` says what could have been named.
        """
        if self.name == smollm2.NAME:
            smollm2.check()  # its weights are unpacked, for most of a minute, when they are loaded
            return self.name
        if self.place is None:
            hub.weights(self.name, forms=forms)
            return self.name
        if self.place.is_file():
            raise UserError(f"'{self.name}' is a file; name the folder that holds it ({forms})")
        if self.is_run:
            self.trained()
            if not (self.place / "policy").exists():
                going = goes_on(self.place)
                raise UserError(f"{self.name} has trained no policy yet; type {going} first")
            return str(self.place / "policy")
        if not any((self.place / each).is_file() for each in hub.FILES):
            raise UserError(
                f"'{self.name}' is neither a model folder (no config.json) nor a run folder (no "
                "config.yaml)"
            )
        return str(self.place)

    def check(
        self,
        anchors: Collection[str] | None = None,
        forms: str = FORMS,
        why: Sequence[str] = (),
    ) -> None:
        """Raises UserError, with what to type instead, for a name that is no policy.

        `anchors`, where some could play, are names that need no weights; nor does the tiny policy.
        `why` says which of them are missing. An endpoint is checked when it is opened.
        """
        if self.is_tiny or self.name in (anchors or ()):
            return
        if self.label in (anchors or ()):
            raise UserError(
                f"'{self.name}' would be called '{self.label}' in tables, as an anchor is: give it "
                "another name"
            )
        if self.endpoint:
            return
        if self.place is None and self.name not in OURS:
            _refuse_other_names(self.name, anchors, why)
        self.weights(forms)

    def identity(self, settings: SupportSettings) -> tuple[str, str]:
        """The key that all names of one model share: of an endpoint its address, or the weights."""
        if self.endpoint and (end := settings.endpoints.get(self.label)) is not None:
            return end.base_url, end.model
        if self.place is None:
            return "", self.name
        return "", str((self.place / "policy" if self.is_run else self.place).resolve())


def resolve(name: str) -> Resolved:
    """What the name of a policy stands for; nothing but the names of files is looked at."""
    place = None if name in OURS else there(name)
    if place is None:
        return Resolved(name, None, None)
    above = (each for each in place.parents if place.relative_to(each).parts[0] in _WITHIN)
    return Resolved(name, place, next(filter(is_run, (place, *above)), None))


def identities(names: Mapping[str, str]) -> dict[str, str]:
    """Which local weights these names mean now (`hub.identity`), by role.

    `names` are policies and models by the role they play; several of one role have commas between
    them. What has no weights here (endpoints, anchors, the tiny policy) is left out.
    """
    found = {
        role: [_weights(name.strip()) for name in spec.split(",")] for role, spec in names.items()
    }
    return {role: ", ".join(filter(None, each)) for role, each in found.items() if any(each)}


def _weights(name: str) -> str:
    folder = None if name == TINY else there(name)
    here = folder is not None and folder.is_dir()
    if here or name == smollm2.NAME or (name != TINY and hub.is_id(name) and hub.cached(name)):
        return hub.identity(resolve(name).weights())
    return ""


def own_judges(policies: Sequence[Resolved], settings: SupportSettings) -> list[str]:
    """A warning for each of these policies that is also its own judge, or plays another role.

    Two models are the same if they have the same name at the same address, or the same weights on
    this machine or the hub. A model tends to find its own answers right.
    """
    told = []
    for role, specs in settings.roles.items():
        named = [spec.strip() for spec in specs.split(",") if spec.strip()]
        players = {resolve(spec).identity(settings): spec for spec in named}
        why = (
            "a model tends to find its own answers right. Let another model judge, or the exact "
            "judge."
            if role == "judge"
            else "a model may understand itself better than others do. Let another model play it."
        )
        told += [
            f"The {role} {players[policy.identity(settings)]} is the policy {policy.name} itself: "
            f"{why}"
            for policy in policies
            if policy.identity(settings) in players
        ]
    return told


def _refuse_other_names(name: str, anchors: Collection[str] | None, why: Sequence[str]) -> None:
    if name in Config.find(None).endpoints:
        raise UserError(f"no policy '{name}'. Did you mean '{ENDPOINT}{name}'?")
    if name in methods.names():
        raise UserError(
            f"'{name}' is a method: type `workup train {name}`, then evaluate its run folder"
        )
    if name in strategies.names():
        raise UserError(f"'{name}' is a strategy: type workup evaluate POLICY strategy={name}")
    if anchors is None or "/" in name:
        return
    begun = [anchor for anchor in anchors if anchor.startswith(name)]
    # Anchors share words: "told information" is no misspelt "full information".
    near = begun or get_close_matches(name, [*anchors], n=1, cutoff=0.9 if " " in name else 0.6)
    if near:
        raise UserError(f"no policy '{name}'. Did you mean '{near[0]}'?")
    if " " in name:  # only anchors have names with spaces
        others = (
            f"here play {', '.join(anchors)}"
            if anchors
            else ("these cases have no model of their own, so name an endpoint, a run or weights")
        )
        raise UserError("; ".join((f"'{name}' does not play here", others, *why)))
