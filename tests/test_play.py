"""A person at the keyboard: what words become, and what costs a turn.

Tested are also what must not show before the end, and the figures after it.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from handmade import CASES, DISEASES, ITEMS, POSITIVE, SOURCE, Script
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from waiting import HANG

from workup import environments
from workup.cases import open_source
from workup.cli.play import play
from workup.core.case import Case, Fact, Source, Truth
from workup.core.episode import Ending
from workup.core.errors import RolloutError, UserError
from workup.core.ports import Instruments
from workup.environments.base.recorded import UNKNOWN
from workup.environments.consultation import Consultation
from workup.methods.craft import Settings as CraftSettings
from workup.methods.craft import craft_reward
from workup.rl.rollout import TokenDoctor
from workup.roles.judges.exact import ExactJudge
from workup.runs import Record

FREE = Source(
    "free",
    (),
    (
        Case(
            "x",
            "A woman of 30 with joint pain.",
            Truth(
                "Reactive arthritis",
                facts=(
                    Fact("a", "", "She had diarrhoea last week."),
                    Fact("b", "", "The knee is warm."),
                ),
            ),
            question="Which is most likely?",
            options=("Gout", "Reactive arthritis", "Lyme disease"),
        ),
    ),
)
OPEN = replace(FREE, test=(replace(FREE.test[0], options=()),))


class Screen:
    """A console whose output can be read, and a keyboard with the lines to type."""

    def __init__(self, *lines: str, width: int = 80, colour: bool = False) -> None:
        self.stream = io.StringIO()
        self.console = Console(
            file=self.stream,
            width=width,
            highlight=False,
            force_terminal=colour,
            color_system="truecolor" if colour else None,
        )
        self.lines, self.prompts = iter(lines), []

    def ask(self, prompt: str) -> str:
        self.prompts.append((prompt, self.text))
        try:
            return next(self.lines)
        except StopIteration:
            raise EOFError from None

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def folded(self) -> str:
        """What is shown, on one line."""
        return " ".join(self.text.split())

    def play(self, source: Source = SOURCE, index: int = 1, **more: object) -> list[Record]:
        return play(source, index=index, console=self.console, ask=self.ask, **more)  # type: ignore[arg-type]


def asked(record: Record) -> list[str]:
    return [turn.completion.text for turn in record.episode.turns]


# --- what words become ---


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("fever", "<ask>fever</ask>"),
        ("  FEVER ", "<ask>fever</ask>"),
        ("have you had a fever?", "<ask>fever</ask>"),
        ("Is lipase raised?", "<test>lipase</test>"),
        ("5", "<test>lipase</test>"),
        ("<examine>fever</examine>", "<examine>fever</examine>"),
        ("<think>hot?</think><ask>fever</ask>", "<ask>fever</ask>"),
        ("chest film", "<image>chest film</image>"),
        ("sputm", "<ask>sputum</ask>"),  # one letter off: the consultation itself reads it as that
    ],
)
def test_plain_words_numbers_and_the_grammar_are_understood(line: str, action: str) -> None:
    records = Screen(line, "dx Flu").play()
    assert asked(records[0]) == [action, "<diagnose>Flu</diagnose>"]


@pytest.mark.parametrize(
    "line", ["dx Pneumonia", "diagnose pneumonia", "DX 2", "<diagnose>Pneumonia</diagnose>"]
)
def test_the_diagnosis_is_understood(line: str) -> None:
    records = Screen(line).play()
    assert asked(records[0]) == ["<diagnose>Pneumonia</diagnose>"]
    assert records[0].correct


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("?", "Laboratory (1) 5 lipase"),
        ("items", "Imaging (1) 6 chest film"),
        ("? chest", "6 chest film What does the chest film show?"),
        ("?lip", "5 lipase Is lipase raised?"),
        ("? zzz", "Nothing here is called 'zzz'"),
        ("help", "the grammar that a policy writes"),
        ("diagnoses", "Diagnoses (3) 1 Flu 2 Pneumonia 3 Pancreatitis"),
        ("diagnoses pan", "Diagnoses (1 of 3) 3 Pancreatitis"),
        ("dx", "Diagnoses (3)"),
        ("fevrish", "Nothing here is called 'fevrish'. Near it: 1 fever Do you have a fever?"),
        ("hob", "'hob' may mean: 7 hobby"),
        ("fever or crackles", "'fever or crackles' may mean: "),
        ("qqq", "Nothing here is called 'qqq'. No turn was used."),
        ("99", "Nothing here is called '99'."),
        ("<ask>fever", "No complete action."),
        ("!?", "No turn was used."),
        ("   ", ""),
        ("dx gout flare", "No diagnosis is called 'gout flare' here; `diagnoses` lists all 3."),
    ],
)
def test_commands_and_what_is_not_understood_cost_no_turn(line: str, shown: str) -> None:
    screen = Screen(line, "dx Flu")
    assert asked(screen.play()[0]) == ["<diagnose>Flu</diagnose>"]
    assert shown in screen.folded
    assert [prompt for prompt, _ in screen.prompts] == ["1/10 > ", "1/10 > "]


def test_help_tells_what_can_be_typed_here() -> None:
    listed = Screen("help", "dx Flu")
    listed.play()
    assert "ask for number 17" in listed.folded
    assert "name number 3 of the diagnoses" in listed.folded
    assert "search the library" not in listed.folded
    free = Screen("help", "dx reactive arthritis", "y")
    free.play(OPEN, 0)
    assert "ask for one thing; costs a turn" in free.folded
    assert "number" not in free.folded.partition("costs a turn")[2]


def test_a_question_asked_twice_is_answered_again_for_nothing() -> None:
    screen = Screen("crackles", "What is heard over the lungs?", "4", "dx Flu")
    assert asked(screen.play()[0]) == ["<examine>crackles</examine>", "<diagnose>Flu</diagnose>"]
    assert screen.folded.count("You asked that in turn 1.") == 2
    assert screen.prompts[-1][1].count("Yes: crackles.") == 3


def test_examinations_have_numbers_and_are_ordered_once() -> None:
    source, module = open_source("clinic:xs"), environments.load("evidence")
    environment = module.open(source, module.Settings(max_turns=10))
    item = source.items[4].name
    screen = Screen("5", item.upper(), "dx " + "9" * 5_000, "dx 1")
    record = screen.play(source, 3, environment=environment)[0]
    assert record.episode.turns[0].action.content == (item,)
    assert screen.text.count("You ordered that in turn 1.") == 1


def test_a_misspelt_diagnosis_is_asked_about() -> None:
    screen = Screen("dx pnumonia", "n", "dx pnumonia", "", "dx pnumonia", "Y")
    (record, *_) = screen.play()
    assert record.episode.answer == ("Pneumonia",)
    assert len(record.episode.turns) == 1
    assert "Did you mean 'Pneumonia'?" in screen.folded


def test_open_answers_are_asked_about_and_options_have_numbers() -> None:
    screen = Screen("dx reactiv arthritis", "n", "dx reactive arthritis", "y")
    assert screen.play(OPEN, 0)[0].correct
    assert "spelling counts" in screen.folded
    screen = Screen("diagnoses", "dx 2")
    assert screen.play(FREE, 0)[0].correct
    assert "2 Reactive arthritis" in screen.prompts[0][1]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(max_size=60)
        | st.sampled_from(["fever", "?", "dx flu", "dx x", "y", "<ask>", "</ask>", "1"]),
        max_size=14,
    )
)
def test_any_typing_makes_well_formed_turns(lines: list[str]) -> None:
    records = Screen(*lines, width=40).play()
    for turn in records[0].episode.turns if records else ():
        assert turn.action.errors == 0
        assert turn.action.kind != "malformed"
        assert turn.observation.item or turn.action.kind == "diagnose"


# --- what must not show before the end ---


def until_the_end(source: Source, *lines: str) -> str:
    screen = Screen(*lines, colour=True)
    screen.play(source, 1)
    return screen.prompts[-1][1]


def test_criticality_does_not_show_while_playing() -> None:
    lines = ("?", "crackles", "lipase", "lungz", "chest film", "dx Pneumonia")
    for answer in ("Yes: crackles.", "Normal lipase.", "Yes: chest film."):
        assert f"\n  {answer}\n" in until_the_end(
            SOURCE, *lines
        )  # no escape code before or after it
    heavy = CASES[1]
    light = replace(
        heavy,
        truth=replace(
            heavy.truth, facts=tuple(replace(one, weight=0) for one in heavy.truth.facts)
        ),
    )
    assert until_the_end(SOURCE, *lines) == until_the_end(
        replace(SOURCE, test=(light, light)), *lines
    )


def test_the_truth_does_not_show_while_playing() -> None:
    shown = until_the_end(SOURCE, "?", "fever", "crackles", "dx Flu")
    assert "neumonia" not in shown
    assert "chest film." not in shown
    assert CASES[1].id not in shown


def test_a_case_cannot_steer_the_terminal() -> None:
    evil = "\x1b[31m\x9b2J\u202eevil\x07"
    items = tuple(replace(item, question=item.question + evil) for item in ITEMS)
    truth = Truth(
        "Flu" + evil,
        (evil,),
        (evil,),
        facts=(Fact("fever", "fever", evil, weight=3), Fact("cough", "cough", evil, weight=0)),
    )
    source = replace(
        SOURCE, test=(Case("e", evil, truth, options=(evil,)),), items=items, knowledge=None
    )
    screen = Screen("fever", "qqq" + evil, "?", "? fever", "dx" + evil, "dx Flu")
    screen.play(source, 0, against=Script(f"<ask>{evil}</ask>"))
    assert "What there was to find" in screen.text
    assert not set(screen.text) & {"\x1b", "\x9b", "\u202e", "\x07"}


# --- the review ---


def test_square_brackets_of_a_finding_are_shown_as_they_are() -> None:
    facts = (Fact("a", "", "The [name withheld] is back.[/b]"),)
    truth = replace(FREE.test[0].truth, facts=facts)
    screen = Screen("fever", "dx 1")
    screen.play(replace(FREE, test=(replace(FREE.test[0], truth=truth),)), 0)
    assert "The [name withheld] is back.[/b]" in screen.text


def test_worth_and_reward_are_those_of_the_equations() -> None:
    screen = Screen("crackles", "fever", "dx Pneumonia")
    records = screen.play()
    # weights 3, 3, 2; found: 3 → CR = 3/8, t = 2 questions, T = 10
    reward = (1 * 3 / 8 + 0.5) * 1 - 0.1 * 2 / 10
    assert records[0].score.total == pytest.approx(reward)
    assert re.search(r"turn 1 +Yes: crackles\. +3 pathognomonic +\.38 +\+\.38", screen.text)
    assert re.search(r"missed +Yes: chest film\. +3 pathognomonic +\.38 +\+\.38", screen.text)
    assert re.search(r"missed +Yes: sputum\. +2 significant +\.25 +\+\.25", screen.text)
    assert f"= (1·.38 + 0.5)·1 − 0.1·2/10 = {reward:.2f}" in screen.text
    scores = asyncio.run(
        craft_reward(CraftSettings(), 10)(
            (tuple(r.episode for r in records),), Instruments(ExactJudge())
        )
    )
    assert [score.total for score in scores[0]] == [record.score.total for record in records]
    rewards = re.search(r"^reward +(\S+) +(\S+) +(\S+)", screen.text, re.M).groups()
    assert rewards == tuple(f"{record.score.total:.2f}".replace("-", "−") for record in records)


def test_a_wrong_diagnosis_tells_the_truth_and_what_it_would_have_been_worth() -> None:
    case = replace(
        CASES[1], truth=replace(CASES[1].truth, codes=("J18.9",), aliases=("lung infection",))
    )
    screen = Screen("crackles", "dx Flu")
    records = screen.play(replace(SOURCE, test=(case,)), 0)
    assert records[0].correct is False
    assert (
        "Wrong: you said Flu; it is Pneumonia (J18.9). also called lung infection" in screen.folded
    )
    assert "if right" in screen.text
    assert "·0 − 0.1·1/10 = −0.01" in screen.text


def test_running_out_of_turns_shows_the_last_answer_and_the_penalty() -> None:
    screen = Screen("fever", "crackles")
    records = screen.play(environment=Consultation(ITEMS, DISEASES, 2))
    assert records[0].episode.ending is Ending.OUT_OF_TURNS
    assert "This is your last action" in screen.prompts[1][1]
    assert "Yes: crackles." in screen.text.split("No diagnosis within 2 actions")[0]
    assert records[0].score.total == pytest.approx(-0.1 * 2 / 2 - 0.2)
    assert "− 0.2 = −0.30" in screen.text


def test_irrelevant_findings_are_listed_only_where_they_were_asked_for() -> None:
    screen = Screen("lipase", "dx Pancreatitis")
    screen.play(index=2)
    assert "not asked for, and irrelevant: 1 more" in screen.text
    assert "hobby." not in screen.text.split("Who asked what")[0]
    screen = Screen("hobby", "dx Pancreatitis")
    screen.play(index=2)
    assert re.search(r"turn 1 +Yes: hobby\. +0 irrelevant", screen.text)
    screen = Screen("dx Flu")
    screen.play(index=3)
    assert "There was nothing to find" in screen.text


def test_the_table_shows_what_everyone_asked() -> None:
    screen = Screen("lipase", "crackles", "fever", "dx Pneumonia", width=120)
    records = screen.play(
        against=Script(
            "<ask>sputum</ask>", "gibberish", "<ask>sputum</ask>", "<diagnose>Gout</diagnose>"
        )
    )
    assert [record.doctor for record in records] == [
        "you",
        "policy",
        "greedy information",
        "random doctor",
    ]
    rows = {
        row[0]: row[1:]
        for line in screen.text.splitlines()
        if (row := re.split(r" {2,}", line.strip())) and len(row) == 5
    }
    assert rows["1"][:2] == ["· lipase", "2 sputum"]
    assert rows["2"][:2] == ["3 crackles", "· (nothing readable)"]
    # what was found before is nothing new
    assert rows["3"][:2] == ["· fever", "· sputum"]
    assert rows["diagnosis"][:3] == ["✓ Pneumonia", "✗ Gout", "✓ Pneumonia"]
    assert rows["questions"] == [str(record.episode.questions) for record in records]
    assert rows["CR"][:2] == [".38", ".25"]


def test_colours_are_the_criticality_of_what_was_revealed() -> None:
    screen = Screen("crackles", "sputum", "dx Pneumonia", colour=True)
    screen.play()
    after = screen.text.split("Who asked what")[1]
    assert "\x1b[1;38;2;213;94;0m3 crackles" in after
    assert "\x1b[38;2;230;159;0m2 sputum" in after


def chances(positive: set[str], negative: set[str]) -> list[float]:
    """The posterior multiplied out by hand.

    Without evidence on the cough and its sub-question, items are independent.
    """
    weights = [
        prior
        * math.prod(POSITIVE[name][place] for name in positive)
        * math.prod(1 - POSITIVE[name][place] for name in negative)
        for place, prior in enumerate((0.5, 0.3, 0.2))
    ]
    return [weight / sum(weights) for weight in weights]


def bits(positive: set[str], negative: set[str], name: str) -> float:
    def entropy(values: list[float]) -> float:
        return -sum(value * math.log2(value) for value in values if value)

    now = chances(positive, negative)
    yes = sum(value * POSITIVE[name][place] for place, value in enumerate(now))
    after = yes * entropy(chances(positive | {name}, negative)) + (1 - yes) * entropy(
        chances(positive, negative | {name})
    )
    return entropy(now) - after


def test_the_posterior_after_each_question_is_exact() -> None:
    screen = Screen("fever", "lipase", "dx Flu")
    screen.play(index=2)
    shown = screen.text.split("What the evidence said")[1]
    found = re.findall(r"(\d?\.\d\d) [█▏▎▍▌▋▊▉ ]{10} (Flu|Pneumonia|Pancreatitis)( ←)?", shown)
    evidence = [(set(), set()), (set(), {"fever"}), ({"lipase"}, {"fever"})]
    for step, seen in enumerate(evidence):
        rows = found[3 * step : 3 * step + 3]
        exact = dict(zip(DISEASES, chances(*seen), strict=True))
        assert [name for _, name, _ in rows] == sorted(exact, key=exact.get, reverse=True)
        assert all(
            float(value) == pytest.approx(exact[name], abs=0.00501) for value, name, _ in rows
        )
        assert {name: bool(mark) for _, name, mark in rows} == {
            name: name == "Pancreatitis" for name in DISEASES
        }
    assert f"{bits(set(), set(), 'fever'):.2f} bits expected" in shown
    assert f"{bits(set(), {'fever'}, 'lipase'):.2f} bits expected" in shown


def test_the_truth_is_shown_even_where_it_is_improbable() -> None:
    source = open_source("clinic:s")
    for index in range(100):
        screen = Screen("cough", "dx asthma", width=100)
        screen.play(source, index)
        first = screen.text.split("What the evidence said")[1].split("1 cough")[0]
        assert "←" in first
        if len(re.findall(r"\.\d\d ", first)) == 4:
            return
    pytest.fail(
        "among a hundred patients the truth was always one of the three most probable diagnoses"
    )


# --- sources without this and that ---


def test_a_free_text_record_leaves_out_what_it_cannot_tell() -> None:
    screen = Screen("?", "did she have diarrhoea?", "fever", "fever", "dx 1")
    records = screen.play(FREE, 0)
    assert [record.doctor for record in records] == ["you"]
    assert records[0].score is None
    assert records[0].episode.questions == 2
    assert UNKNOWN in screen.text
    assert re.search(r"turn 1 +She had diarrhoea last week\.", screen.text)
    assert re.search(r"missed +The knee is warm\.", screen.text)
    assert "Nobody has scored how critical these findings are" in screen.folded
    assert "comes without a model of its cases" in screen.folded
    assert not re.search("Who asked|evidence said|reward \\(|pathognomonic", screen.text)


def test_a_policy_plays_a_free_text_record_too() -> None:
    screen = Screen("knee?", "dx 2")
    records = screen.play(
        FREE, 0, against=Script("<examine>the knee</examine>", "<diagnose>Gout</diagnose>")
    )
    assert [record.correct for record in records] == [True, False]
    assert re.search(r"1 +\+ knee\? +\+ the knee", screen.text)


def test_a_doctor_that_fails_is_no_defect() -> None:
    class Gone:
        async def act(self, *_: object) -> object:
            raise RolloutError("endpoint gave up")

    screen = Screen("fever", "dx Flu")
    records = screen.play(against=Gone())
    assert records[1].correct is None
    assert re.search(r"diagnosis +✗ Flu +failed", screen.text)


def test_an_untrained_policy_takes_the_chair() -> None:
    from workup.models.local import LocalPolicy
    from workup.models.tiny import TinySettings, build

    environment = Consultation(ITEMS, DISEASES)
    short = Consultation(ITEMS, DISEASES, 2)
    source = replace(SOURCE, phrases=tuple(item.name for item in ITEMS) + DISEASES)
    policy = TokenDoctor(
        LocalPolicy(
            *build(
                source, environment.phrases, TinySettings(width=16, layers=1, context=2048), seed=1
            )
        )
    )
    screens = [Screen("fever", "dx Flu"), Screen("fever", "dx Flu")]
    records = [screen.play(source, against=policy, environment=short) for screen in screens]
    assert records[0][1].episode.turns[0].completion.tokens
    assert screens[0].text == screens[1].text


DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
opened = cache(open_source)
SPECS = [*(f"clinic:{subset}" for subset in ("xs", "s", "m", "full", "pathology"))]
SPECS += [f"ddxplus:{DATA / 'ddxplus'}", f"mediq:{DATA / 'mediq_dev.jsonl'}"]


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("spec", SPECS)
def test_every_source_can_be_played_and_fits_the_screen(spec: str, width: int) -> None:
    path = Path(spec.partition(":")[2])
    if path.is_absolute() and not path.exists():
        pytest.skip("the released files are not here")
    source = opened(spec)
    lines = [item.name for item in source.items[:5]] or ["fever", "blood pressure"]
    screen = Screen(
        "?", *lines, f"dx {source.diagnoses[3] if source.diagnoses else 2}", width=width
    )
    records = play(
        source,
        seed=5,
        against=Script(*(f"<ask>{line}</ask>" for line in lines)),
        console=screen.console,
        ask=screen.ask,
    )
    assert len(records) == (4 if source.knowledge else 2)
    assert max(map(len, screen.text.splitlines())) <= width


# --- which case, and leaving ---


def test_the_case_is_chosen_by_number_or_by_seed() -> None:
    seen = set()
    for seed in range(40):
        screen = Screen()
        assert play(SOURCE, seed=seed, console=screen.console, ask=screen.ask) == []
        again = Screen()
        play(SOURCE, seed=seed, console=again.console, ask=again.ask)
        assert screen.text == again.text
        seen.add(re.search(r"test case (\d)", screen.text)[1])
    assert seen == {"0", "1", "2", "3"}
    with pytest.raises(UserError, match="write --case 0 to 3"):
        Screen().play(index=4)
    with pytest.raises(UserError, match="no test case to play"):
        play(replace(SOURCE, test=()))


@pytest.mark.parametrize("line", ["quit", "exit", "q", "QUIT"])
def test_quitting_tells_nothing(line: str) -> None:
    screen = Screen("fever", line)
    assert screen.play(seed=7) == []
    assert "The same patient again: --case 1, and the rest" in screen.text
    assert "neumonia" not in screen.text


def test_ctrl_c_goes_through_to_whoever_called() -> None:
    def ask(prompt: str) -> str:
        raise KeyboardInterrupt

    screen = Screen()
    with pytest.raises(KeyboardInterrupt):
        play(SOURCE, index=1, console=screen.console, ask=ask)
    assert "The same patient again: --case 1" in screen.text


PROGRAM = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background hands \
down an ignored one
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches this process and no other
from handmade import SOURCE
from workup.cli.play import play
sys.exit(0 if play(SOURCE, index=1) else 3)
"""


class Terminal:
    """The real thing in a process of its own, behind a pseudo-terminal."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        environment = {
            **os.environ,
            "COLUMNS": "80",
            "TERM": "dumb",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, wanted: str) -> None:
        while wanted not in self.text:
            assert select.select([self.master], [], [], HANG)[0], self.text
            try:
                self.text += os.read(self.master, 4096).decode(errors="replace")
            except OSError:
                break
        assert wanted in self.text

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        try:
            return self.process.wait(HANG)
        finally:
            os.close(self.master)


@pytest.mark.long
@pytest.mark.parametrize(("key", "status"), [("\x03", -signal.SIGINT), ("\x04", 3)])
def test_one_ctrl_c_or_ctrl_d_leaves_a_real_terminal(key: str, status: int) -> None:
    terminal = Terminal()
    terminal.wait_for("1/10 > ")
    terminal.type("fever\n")
    terminal.wait_for("2/10 > ")
    # A test is faster than a person: where the signal arrives between the prompt and readline's
    # wait, Python sees it only after the next line, so there has to be one.
    terminal.type(f"{key}\n")
    terminal.wait_for("The same patient again: --case 1")
    assert terminal.end() == status


@pytest.mark.long
def test_a_game_in_a_real_terminal() -> None:
    terminal = Terminal()
    for prompt, line in (("1/10 > ", "crackles"), ("2/10 > ", "dx pnumonia"), ("y/N > ", "y")):
        terminal.wait_for(prompt)
        terminal.type(f"{line}\n")
    terminal.wait_for("everything on record")
    assert "Right: Pneumonia." in terminal.text
    assert terminal.end() == 0


def test_what_no_item_is_called_costs_no_turn_and_two_things_at_once_are_both_shown() -> None:
    screen = Screen("lungs", "sputum and chest film", "dx Flu")
    assert asked(screen.play()[0]) == ["<diagnose>Flu</diagnose>"]
    assert "'lungs' may mean:" in screen.text
    both = screen.text.split("'sputum and chest film' may mean:")[1].split("No turn")[0]
    assert "sputum" in both
    assert "chest film" in both
