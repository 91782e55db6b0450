"""Question and search: a patient told in part who answers questions, a library, one diagnosis.

The library's encounter with one more action: `<ask>` puts one question to the patient. A question,
a search and the diagnosis are a turn each, of one budget. Only evidence is refined: a turn after
the patient's answer begins without a refinement. Actions are of the kinds "ask", "search" and
"diagnose". Where the findings are terms of the HPO and `terms` names a release, questions are for
its terms (`TermPatient`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

from pydantic import Field

from workup.core.case import Case, Knowledge, Source, SourceLibrary
from workup.core.channel import Channel
from workup.core.episode import ASK, DIAGNOSE, Action, Message, Observation, Turn
from workup.core.errors import UserError
from workup.core.ports import Doctor, Model, Retriever
from workup.core.text import neutralise, tagged
from workup.environments.base.anchors import BayesDiagnoser
from workup.environments.base.encounter import CREDULOUS, GREEDY
from workup.environments.base.interpreter import INTERPRETER
from workup.environments.base.library_teacher import LibraryTeaching
from workup.environments.base.patients import (
    CHECKER,
    PATIENT,
    Patient,
    PatientSettings,
    played_by,
)
from workup.environments.base.personas import Personas
from workup.environments.base.queries import hops
from workup.environments.base.rankers import RankingDoctor, TermDoctor
from workup.environments.base.recorded import CONCLUDE
from workup.environments.base.searched import opened
from workup.environments.base.searchers import AskingSearcher
from workup.environments.base.searching import SEARCH, SearchGrammar, Told
from workup.environments.base.term_patient import TermPatient
from workup.environments.base.trouble import Trouble
from workup.environments.consultation import Consultation
from workup.environments.library import Library
from workup.environments.library import Settings as LibrarySettings
from workup.retrieval.hpo import RATIO
from workup.retrieval.hpo.rankings import has_terms

UNREADABLE = "Please write one question, one search or one diagnosis."

ROLES = (PATIENT, CHECKER, INTERPRETER)

summary = "questions to a patient and searches in a library in one budget, then one diagnosis"


class Settings(PatientSettings, LibrarySettings):
    """What can be set where a patient is questioned and a library is searched."""

    told: Told = Field(
        "presentation",
        description="what is told before any question: presentation, history (with it) or record",
    )

    @property
    def grammar(self) -> SearchGrammar:
        return replace(super().grammar, asks=True)


class Inquiry(Library):
    """An `Environment`: the doctor asks the patient, searches the library, and diagnoses once.

    The built-in patient is the embedded one. `personas` are the manners of a model that plays it.
    """

    unreadable = UNREADABLE
    role_names = ROLES

    def __init__(
        self,
        retriever: Retriever,
        record: Consultation,
        grammar: SearchGrammar,
        said: Sequence[str] = (),
        *,
        library: SourceLibrary | None = None,
        teaching: LibraryTeaching | None = None,
        personas: Personas | None = None,
    ) -> None:
        """Raises ValueError for a grammar without questions."""
        if not grammar.asks:
            raise ValueError(f"{grammar}: an inquiry has questions")
        super().__init__(retriever, record, grammar, said, library=library, teaching=teaching)
        self._personas, self.matcher = personas, record.matcher
        self.patient: Patient = played_by({}, record, personas)

    @property
    def stop(self) -> tuple[str, ...]:
        return f"</{ASK}>", *super().stop

    @property
    def phrases(self) -> tuple[str, ...]:
        return (*super().phrases, *self.patient.phrases)

    @property
    def asks(self) -> bool:
        return True

    @property
    def channel(self) -> Channel | None:
        return self.record.channel

    def with_models(self, models: Mapping[str, Model]) -> Inquiry:
        """This environment with models: a "patient" answers, a "checker" checks its answers.

        An "interpreter" reads questions for the built-in patient.
        """
        if models.keys().isdisjoint((PATIENT, INTERPRETER)):
            return self
        if isinstance(self.patient, TermPatient) and PATIENT not in models:
            raise UserError(
                "environment.terms reads questions itself; leave roles.interpreter out, or "
                "environment.terms"
            )
        other = copy(self)
        other.patient = played_by(models, self.record, self._personas)
        return other

    def anchors(self, source: Source, seed: int) -> dict[str, Doctor]:
        """Those of a library, and who knows what the opening tells and neither asks nor searches.

        Where names are drawn for every case nobody asks without searching: each would be a guess.
        """
        others = super().anchors(source, seed)
        if source.knowledge is None:
            return {**others, **self._term_doctors(others, seed)}
        told = BayesDiagnoser(source.knowledge, source.items, self.write, self.known, self.channel)
        if hops(source):
            asking = ("random doctor", CREDULOUS, GREEDY)
            others = {label: others[label] for label in others if label not in asking}
        return {"told information": told, **others}

    def _term_doctors(self, others: Mapping[str, Doctor], seed: int) -> dict[str, Doctor]:
        """Those who ask for terms, where a term's patient answers and a release ranks."""
        last = others.get(RATIO)
        if not isinstance(self.patient, TermPatient) or not isinstance(last, RankingDoctor):
            return {}
        own = self.grammar.own_paper
        how = (self._rankings, last, self)
        return {
            "random doctor": TermDoctor(*how, seed, own_paper=own),
            GREEDY: TermDoctor(*how, own_paper=own),
        }

    def further_anchors(
        self, source: Source, knowledge: Knowledge, seed: int
    ) -> Mapping[str, Doctor]:
        """Those of a library; where it has some, also one that asks before it searches."""
        searchers = super().further_anchors(source, knowledge, seed)
        if not searchers:
            return {}
        return {**searchers, "asking searcher": AskingSearcher(source, knowledge, self)}

    def write(self, kind: str, content: str) -> str:
        """Whatever is neither a search nor a diagnosis is asked of the patient."""
        return super().write(kind, content) if kind in (SEARCH, DIAGNOSE) else tagged(ASK, content)

    async def answer(self, case: Case, past: Sequence[Turn], action: Action) -> Observation:
        """The passages, or what the patient says; in the last turn a question is not answered.

        Raises RolloutError when the patient gives up or the library cannot be reached.
        """
        if action.kind != ASK:
            return await super().answer(case, past, action)
        if len(past) >= self.max_turns - 1:
            return Observation((Message("user", CONCLUDE),))
        # The patient knows the questions alone, so that no passage is taken for its own answer.
        questions = [turn for turn in past if turn.action.kind == ASK]
        said = await self.patient.reply(case, questions, action.content[0])
        return said.as_told(self.reply(neutralise(said.text), len(past)).content)

    @property
    def _rules(self) -> str:
        return (
            "You are the doctor; this is a test bench and no medical device. A patient is "
            "described to you, and much is missing. In each turn do one of three things. Ask the "
            f"patient for one thing: <{ASK}>…</{ASK}>. Or look things up in a medical library: "
            f"{self._searching} You can ask and search {self.max_turns - 1} times in all. "
            f"{self._concluding}"
        )


def open(source: Source, settings: Settings) -> Inquiry:
    """The environment with the library named by `index`, by default the one of `source`.

    Raises UserError if there is none (see `opened`), and for a persona that does not exist.
    """
    s = settings
    retriever, library, said = opened(source, s.index)
    made = Inquiry(
        retriever,
        Consultation(
            source.items,
            source.diagnoses,
            s.max_turns,
            trouble=Trouble.of(source, s),
            matcher=s.matcher(source.items),
        ),
        s.grammar,
        said,
        library=library,
        teaching=LibraryTeaching(s.grammar, s.refined, s.queried, s.open_books),
        personas=s.personas,
    )
    if s.terms and has_terms(source):
        if made.record.channel is not None:
            raise UserError(
                "environment.terms answers from the record, which a dose of trouble does not "
                "change; leave one of the two out"
            )
        made.patient = TermPatient(made.record, s.terms)
    return made
