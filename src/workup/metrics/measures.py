"""The measures of every episode: the numbers that evaluations average and plot."""

from __future__ import annotations

from collections.abc import Mapping

from workup.core.episode import MALFORMED, Ending, Episode, Observation
from workup.core.ports import Environment
from workup.environments.base.anchors import BayesDiagnoser
from workup.environments.base.lists import EXAMINED, candidates
from workup.environments.base.searching import SEARCH
from workup.metrics import facts
from workup.metrics.documents import DOC_HIT, FIRST_HOP, HIT_IF_SEARCHED, doc_hit, first_hop
from workup.metrics.metric import ANY, COUNT, PAGED, TABLES, Caveat, Metric, Where
from workup.metrics.reading import EXACT_READER, read_right

LISTS = "differential"  # the further measure that environments of ranked lists take by themselves
SEARCHES = Metric(
    "searches",
    "how many searches the doctor wrote; one in the last turn, which gets no reply, counts too",
    range=COUNT,
    rank=512,
    where=PAGED,
)
DDX = Metric(
    "ddx",
    "how many candidates the first turn ranks",
    "#DDx",
    undefined="where no list could be read",
    range=COUNT,
    rank=220,
    curve="Candidates in the first list (#DDx)",
)
METRICS = (
    Metric(
        "accuracy",
        "share of the diagnoses that the judge found right",
        rank=10,
        where=TABLES | Where.LIVE,
        always=True,
        macro="diagnosis",
        curve="Accuracy",
    ),
    EXACT_READER,
    Metric(
        "macro_accuracy",
        "accuracy of each true diagnosis, averaged over the diagnoses",
        "macro",
        rank=20,
        always=True,
    ),
    Metric(
        "questions",
        "actions before the diagnosis, unreadable ones included",
        range=COUNT,
        digits=1,
        rank=30,
        where=TABLES | Where.LIVE,
        always=True,
        curve="Questions per case",
    ),
    *facts.METRICS,
    Metric(
        "return",
        "sum of the episode's rewards; compare it only between runs with one reward",
        undefined="where no reward was paid",
        range=ANY,
        rank=80,
        where=Where.PAGES,
    ),
    DDX,
    # Found by a reward (`Score.measures`): that of `workup.methods.medr3`, of `.promed`.
    Metric(
        "truncated_graph",
        "share of the episodes whose graph has more paths than are enumerated, so that R_logical "
        "counts the shorter ones alone",
        "graphs truncated",
        undefined="where no graph was scored",
        rank=230,
        where=PAGED,
    ),
    Metric(
        "giveaways",
        "facts of the case that contain the answer, so that their Shapley values say nothing about "
        "evidence",
        undefined="where no facts were weighed",
        range=COUNT,
        digits=1,
        rank=235,
        where=Where.PAGES,
    ),
    FIRST_HOP,
    DOC_HIT,
    HIT_IF_SEARCHED,
    SEARCHES,
    Metric(
        "malformed",
        "share of the turns that could not be read as an action",
        undefined="where there was no turn",
        rank=55,
        where=Where.NOWHERE,
        caveat=Caveat(
            0.5,
            "{share} of its turns could not be read, so its accuracy says more about the format "
            "than about its diagnoses (a transcript shows what it wrote)",
        ),
    ),
    *(
        Metric(
            ending.name.lower(), f"share of the episodes that ended: {ending}", where=Where.NOWHERE
        )
        for ending in Ending
    ),
    Metric(
        "cost",
        "sum of the costs of what was asked; 1 each where neither the cases nor a table of prices "
        "(`evaluation.prices`) name any",
        range=COUNT,
        rank=90,
        where=Where.PAGES | Where.PAIRED,
    ),
)


def measure(
    episode: Episode,
    correct: bool,
    environment: Environment,
    costs: Mapping[str, float] | None = None,
    reader: BayesDiagnoser | None = None,
) -> dict[str, float | None]:
    """Every measure of one episode by name; None if it is undefined, so that averages leave it out.

    `environment` says what can be measured: whether findings can be asked for, and whether
    documents can be searched. `reader` is the exact reader, where there is one and it is wanted.
    `costs` are by item name; a question that reaches no item with a cost counts that of "", or 1.
    """
    asks, costs = environment.about.asks, costs or {}
    malformed = sum(turn.action.kind == MALFORMED for turn in episode.turns)
    return {
        "accuracy": float(correct),
        **({EXACT_READER.name: float(read_right(episode, reader))} if reader else {}),
        "questions": float(episode.questions),
        "recall": facts.criticality_recall(episode) if asks and facts.hidden(episode) else None,
        "coverage": facts.coverage(episode) if asks else None,
        "critical": facts.critical_ratio(episode),
        "noise": facts.noise_ratio(episode),
        "repeats": facts.repeats(episode),
        **(facts.answers(episode) if asks else {}),
        "malformed": malformed / len(episode.turns) if episode.turns else None,
        **{ending.name.lower(): float(episode.ending is ending) for ending in Ending},
        **(_retrieval(episode) if environment.about.searches else {}),
        **({"ddx": ddx(episode)} if LISTS in environment.about.measures else {}),
        "cost": sum(_cost(turn.observation, costs) for turn in episode.gathered),
    }


def _cost(seen: Observation, costs: Mapping[str, float]) -> float:
    """What a turn cost: of several examinations each, those without a result as any other."""
    other = costs.get("", 1.0)
    if not seen.sources:
        return costs.get(seen.item, other)
    items = [name for name in seen.item.split(EXAMINED) if name]
    without = max(0, len(seen.sources) - len(items))
    return sum(costs.get(name, other) for name in items) + other * without


def ddx(episode: Episode) -> float | None:
    """#DDx: how many candidates the first turn ranks (ES-14); None where no list could be read."""
    first = candidates(episode.turns[0].action) if episode.turns else ()
    return float(len(first)) or None


def _retrieval(episode: Episode) -> dict[str, float | None]:
    hit = doc_hit(episode)
    made = sum(turn.action.kind == SEARCH for turn in episode.turns)
    first = first_hop(episode)
    return {
        **({} if first is None else {FIRST_HOP.name: first}),
        "doc_hit": hit,
        "hit_if_searched": hit if episode.passages else None,
        "searches": float(made),
    }
