"""What running text says of a disease: named, denied or asked about; a table of texts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workup.roles.judges.claims import denied, disowned

NAMES = ("Glioma", "brain tumour")
DENIED = (
    "It is not glioma.",
    "This isn't a glioma.",
    "It is not flu, glioma",
    "No glioma.",
    "There is no sign at all of glioma",
    "Glioma was ruled out.",
    "Glioma, which was ruled out.",
    "glioma has been excluded by the film",
    "Glioma is unlikely.",
    "Glioma does not fit.",
    "Glioma cannot be it.",
    "Glioma seems improbable",
    "Glioma is absent.",
    "Glioma would never cause this",
    "glioma is definitely and surely not it",
    "We ruled out flu, glioma, and gout.",
    "Ruled out: glioma.",
    "Excluded:\nglioma\nflu",
    "Glioma? No.",
    "Glioma. No.",
    "Glioma: no.",
    "Glioma - no",
    "Glioma (ruled out)",
    "Glioma. It was ruled out.",
    "It may look like glioma but it is not.",
    "not glioma; flu",
    "Not_glioma",
    "!glioma",
    "~ glioma",
    "¬glioma",
    "neither flu nor glioma",
    "anything but glioma",
    "flu rather than glioma",
    "unlike glioma, flu has fever",
    "evidence against glioma",
    "negative for glioma",
    "flu, not glioma",
    "none of these: flu, glioma",
    "Nothing here is glioma",
    "it is wrong to say glioma",
    "I deny glioma",
    "a non-glioma",
    "No brain tumour",
    "Glioma fits. But glioma was ruled out.",
    "不是glioma",
    "已排除glioma",
    "glioma已排除",
    "glioma可能性小",
    "无glioma",
    # asked about, the question quoted among them
    "Is it glioma?",
    "Could it be glioma",
    "Which is it: flu, glioma or gout",
    "The question was: flu, glioma or gout",
    "One may ask whether glioma fits.",
    "是否glioma",
)
AFFIRMED = (
    "It is glioma.",
    "GLIOMA",
    "Glioma fits: fever, no cough.",
    "Glioma, without fever",
    "Glioma, not flu.",
    "Glioma fits. It is not flu.",
    "It is not flu but glioma.",
    "It is not flu. It is glioma.",
    "Not only flu, glioma too",
    "Nothing but glioma explains this.",
    "No fever, glioma fits.",
    "No cough; glioma.",
    "Fever is absent. Glioma fits.",
    "The patient does not smoke. Glioma.",
    "[1] flu: no rash [2] glioma: headache",
    "flu, brain tumour",
    "The passages suggest glioma.",
    "Is it flu? It is glioma.",
    "glioma (WHO grade 4), not elsewhere classified",
    "考虑glioma",
    "无发热，考虑glioma",
)
ANSWERS = (
    "glioma",
    "flu or glioma",
    "glioma, WHO grade 4",
    "glioma, without fever",
    "glioma, not flu",
    "glioma, not elsewhere classified",
    "non-Hodgkin lymphoma or glioma",
    "asthma without status asthmaticus, glioma",
    "Without doubt, glioma",
)


@pytest.mark.parametrize("text", DENIED)
def test_a_denial_and_a_question_are_seen(text: str) -> None:
    assert denied(text, NAMES)
    assert disowned(text, NAMES)
    assert denied(f"Fever fits many diseases. {text}", NAMES)
    assert not denied(text, ("malaria",)), "it speaks of something else"


@pytest.mark.parametrize("text", AFFIRMED)
def test_what_is_said_of_something_else_denies_nothing(text: str) -> None:
    assert not denied(text, NAMES)


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_that_name_it(text: str) -> None:
    assert not disowned(text, NAMES)


@pytest.mark.parametrize("text", ["not influenza", "flu? ", "flu was ruled out", "no flu", "~flu"])
def test_without_the_name_any_denial_is_one(text: str) -> None:
    """A judge may have found the truth in other words."""
    assert disowned(text, NAMES)
    assert not disowned("influenza", NAMES)


def test_a_names_own_words_and_markup_deny_nothing() -> None:
    name = "Pregnancy, not delivered, without complication"
    assert not denied(f"It is {name}. Again: {name}!", (name,))
    assert not disowned(f"{name}; flu", (name,))
    assert denied(f"It is not {name}", (name,))
    for text in ("It is not kidney <i>stone</i>", "kidney <b>stone</b> is ruled out"):
        assert denied(text, ("kidney stone",))
    assert not denied("<b>kidney</b> stone fits", ("kidney stone",))


@given(st.text(max_size=60), st.text(max_size=10))
def test_any_text_is_read(text: str, name: str) -> None:
    for found in (denied(text, (name,)), disowned(text, (name,))):
        assert isinstance(found, bool)
    assert not denied(text, ())


@pytest.mark.long
@pytest.mark.parametrize(
    "unit",
    ["glioma ", "glioma, ", "not ", "no glioma ", "? ", "it is ", "[1] glioma; ", "\n", "and "],
)
def test_time_grows_with_the_length_of_anything(unit: str) -> None:
    def seconds(size: int) -> float:
        text, taken = unit * (size // len(unit)), []
        for _ in range(3):
            started = time.process_time()
            denied(text, NAMES)
            disowned(text, NAMES)
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(20_000) < 40 * seconds(2_000) + 0.05
