"""Who plays the supporting roles of a run: judge, patient, record simulator, by name.

Each model is opened once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any

from workup.core.case import Source
from workup.core.errors import UserError
from workup.core.ports import Environment, Judge, Model
from workup.core.text import several
from workup.metrics import extra
from workup.metrics.naming import CODER
from workup.roles.config import NAME, Config
from workup.roles.judges.diagnosis import DiagnosisJudge, DiagnosisPanel
from workup.roles.judges.exact import ExactJudge
from workup.roles.judges.options import OptionJudge
from workup.roles.run_models import RunModels
from workup.runs.settings import SupportSettings

EXACT = "exact"
CLOSED = (
    "The record simulator answered what these cases leave normal: they come from a model of "
    "their own, to which the anchors and the criticality of findings belong, and the simulator's "
    "results do not."
)


class SupportingRoles:
    """The supporting roles as the settings assign them.

    "exact", and a role without an assignment, is the built-in one. The judge and the panels of
    measures may be several models, with commas between them; in the environment the first of them
    plays. `account` names the run in the ledger. `measures` are further measures of evaluations,
    `measuring` the models that they ask, by role and by name. `roles` is the assignment that holds
    here: a role that only workup.yaml names is left out if it has no place. `environment` has the
    models in its roles, `built_in` none. Raises UserError for a role of the user's that neither the
    judge, nor `environment`, nor a measure has, and for models that cannot be opened.
    """

    def __init__(
        self,
        settings: SupportSettings,
        source: Source,
        environment: Environment,
        account: str,
        measures: Sequence[str] = (),
    ) -> None:
        self._warnings: list[str] = []
        taken = (*environment.about.measures, *measures)
        measured = extra.roles(taken)
        self.roles = self._assigned(settings, environment, measured)
        several = {"judge", *extra.panels(taken)}
        self._specs = {
            role: _names(role, spec, several=role in several)
            for role, spec in self.roles.items()
            if spec != EXACT
        }
        config = Config(endpoints=settings.endpoints, budget=settings.budget)
        self.run_models = RunModels(
            config, run=account, restricted=source.restricted, replay=settings.replay
        )
        models = {
            role: {name: self.run_models.open(name) for name in names if name != EXACT}
            for role, names in self._specs.items()
        }
        self.measuring = {role: each for role, each in models.items() if role in measured}
        judges: Mapping[str, Model] = models.pop("judge", {})
        self.models = {role: next(iter(each.values())) for role, each in models.items()}
        roles = environment.roles
        own = {role: model for role, model in self.models.items() if role in roles.names}
        self.built_in = environment
        self.environment = roles.played_by(own) if own else environment
        self.judge = self._judge(judges)
        if "simulator" in models and source.knowledge is not None:
            self._warnings.append(CLOSED)

    def _assigned(
        self, settings: SupportSettings, environment: Environment, measured: Set[str]
    ) -> dict[str, str]:
        kind = type(environment).__name__.lower()
        known = dict.fromkeys(("judge", *sorted(measured), *environment.roles.names))
        for role in settings.roles:
            if role in known:
                continue
            near = get_close_matches(role, (*known, CODER), n=1, cutoff=0.7)
            if near and role != CODER:
                raise UserError(f"no role '{role}'. Did you mean '{near[0]}'?")
            problem = f"no role '{role}' in this {kind}; it has {', '.join(known)}"
            if role == CODER:
                problem += ". A coder needs the measure kg: evaluation.measures=[kg]"
            if role not in settings.standing:
                raise UserError(problem)
            self._warnings.append(f"{problem} ({NAME} names it; it is left out)")
        return {role: spec for role, spec in settings.roles.items() if role in known}

    def _judge(self, models: Mapping[str, Model]) -> Judge:
        """Several models make a panel that decides by majority; the exact judge may sit in it."""
        judges = {
            name: ExactJudge() if name == EXACT else DiagnosisJudge(models[name])
            for name in self._specs.get("judge", ())
        }
        judge = (
            DiagnosisPanel(judges) if len(judges) > 1 else next(iter(judges.values()), ExactJudge())
        )
        # decides an answer by letter itself and passes any other answer to the judge
        return OptionJudge(judge)

    def close(self) -> None:
        """Writes what the ledger still holds in memory."""
        self.run_models.close()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the roles have asked of their models so far, and its cost, by role and model."""
        return self.run_models.costs()

    @property
    def spent(self) -> dict[str, float]:
        """{"spent": the money that the run has cost so far}, for the live view.

        Empty if no model has a price.
        """
        money = self.run_models.spent
        return {} if money is None else {"spent": money}

    @property
    def notes(self) -> list[str]:
        """What the reader of the results should know of the models."""
        costs = [
            (
                f"{row['role']} ({row['model']}): {several(row['calls'], 'call')}, "
                f"{several(row['hits'], 'answer')} "
                f"from the cache, cost {row['cost']:.4g}"
            )
            for row in self.calls
        ]
        return [*costs, *self.run_models.notes, *self._warnings]


def _names(role: str, spec: str, *, several: bool) -> list[str]:
    """The models that a setting names, each once.

    Without a name the exact judge judges. Raises UserError where another role names nobody, for
    several in a role that one plays, and for an "exact" among models that is no judge.
    """
    names = [name.strip() for name in spec.split(",") if name.strip()]
    if not names and role != "judge":
        raise UserError(f"roles.{role}: '{spec}' names no model; name one, or leave the role out")
    if len(names) > 1 and not several:
        raise UserError(f"roles.{role}: one model plays this role, not {len(names)}; name one")
    if EXACT in names and role != "judge":
        raise UserError(
            f"roles.{role}: 'exact' judges alone here; name models, or leave the role out"
        )
    return list(dict.fromkeys(names))
