"""Where a run gets its models from.

Each model is opened once, behind the cache, and its calls are on the run's account. Restricted
text is not sent to a model that may not see it.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from workup.core.disk import there, users_cache
from workup.core.errors import UserError
from workup.core.ports import Model
from workup.models.hub import weights
from workup.roles.account import Account
from workup.roles.cached import Cached
from workup.roles.config import Config
from workup.roles.endpoint import ENDPOINT, Endpoint
from workup.roles.replies import FILE, Replies, clear_errors


class RunModels:
    """The models of one run.

    `run` is the run's name: the same in all its sessions, different from every other run's.
    `config` has the endpoints and the budget. With `restricted`, only trusted endpoints are opened,
    and the cache is private. `cache` is its folder, by default the user's. `replay` and `fresh` are
    as for `Cached`.
    """

    def __init__(
        self,
        config: Config,
        run: str,
        *,
        restricted: bool = False,
        replay: bool = False,
        fresh: bool = False,
        cache: Path | None = None,
    ) -> None:
        self.config, self.run, self.restricted = config, run, restricted
        self.replay, self.fresh = replay, fresh
        self.folder = cache or users_cache() / ("restricted" if restricted else "")
        self._models: dict[str, Cached] = {}
        self._name = ""

    def open(self, spec: str) -> Model:
        """The model `endpoint:NAME`, or that of a model folder or a hub id.

        Raises UserError if there is no such model, and for an endpoint that may not see restricted
        text or whose key is missing; with `replay` no key is needed.
        """
        if spec not in self._models:
            self._models[spec] = (
                self._endpoint(spec.removeprefix(ENDPOINT))
                if spec.startswith(ENDPOINT)
                else self._local(spec)
            )
        return self._models[spec]

    def named(self, folder: Path) -> None:
        """Tells the ledger the run's folder, under which its costs are then listed.

        A run that opens no model makes no entry.
        """
        self._name = str(folder.resolve())
        if "_account" in self.__dict__:
            self._account.replies.name(self.run, self._name)

    def costs(self) -> list[dict[str, Any]]:
        """What the run has taken so far, earlier sessions included.

        One row for each role and model, as JSON values.
        """
        kept = (self.folder / FILE).exists()
        return [asdict(row) for row in self._account.costs()] if kept else []

    @property
    def spent(self) -> float | None:
        """The money that the run has cost so far, earlier sessions included.

        None if no opened model has a price.
        """
        prices = [model.price for model in self._models.values()]
        priced = any(price.input or price.output for price in prices)
        return self._account.spent() if priced else None

    @property
    def notes(self) -> list[str]:
        """Where the endpoints did not do as they were told, for the reader of a run."""
        return [
            f"{model.name}: {note}"
            for model in self._models.values()
            for note in getattr(model.model, "notes", ())
        ]

    def close(self) -> None:
        """Writes what is still in memory.

        A run that is killed before loses some counts of cache hits, but no answer and no charge.
        """
        if "_account" in self.__dict__:
            self._account.replies.close()

    @cached_property
    def _account(self) -> Account:
        if self.restricted:
            _private(self.folder)
        replies = Replies(self.folder / FILE)
        if self._name:
            replies.name(self.run, self._name)
        return Account(replies, self.run, self.config.budget)

    def _endpoint(self, name: str) -> Cached:
        settings = self.config.endpoint(name)
        if self.restricted and not settings.trusted:
            raise UserError(
                f"the cases are restricted: their text may not go to endpoint '{name}' "
                f"({settings.base_url}); if your data-use agreement allows it, say `trusted: "
                "true` there, else name a model folder"
            )
        endpoint = Endpoint(settings)
        if not self.replay:
            endpoint.key()  # a missing key is reported before anything is made
        return Cached(endpoint, self._account, settings.price, replay=self.replay, fresh=self.fresh)

    def _local(self, spec: str) -> Cached:
        if spec in self.config.endpoints and not there(spec):
            raise UserError(f"no weights '{spec}'. Did you mean '{ENDPOINT}{spec}'?")
        weights(spec)  # reports a mistake before torch and transformers are loaded
        from workup.models.chat import LocalChat

        return Cached(LocalChat.load(spec), self._account, replay=self.replay, fresh=self.fresh)


def _private(folder: Path) -> None:
    """Makes the folder for its owner alone; UserError if it exists and others can read it."""
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        open_to_others = folder.stat().st_mode & 0o077
    if open_to_others:
        raise UserError(
            f"{folder} would hold restricted text and is open to other users: type `chmod 700 "
            f"{folder}`"
        )
