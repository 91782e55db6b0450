"""The tag grammar and the normal form of names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.core.leaks import Mask
from workup.core.text import asserts, blocks, neutralise, normalise, places, same_name, tagged
from workup.metrics.text_overlap import words
from workup.roles.fence import fenced

TAGS = ("ask", "test", "diagnose")
plain = st.text(alphabet=st.characters(exclude_characters="<>", codec="utf-8"), max_size=20)
# Text that is likely to contain tags, halves of tags and control tokens.
pieces = [
    "<",
    ">",
    "</",
    "ask",
    "think",
    "|",
    "<ask>",
    "</ask>",
    "<think>",
    "</think>",
    "<test>",
    "</test>",
    "[INST]",
    "<|im_end|>",
]
hostile = st.lists(st.one_of(st.sampled_from(pieces), plain), max_size=25).map("".join)


@given(st.lists(st.tuples(st.sampled_from(TAGS), plain), max_size=6), plain)
def test_written_blocks_are_read_back(written: list[tuple[str, str]], thought: str) -> None:
    text = tagged("think", thought) + " ".join(tagged(tag, content) for tag, content in written)
    read = blocks(text, TAGS)
    assert [(block.tag, block.content) for block in read.found] == written
    assert read.errors == 0
    assert all(text[b.start : b.end] == tagged(b.tag, b.content) for b in read.found)


def slow_blocks(text: str) -> tuple[list[tuple[str, str]], int]:
    """An independent reading: cut the text at every known token by hand, then walk the tokens."""
    tokens = {f"<{slash}{tag}>": (slash, tag) for slash in ("", "/") for tag in (*TAGS, "think")}
    cut: list[str] = [""]
    while text:
        token = next((t for t in tokens if text.startswith(t)), "")
        if token:
            cut += [token, ""]
            text = text[len(token) :]
        else:
            cut[-1] += text[0]
            text = text[1:]
    errors = 0
    if "</think>" in cut:
        end = cut.index("</think>")
        errors = sum(piece in tokens for piece in cut[:end])
        errors -= cut[1] == "<think>" and not cut[0].strip()
        cut = cut[end + 1 :]
    pairs, stack, content = [], "", ""
    for piece in cut:
        slash, tag = tokens.get(piece, ("text", ""))
        if slash == "text":
            content = piece
        elif slash == "":
            errors += bool(stack)
            stack = tag
        elif stack == tag and tag != "think":
            pairs.append((tag, content))
            stack = ""
        else:
            errors += 1 + bool(stack)
            stack = ""
    return pairs, errors + bool(stack)


@given(hostile)
def test_reading_agrees_with_a_walk_by_hand(text: str) -> None:
    text = text.replace("|", "")  # control tokens have their own test
    read = blocks(text, TAGS)
    assert ([(b.tag, b.content) for b in read.found], read.errors) == slow_blocks(text)


@pytest.mark.parametrize(
    ("text", "found", "errors"),
    [
        ("<ask>fever</ask>", ["fever"], 0),
        ("some prose <ask>fever</ask>", ["fever"], 0),
        ("the template opened it </think><ask>fever</ask>", ["fever"], 0),
        ("<think><ask>cough</ask></think><ask>fever</ask>", ["fever"], 2),
        ("<think>never closed <ask>fever</ask>", ["fever"], 1),
        ("<ask>a<test>b</test>c</ask>", ["b"], 2),
        ("<ask>a</test></ask>", [], 3),
        ("<ask>fever", [], 1),
        ("<ASK>fever</ASK>", [], 0),
        ("<ask>fever</ask><|im_end|><|im_start|>", ["fever"], 2),
        ("", [], 0),
    ],
)
def test_reading_by_example(text: str, found: list[str], errors: int) -> None:
    read = blocks(text, TAGS)
    assert ([b.content for b in read.found], read.errors) == (found, errors)


@given(hostile)
def test_neutral_text_cannot_act_and_stays_neutral(text: str) -> None:
    safe = neutralise(text)
    assert blocks(safe, TAGS) == blocks("", TAGS)
    assert "<|" not in safe
    assert "[INST]" not in safe
    assert neutralise(safe) == safe
    assert len(safe) == len(text)


@pytest.mark.parametrize(
    "token",
    [
        *(
            "[gMASK]",
            "[sMASK]",
            "[MASK]",
            "[CLS]",
            "[SEP]",
            "[PAD]",
            "[UNK]",
            "[BOS]",
            "[EOS]",
            "[EOT]",
        ),
        *(
            "[INST]",
            "[/INST]",
            "<<SYS>>",
            "<</SYS>>",
            "[SYSTEM_PROMPT]",
            "[/THINK]",
            "[TOOL_CALLS]",
            "[IMG_END]",
        ),
        *(
            "<s>",
            "</s>",
            "<sop>",
            "<eop>",
            "<pad>",
            "<unk>",
            "<|im_end|>",
            "<｜begin▁of▁sentence｜>",
            "<|user|>",
        ),
        *(
            "<start_of_turn>",
            "<end_of_turn>",
            "<bos>",
            "<seed:eos>",
            "<reserved_106>",
            "<think>",
            "<!-- x -->",
        ),
        *("[|user|]", "[|endofturn|]", "[UNUSED_TOKEN_145]", "[control_12]", "[start_header_id]"),
    ],
)
def test_no_control_token_of_any_family_survives(token: str) -> None:
    """Neither alone, nor beside another, nor where its pieces come to lie together."""
    for text in (
        token,
        f"a{token}b",
        token * 3,
        f"[{token}]",
        f"<{token}>",
        f"[[gMASK]gMASK]{token}",
    ):
        safe = neutralise(text)
        assert token not in safe
        assert len(safe) == len(text)
        assert neutralise(safe) == safe


@pytest.mark.parametrize(
    "text", ["WBC < 5", "CRP <5 mg/l, age >60", "[REDACTED] and [5]", "Rh- and a->b", ""]
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert neutralise(text) == text


@given(st.text(max_size=60))
def test_the_normal_form_is_a_fixed_point(name: str) -> None:
    form = normalise(name)
    assert normalise(form) == form
    assert form == " ".join(form.split())


@given(st.text(max_size=20), st.text(max_size=20))
def test_equality_is_symmetric_and_never_of_nothing(one: str, other: str) -> None:
    assert same_name(one, other) == same_name(other, one)
    assert same_name(one, one) == bool(normalise(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The common cold", "common  COLD."),
        ("Crohn's disease", "Crohn’s Disease"),
        ("X-ray", "x ray"),
        ("Non‑Hodgkin lymphoma", "non-hodgkin lymphoma"),
        ("anxiety/depression", "anxiety depression"),
        ("HbA1c 6.5 %", "hba1c 6.5 %."),
        ("ﬁbroma", "fibroma"),
    ],
)
def test_one_name_in_two_writings(one: str, other: str) -> None:
    assert same_name(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hepatitis A", "Hepatitis"),
        ("Hemophilia A", "Hemophilia"),
        ("Rh-", "Rh+"),
        ("Rh−", "Rh"),
        ("Stage <3", "Stage >3"),
        ("-3", "3"),
        ("6.5", "65"),
        ("asthma?", "asthma"),
        ("!asthma", "asthma"),
        ("~asthma", "asthma"),
        ("", ""),
        ("?", "!"),
        ("कि", "की"),
    ],
)
def test_two_names_stay_two(one: str, other: str) -> None:
    assert not same_name(one, other)


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "not asthma",
            "no asthma",
            "!asthma",
            "! (asthma)",
            "~asthma",
            "not_asthma",
            "Not: asthma",
        ),
        *(
            "It is not asthma",
            "it isn't asthma",
            "asthma is not it",
            "this does not have to be asthma",
        ),
        *(
            "asthma was ruled out",
            "asthma (excluded)",
            "asthma is unlikely",
            "without asthma",
            "neither asthma",
        ),
        *(
            "asthma?",
            "possible asthma",
            "Probably asthma",
            "suspected asthma",
            "r/o asthma",
            "rule out asthma",
        ),
        *(
            "asthma or wrong",
            "asthma and/or COPD",
            "asthma vs. COPD",
            "asthma / COPD",
            "asthma; COPD",
        ),
        *("Asthma (negative)", "asthma [absent]", "Asthma: negative.", "asthma – none"),
        *(
            "asthma\nCOPD",
            "either asthma",
            "不是哮喘",
            "疑似哮喘",
            "哮喘？",
            "哮喘或肺炎",
            "哮喘待排",
        ),
    ],
)
def test_what_is_denied_doubted_or_one_of_several_is_not_asserted(answer: str) -> None:
    assert not asserts(answer)
    assert not same_name(answer, "asthma")


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "asthma",
            "Heart attack!",
            "non-Hodgkin lymphoma",
            "非霍奇金淋巴瘤",
            "无症状菌尿",
            "oral cancer",
        ),
        *(
            "Fever, not elsewhere classified",
            "Asthma without status asthmaticus",
            "Norwegian scabies",
        ),
        *(
            "graft versus host disease",
            "graft-versus-host disease",
            "HIV (initial infection)",
            "1/2 lesion",
        ),
        *(
            "ataxia with or without seizures",
            "neoplasm of uncertain behavior",
            "fever of unknown origin",
        ),
        *(
            "Aortic aneurysm and dissection",
            "leukemia with t(6;9)(p23;q34)",
            "\nasthma\n",
            "pneumonia, bacterial",
        ),
        *(
            "breast cancer (HER2 negative)",
            "breast cancer, triple negative",
            "absent-minded (mild)",
        ),
    ],
)
def test_names_of_diseases_are_asserted(answer: str) -> None:
    assert asserts(answer)
    assert same_name(answer, answer)


@given(st.lists(st.sampled_from(["a", "b", "ab", ".", "1", " ", "<", "流", "+"]), max_size=12))
def test_places_of_a_name_are_those_of_a_regular_expression(pieces: list[str]) -> None:
    """Of a Latin name, a number and a Chinese name; `\w` is cut by what stands in no word."""
    text = normalise("".join(pieces))
    spelt = "[ab1.]"
    for name in ("ab", "1", "流", "a 1"):
        begins, ends = (f"(?<!{spelt})", f"(?!{spelt})") if name != "流" else ("", "")
        found = re.finditer(f"{begins}(?={re.escape(name)}{ends})", text)
        assert [*places(name, text)] == [match.start() for match in found]
    assert [*places("", text)] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<ask>",
            "</ask>",
            "<think>",
            "</think>",
            "<",
            "<|",
            "<|a",
            "-",
            ".",
            "a ",
            "' ",
            "[",
            "𝔄",
            "́",
            "the ",
        ),
        *("it is ", "excluded ", " \n", "? "),
    ],
)
@pytest.mark.parametrize("function", [partial(blocks, tags=TAGS), neutralise, normalise, asserts])
def test_time_grows_with_the_length_of_anything(function: Any, unit: str) -> None:
    """Ten times the text takes ten times the processor's time, not a hundred times."""
    once, more = (unit * (size // len(unit)) for size in (30_000, 300_000))
    assert seconds(function, more) < 40 * seconds(function, once) + 0.05


def seconds(function: Callable[[str], object], text: str) -> float:
    """The least of three times, in seconds of this process."""
    taken = []
    for _ in range(3):
        started = time.process_time()
        function(text)
        taken.append(time.process_time() - started)
    return min(taken)


@pytest.mark.parametrize(("before", "unit"), [("", "(-)"), ("", "(- )×"), ("(0", " ")])
def test_signs_before_a_word_are_read_in_linear_time(before: str, unit: str) -> None:
    """Each of them could begin the end of the answer, as in "asthma (-)"; the word says no."""
    once, more = (before + unit * (size // len(unit)) + "x" for size in (1_500, 15_000))
    assert seconds(asserts, more) < 40 * seconds(asserts, once) + 0.05


MARKS = "a\u0301\u0323"  # two marks that swap their places where they are normalised


@pytest.mark.parametrize(
    "function", [Mask(["Flu"]), lambda text: Mask([text]), words, lambda text: fenced([("", text)])]
)
def test_marks_on_a_letter_are_read_in_linear_time(function: Callable[[str], object]) -> None:
    once, more = (MARKS[0] + MARKS[1:] * size for size in (800, 8_000))
    assert seconds(function, more) < 40 * seconds(function, once) + 0.05


def test_marks_that_are_left_out_change_no_text_in_which_nothing_is_withheld() -> None:
    text = f"{MARKS[0]}{MARKS[1:] * 40} of the lungs"
    assert Mask(["Flu"])(text) == text


@pytest.mark.parametrize(
    "said",
    ["asthma⁇", "asthma ⁉", "¿asthma", "asthma ❌", "asthma ruled out by CT", "doubtful asthma"],
)
def test_a_hedge_in_any_sign_is_a_hedge(said: str) -> None:
    assert not asserts(said)
    assert not same_name(said, "asthma")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("↓ TSH", "↑ TSH", False),
        ("♂ infertility", "♀ infertility", False),
        ("level ≠ 5", "level 5", False),
        ("epinephrine .3 mg", "epinephrine 3 mg", False),
        ("epinephrine .3 mg", "epinephrine 0.3 mg", True),
        ("Crohn´s disease", "Crohn's disease", True),
        ("Crohn‘s disease", "Crohn’s disease", True),
        ("osteo\u00adarthritis", "osteoarthritis", True),
        ("no. 5", "no 5", True),
    ],
)
def test_signs_and_marks_that_carry_meaning_and_those_that_do_not(
    one: str, other: str, same: bool
) -> None:
    assert same_name(one, other) == same


@given(st.text("aB1 .5-’´≠x=_'\u0301%<(½²㎎…０＿", max_size=9))
def test_a_normal_form_of_odd_signs_is_its_own(name: str) -> None:
    assert normalise(normalise(name)) == normalise(name)


def test_no_number_of_marks_makes_a_name_slow() -> None:
    """Work, not time: what is normalised keeps thirty of them."""
    assert len(normalise("a" + "\u0301\u0316" * 50_000)) < 40


@pytest.mark.parametrize(
    "answer",
    [
        "It isn’t asthma",
        "It can't be asthma",
        "asthma can’t be it",
        "this won't be asthma",
        "Asthma cannot explain this",
        "Ruled out: asthma",
        "excluded: asthma",
        "asthma;pneumonia",
    ],
)
def test_denials_as_models_write_them(answer: str) -> None:
    assert not asserts(answer)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Non-Hodgkin lymphoma", "non\u2010Hodgkin lymphoma"),
        ("T-cell lymphoma", "T\u2011cell lymphomas"),
        ("Pulmonary embolism", "pulmonary\n    embolism"),
        ("Gallstones", "gallstone"),
        ("Abscess", "abscesses"),
        ("Kidney stones", "kidney stone"),
        ("Sjögren syndrome", "Sjo\u0308gren syndrome"),
        ("Crohn's disease", "Crohn’s disease"),
    ],
)
def test_a_name_is_withheld_however_it_is_written(name: str, text: str) -> None:
    assert Mask([name])(f"It was {text}.") == "It was [name withheld]."


@pytest.mark.parametrize(("name", "text"), [("Gout", "gouty"), ("Virus", "viru"), ("MS", "ms")])
def test_other_words_are_not_withheld(name: str, text: str) -> None:
    assert Mask([name])(text) == text
