"""Who plays the supporting roles of a run: judge, patient, record simulator, by name, each opened once."""

from __future__ import annotations

from typing import Any

from workup.case import Source
from workup.errors import unknown
from workup.judges.diagnosis import DiagnosisJudge, DiagnosisPanel
from workup.judges.exact import ExactJudge
from workup.judges.options import OptionJudge
from workup.models.config import Config
from workup.models.desk import Desk
from workup.ports import Environment, Judge
from workup.settings import SupportSettings
from workup.signals.naming import CODER

EXACT = "exact"
CLOSED = (
    "The record simulator answered what these cases leave normal: they come from a model of their own, to which the anchors and "
    "the criticality of findings belong, and the simulator's results do not."
)


class Staff:
    """The supporting roles as the settings assign them; "exact", and a role that nobody was assigned, is the built-in one.

    `account` names the run in the ledger; `measuring` are the models that measures ask, by role. Raises UserError for a role that
    is neither the judge's, nor the coder's, nor one of `environment`'s, and for models that cannot be opened.
    """

    def __init__(self, settings: SupportSettings, source: Source, environment: Environment, account: str) -> None:
        self._specs = {role: spec for role, spec in settings.roles.items() if spec != EXACT}
        for role in settings.roles:
            if role not in (known := ("judge", CODER, *environment.roles)):
                raise unknown("role", role, known)
        config = Config(endpoints=settings.endpoints, budget=settings.budget)
        self.desk = Desk(config, run=account, restricted=source.restricted, replay=settings.replay)
        models = {role: self.desk.open(spec) for role, spec in self._specs.items() if role != "judge"}
        self.models = dict(models)  # by role, but for the judge
        self.measuring = {CODER: models.pop(CODER)} if CODER in models else {}
        self.environment = environment.staffed(models) if models else environment
        self.judge = self._judge()
        closed = "simulator" in models and source.knowledge is not None
        self._warnings = [CLOSED] if closed else []

    def _judge(self) -> Judge:
        """Several names, separated by commas, make a panel that decides by majority."""
        specs = [spec.strip() for spec in self._specs.get("judge", "").split(",") if spec.strip()]
        judges = {spec: DiagnosisJudge(self.desk.open(spec)) for spec in specs}
        judge = DiagnosisPanel(judges) if len(judges) > 1 else next(iter(judges.values()), ExactJudge())
        return OptionJudge(judge)  # an answer by letter is decided there, anything else by the judge

    def close(self) -> None:
        """Writes down what the ledger still holds in memory."""
        self.desk.close()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the roles have asked of their models so far, and what that cost, by role and model."""
        return self.desk.costs()

    @property
    def notes(self) -> list[str]:
        """The same for a reader."""
        costs = [
            f"{row['role']} ({row['model']}): {row['calls']} calls, {row['hits']} answers from the cache, cost {row['cost']:.4g}"
            for row in self.calls
        ]
        return [*costs, *self.desk.notes, *self._warnings]
