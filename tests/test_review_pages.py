"""Reviews over HTTP and in a browser: what reviewers see, who may write what, and that it stays."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

import browser
import httpx2
import pytest
from reviewing import SECRET, made, played
from serving import free_port
from test_view import CONFIG, EVIL, WORSE, Reader
from waiting import HANG, until

from workup.core.case import Case, Fact, Truth
from workup.core.episode import (
    Action,
    Completion,
    Ending,
    Episode,
    Message,
    Observation,
    Score,
    Turn,
)
from workup.core.errors import UserError
from workup.retrieval.connections import listening
from workup.runs import Record, Run
from workup.studies.review import form, tables
from workup.studies.review.folder import Review, ReviewPlan, make
from workup.studies.review.form import Question
from workup.studies.review.results import Results
from workup.viewer import app, reviewing
from workup.viewer.guard import HEADERS, WRITING, Gate

pytest.importorskip("uvicorn")

READERS = {"token-of-ada": "Dr Ada", "token-of-bo": "Dr Bo"}


@contextmanager
def serving(review: Review) -> Iterator[str]:
    """The address of the real server."""
    for name in READERS.values():
        review.answers.admit(name)
    with listening("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        gate = Gate(READERS, port, {"localhost"}, WRITING)
        server = app.server(gate.guarded(reviewing.application(review)))
        thread = threading.Thread(target=lambda: server.run(sockets=[sock]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def client(address: str, token: str = "token-of-ada") -> Iterator[httpx2.Client]:
    """A reviewer's browser without script."""
    headers = {"Origin": address}
    with httpx2.Client(base_url=address, timeout=HANG, headers=headers) as own:
        assert own.get(f"/?token={token}").status_code == 303
        yield own


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("runs") / SECRET)


@pytest.fixture
def review(run: Path, tmp_path: Path) -> Review:
    return made(run, tmp_path / "review", pairs=False, cases=3)


def form_of(page: str) -> dict[str, str]:
    """The first answer to every question of a page, and its hidden fields."""
    found: dict[str, str] = {}
    for tag, attributes in Reader(page).elements:
        if tag == "input" and attributes.get("type") in ("hidden", "radio"):
            found.setdefault(str(attributes["name"]), str(attributes["value"]))
    return found


GIVEN = {"as": "Dr Ada", "accuracy": "right", "quality": "4", "safety": ""}


# --- what is seen ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [False, True])
def test_no_page_says_whose_episodes_they_are(run: Path, tmp_path: Path, pairs: bool) -> None:
    review = made(run, tmp_path / "review", pairs=pairs)
    records = [review.records(item) for item in review.items]
    with serving(review) as address, client(address) as ada:
        for path in ("/", *(f"/item/{n}" for n in range(1, len(review.items) + 1)), "/nothing"):
            answer = ada.get(path)
            everything = f"{answer.headers} {answer.url} {answer.text}"
            assert SECRET not in everything
            assert "doctor one" not in everything
            for each in (each for item in records for each in item):
                assert each.episode.case.id not in everything
        for number, item in enumerate(records, start=1):
            text = unescape(ada.get(f"/item/{number}").text)
            for record in item:
                episode = record.episode
                assert episode.case.presentation in text
                assert episode.case.truth.diagnosis in text
                assert ", ".join(episode.answer) in text
                assert all(turn.action.content[0] in text for turn in episode.turns[:-1])
        for name, value in HEADERS.items():
            assert ada.get("/item/1").headers[name] == value


def another(record: Record) -> Record:
    """The same consultation as another doctor's: of another name, verdict, reward, prompt, case."""
    episode, case = record.episode, record.episode.case
    facts = tuple(replace(fact, weight=3 - (fact.weight or 0)) for fact in case.truth.facts)
    truth = replace(case.truth, facts=facts, aliases=("another name",))
    case = replace(case, id=f"other {case.id}", category="others", truth=truth)
    opening = (Message("system", "Think like another doctor."), *episode.opening[1:])
    turns = tuple(
        turn
        if turn.action.kind == "malformed"
        else replace(turn, completion=replace(turn.completion, text="<thought>Mine.</thought>"))
        for turn in episode.turns
    )
    return replace(
        record,
        doctor=f"another {record.doctor}",
        stage="another",
        correct=not record.correct,
        score=Score.at_end(episode, -9.25, another=-9.25),
        measures={"accuracy": 0.125},
        episode=replace(episode, case=case, opening=opening, turns=turns),
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_pages_are_the_same_whoever_played_and_whatever_was_judged(
    run: Path, tmp_path: Path, pairs: bool
) -> None:
    first = made(run, tmp_path / "first", pairs=pairs)
    with Run.open(run) as old, Run.create(tmp_path / "other", CONFIG, {}) as new:
        new.write(another(record) for record in old.episodes())
        names = tuple(new.doctors())
    plan = ReviewPlan(first.form, 6, pairs, 0, names)
    second = make([tmp_path / "other"], plan, tmp_path / "second")
    pages = []
    for review in (first, second):
        with serving(review) as address, client(address) as ada:
            paths = ["/", *(f"/item/{number}" for number in range(1, len(review.items) + 1))]
            answers = [ada.get(path) for path in paths]
            ignored = ("date", "content-length")
            heads = [{k: v for k, v in a.headers.items() if k not in ignored} for a in answers]
            pages.append((heads, [answer.text for answer in answers]))
    assert pages[0] == pages[1]


def test_the_recorded_diagnosis_can_be_left_out(tmp_path: Path) -> None:
    case = Case("c", "Unwell.", Truth("lunar fever", facts=(Fact("f", "moon", "Sees the moon."),)))
    opening = (Message("user", "Unwell."),)
    answer = Turn((), Completion("x"), Action("diagnose", ("a cold",)), Observation(done=True))
    with Run.create(tmp_path / "run", CONFIG, {}) as run:
        run.write([Record("trained", Episode(case, opening, (answer,), Ending.DIAGNOSED))])
    asked = {"q": Question(ask="Fine?", values={"no": 0, "yes": 1})}
    for truth in (True, False):
        plan = ReviewPlan(asked, 5, pairs=False, seed=0, truth=truth)
        review = make([tmp_path / "run"], plan, tmp_path / f"review-{truth}")
        with serving(review) as address, client(address) as ada:
            text = ada.get("/item/1").text
            assert ("lunar fever" in text) is truth
            assert ("Sees the moon." in text) is truth
            assert "a cold" in text
            assert "No question was asked" in text


def hostile(path: Path) -> None:
    """A run whose every text tries to be a page's own."""
    fact = Fact(WORSE, WORSE, WORSE, weight=3)
    answer = Observation((Message("user", WORSE),), (WORSE, EVIL), WORSE)
    said = Completion(WORSE, (1, 2), (-0.5, -0.25))
    with Run.create(path, {**CONFIG, "policy": WORSE}, {"started": WORSE}) as run:
        for doctor in (WORSE, EVIL):
            case = Case(WORSE, WORSE, Truth(WORSE, facts=(fact,)), WORSE, (WORSE,))
            turns = (
                Turn((3,), said, Action("ask", (WORSE,)), answer),
                Turn((3,), said, Action("malformed"), answer),
                Turn((3,), said, Action("diagnose", (WORSE,)), Observation(done=True)),
            )
            episode = Episode(case, (Message("user", WORSE),), turns, Ending.DIAGNOSED, WORSE)
            run.write([Record(doctor, episode, stage=WORSE, correct=True)])


def test_a_hostile_run_shows_as_text(tmp_path: Path) -> None:
    path = tmp_path / WORSE.replace("/", "\\")
    hostile(path)
    asked = {
        "q": Question(ask=WORSE, hint=WORSE, values={WORSE: 0, EVIL: 1}),
        "better": Question(ask=WORSE, pairs=True),
    }
    review = make(
        [path], ReviewPlan(asked, 5, pairs=True, seed=0, doctors=(WORSE, EVIL)), tmp_path / "review"
    )
    with serving(review) as address, client(address) as ada:
        note = {"as": "Dr Ada", "q.A": WORSE, "q.B": EVIL, "better": "A", "note": WORSE}
        assert ada.post("/item/1", data=note).status_code == 303
        for page in ("/", "/item/1", "/item/2"):
            answer = ada.get(page)
            seen = Reader(answer.text)
            assert [found.get("src") for tag, found in seen.elements if tag == "script"] == [
                "/review.js"
            ]
            assert not [tag for tag, _ in seen.elements if tag in ("img", "style", "iframe")]
            names = {name for _, found in seen.elements for name in found}
            assert not [name for name in names if name.startswith("on") or name == "style"]
            assert "49" not in re.findall(r"onerror=alert\(2\)>(\d+)", answer.text)
        words = "".join(Reader(ada.get("/item/1").text).words)
        assert words.count("alert(1)") > 10


def test_restricted_cases_are_withheld(tmp_path: Path) -> None:
    review = made(played(tmp_path / "closed", restricted=True), tmp_path / "review")
    place = app.ServerAddress("127.0.0.1", 0)
    with pytest.raises(UserError, match="--restricted"):
        reviewing.serve_review(review.path, ("Ada",), place, restricted=False)
    away = app.ServerAddress("0.0.0.0", 0)
    with pytest.raises(UserError, match="this machine alone"):
        reviewing.serve_review(review.path, ("Ada",), away, restricted=True)
    assert not review.answers.reviewers()
    figures, marks = tmp_path / "figures.json", tmp_path / "marks.csv"
    results = Results.of(review)
    tables.write_figures(results, figures)
    tables.write_csv(results, marks)
    assert [file.stat().st_mode & 0o777 for file in (figures, marks)] == [0o600] * 2


# --- who writes what ------------------------------------------------------------------------------


def test_reviewers_neither_see_nor_write_what_others_say(review: Review) -> None:
    with (
        serving(review) as address,
        client(address) as ada,
        client(address, "token-of-bo") as bo,
    ):
        sent = ada.post("/item/1", data={**GIVEN, "note": "mine alone"})
        assert sent.headers["location"] == "/item/2"
        assert "mine alone" in ada.get("/item/1").text
        assert "checked" in ada.get("/item/1").text
        assert "1 of 6" in ada.get("/").text
        for path in ("/", "/item/1"):
            text = bo.get(path).text
            assert "mine alone" not in text
            assert "checked" not in text
            assert "0 of 6" in text
            assert "Dr Ada" not in text
        forged = bo.post("/item/1", data=GIVEN)
        assert forged.status_code == 409
        assert "another reviewer" in forged.text
        last = review.answers.standing("Dr Ada").last
        assert last is not None
        stolen = {"as": "Dr Bo", "entry": str(last.id)}
        assert bo.post("/undo", data=stolen).headers["location"] == "/"
    assert review.answers.standing("Dr Ada").last == last
    assert not review.answers.standing("Dr Bo").entries


@pytest.mark.long
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Cookie": ""}, 403),
        ({"Cookie": "workup_view=token-of-ada"}, 403),
    ],
)
def test_forms_from_elsewhere_are_refused(
    review: Review, headers: dict[str, str], status: int
) -> None:
    with serving(review) as address, client(address) as ada:
        answer = ada.post("/item/1", data=GIVEN, headers=headers)
        assert answer.status_code == status
        without = httpx2.post(
            f"{address}/item/1",
            data=GIVEN,
            headers={"Cookie": "; ".join(f"{k}={v}" for k, v in ada.cookies.items())},
        )
        assert without.status_code == 403
        assert "a page of this server" in without.text
    assert not review.answers.standing("Dr Ada").entries


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "data", "status", "told"),
    [
        ("/item/1", {"quality": "6"}, 400, "is no answer"),
        ("/item/1", {"as": "Dr Bo"}, 409, "another reviewer"),
        ("/item/1", {"note": "x" * 10_001}, 400, "at most 10,000"),
        ("/item/1", {"note": "x" * 70_000}, 413, "at most 65,536"),
        ("/item/99", {}, 404, "no item 99"),
        ("/item/0", {}, 404, "no item 0"),
        (f"/item/{'9' * 5_000}", {}, 404, "no item 9"),
        ("/item/²", {}, 404, "no item"),
        ("/undo", {"entry": "x"}, 400, "names no entry"),
        ("/undo", {"entry": "9" * 40}, 400, "names no entry"),
        ("/undo", {"entry": "1"}, 303, ""),
        ("/", {}, 405, ""),
    ],
)
def test_a_wrong_form_is_told_in_one_line(
    review: Review, path: str, data: dict[str, str], status: int, told: str
) -> None:
    with serving(review) as address, client(address) as ada:
        answer = ada.post(path, data={**GIVEN, **data})
        assert answer.status_code == status
        assert told in answer.text
        assert ada.get("/item/99").status_code == 404
        assert ada.get("/undo").status_code == 405
    assert not review.answers.standing("Dr Ada").entries


def test_no_question_can_have_the_name_of_another_field(review: Review) -> None:
    with serving(review) as address, client(address) as ada:
        page = ada.get("/item/1").text
    tags = ("input", "textarea", "button")
    named = {a.get("name") for tag, a in Reader(page).elements if tag in tags}
    assert named - {None, "entry"} == {*form.RESERVED, *review.form}


def test_an_incomplete_form_comes_back_as_it_was(review: Review) -> None:
    with serving(review) as address, client(address) as ada:
        answer = ada.post("/item/2", data={"as": "Dr Ada", "quality": "4", "note": "half done"})
        assert answer.status_code == 400
        text = unescape(answer.text)
        assert "2 answers are missing" in text
        assert "half done" in text
        assert re.findall(r'value="(\w*)" checked', text) == ["4"]
        assert not review.answers.standing("Dr Ada").entries


def test_a_review_without_script_from_the_first_item_to_the_last(review: Review) -> None:
    with serving(review) as address, client(address) as ada:
        page, seen = ada.get("/item/1"), []
        while "/item/" in str(page.url):
            number = int(str(page.url).rpartition("/")[2])
            seen.append(number)
            act = {"act": "skip"} if number == 4 else {"act": "save"}
            sent = ada.post(f"/item/{number}", data={**form_of(page.text), **act})
            page = ada.get(sent.headers["location"])
        assert seen == [1, 2, 3, 4, 5, 6]
        assert "All items are answered or skipped" in page.text
        assert "6 of 6, 1 skipped" in page.text
        back = ada.post("/undo", data=form_of(page.text))
        assert back.headers["location"] == "/item/6"
        assert "5 of 6" in ada.get("/").text
        revised = ada.post("/item/2", data={**GIVEN, "quality": "1"})
        assert revised.headers["location"] == "/item/6"  # the only one that is open
    entries = review.answers.standing("Dr Ada").entries
    assert entries[2].answers == {"accuracy": "right", "quality": "1", "safety": None}
    assert entries[4].skipped


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.running() as found:
        yield found


def opened(chromium: browser.Browser, address: str, token: str) -> browser.Tab:
    tab = browser.Tab(chromium)
    tab.size(1280, 900)
    tab.open(f"{address}/?token={token}")
    return tab


@pytest.mark.long
def test_a_pair_is_reviewed_by_keyboard_alone(
    run: Path, tmp_path: Path, chromium: browser.Browser
) -> None:
    review = made(run, tmp_path / "review", cases=3)
    with serving(review) as address:
        ada = opened(chromium, address, "token-of-ada")
        ada.press_and_load("Enter")
        assert "Item 1 of 3" in ada.text()
        ada.press("3", "1", "5", "k", "4", "0", "1", "2", "3")  # k: back to a question
        ada.press("n", *"slow 1", "Escape")
        ada.press_and_load("Enter")
        assert "Item 2 of 3" in ada.text()
        ada.press_and_load("s")
        assert "Item 3 of 3" in ada.text()
        ada.press_and_load("u")
        assert "Item 2 of 3" in ada.text()
        ada.press("1")
        ada.press("Enter")
        until_shown(ada, "6 answers are missing")
        assert "Item 2 of 3" in ada.text()
        assert ada.js("document.querySelectorAll(':checked').length") == 1
        ada.press_and_load("[")
        assert ada.js("document.querySelector('textarea').value") == "slow 1"
        ada.press_and_load("h")
        assert "1 of 3" in ada.text()
        # The browser itself logs the answer 400 to the incomplete form.
        assert [each for each in ada.complaints if "400" not in each] == []
        bo = opened(chromium, address, "token-of-bo")
        assert "0 of 3" in bo.text()
    (entry,) = review.answers.standing("Dr Ada").entries.values()
    assert entry.note == "slow 1"
    assert entry.answers == {
        "accuracy.A": "right",
        "accuracy.B": "wrong",
        "quality.A": "4",
        "quality.B": None,
        "safety.A": "no",
        "safety.B": "yes",
        "better": "B",
    }


def until_shown(tab: browser.Tab, text: str) -> None:
    until(lambda: text in tab.text())


@pytest.mark.long
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("pairs", [False, True])
def test_pages_fit_the_window(
    tmp_path: Path, chromium: browser.Browser, width: int, pairs: bool
) -> None:
    path = tmp_path / "run"
    hostile(path)
    with Run.open(path) as run:  # a text without a space in it
        record = run.episodes()[0]
        long = replace(record.episode.turns[0], completion=Completion("x" * 300))
        turns = (replace(long, action=Action("ask", ("x" * 300,))), *record.episode.turns[1:])
        run.write([replace(record, episode=replace(record.episode, turns=turns))])
    asked = {"q": Question(ask=WORSE, values={"one " * 10: 0, "x" * 60: 1})}
    if pairs:
        asked["better"] = Question(ask=WORSE, pairs=True)
    review = make(
        [path], ReviewPlan(asked, 5, pairs, 0, doctors=(WORSE, EVIL)), tmp_path / "review"
    )
    with serving(review) as address:
        tab = opened(chromium, address, "token-of-ada")
        tab.size(width, 900)
        for page in ("/", "/item/1"):
            tab.open(address + page)
            assert tab.js("document.documentElement.scrollWidth") <= width
            assert not tab.complaints


# --- kill -9 --------------------------------------------------------------------------------------


def started(review: Path, port: int, cwd: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """The command in a process of its own, and the two links that it prints."""
    script = Path(sys.executable).with_name("workup")
    names = ("--reviewer", "Dr Ada", "--reviewer", "Dr Bo")
    words = [str(script), "view", "--review", str(review), *names, "--port", str(port)]
    process = subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [process.stdout.readline().split()[0] for _ in range(2)]


@pytest.mark.long
def test_what_was_acknowledged_outlives_a_kill(
    run: Path, tmp_path: Path, chromium: browser.Browser
) -> None:
    review, port = made(run, tmp_path / "review", pairs=False, cases=12), free_port()
    last = len(review.items)
    process, links = started(review.path, port, tmp_path)
    origin = {"Origin": f"http://127.0.0.1:{port}"}
    acknowledged: dict[str, list[int]] = {"Dr Ada": [], "Dr Bo": []}
    enough = threading.Event()

    def work(name: str, link: str) -> None:
        with httpx2.Client(timeout=HANG, headers=origin) as own:
            own.get(link)
            for number in range(1, last):
                try:
                    page = f"http://127.0.0.1:{port}/item/{number}"
                    answer = own.post(page, data={**GIVEN, "as": name, "note": f"{number}"})
                except httpx2.TransportError:
                    return
                assert answer.status_code == 303
                acknowledged[name].append(number)
                if number == 8:
                    enough.set()

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(acknowledged, links, strict=True)
    ]
    tab = browser.Tab(chromium)
    tab.open(links[0].replace("/?", f"/item/{last}?"))
    tab.press("3", "4", "1")
    for thread in threads:
        thread.start()
    assert enough.wait(HANG)
    process.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join(HANG)
    process.wait()
    tab.press("Enter")
    until_shown(tab, "the server does not answer")
    assert tab.js("document.querySelectorAll(':checked').length") == 3
    for name, numbers in acknowledged.items():
        entries = review.answers.standing(name).entries
        assert set(numbers) <= set(entries) <= {*numbers, len(numbers) + 1}
        assert all(entries[number].note == str(number) for number in numbers)
    assert last not in review.answers.standing("Dr Ada").entries
    process, again = started(review.path, port, tmp_path)
    try:
        assert again == links
        tab.press_and_load("Enter")  # the page that could not be sent is sent now
    finally:
        process.kill()
        process.wait()
    assert review.answers.standing("Dr Ada").entries[last].answers["quality"] == "4"
