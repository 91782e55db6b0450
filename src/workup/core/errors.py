"""The errors that a user can act on, and the hint with the nearest existing name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from workup.core.text import unsteering

LONGEST_FIELD = 120  # characters of a field's name in a message


class WorkupError(Exception):
    """Something went wrong in Workup or on the machine; exit status 1."""

    exit_status = 1


class UserError(WorkupError):
    """An error the user can mend: one line says what, where, what to type; exit status 2."""

    exit_status = 2


class CaseError(UserError):
    """A row of a case file, or the file itself, is malformed.

    `file`, `line` (from 1) and `field` say where; `problem` says what is wrong. `got` is the value
    in the file: the message shows it, `problem` does not contain it. `others` are further problems
    of the same row.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: object,
        line: int | None = None,
        field: str | None = None,
        got: str = "",
    ) -> None:
        # A message has to be printable and short; a file's content need not be.
        problem, got, name = (unsteering(printable(text)) for text in (problem, got, str(file)))
        field = None if field is None else unsteering(printable(field[:LONGEST_FIELD]))
        at = f", line {line}" if line is not None else ""
        place = f"{name}{at}" + (f", field '{field}'" if field else "")
        text = f"{problem.removesuffix('.')} (got {got!r})." if got else problem
        super().__init__(f"{place}: {text}")
        self.file, self.line, self.field, self.problem = str(file), line, field, problem
        self.others: tuple[CaseError, ...] = ()


def printable(text: str) -> str:
    """`text` with lone surrogates as escapes: files and terminals refuse the surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def reason(error: BaseException) -> str:
    """What an error says; the name of its class where it says nothing."""
    return str(error) or type(error).__name__


class RolloutError(WorkupError):
    """One episode could not be finished: a judge, a patient or an endpoint gave up."""


class FailuresError(WorkupError):
    """More episodes of a run failed than it allows; what was saved until then is kept."""


class BudgetError(UserError):
    """The money or the calls that the user allowed are spent; all work done so far is kept."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The name among `known` that `name` is most probably meant for; "" if none is near.

    First one that differs in capitals and marks alone ("cmb-clin", "CMB_Clin"); then, among the
    three most alike, one with the same letters in another order ("medaq" is medqa, not mediq).
    """
    names = sorted(known)
    plain = [each for each in names if _plain(each) == _plain(name)]
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    turned = [each for each in close if sorted(each) == sorted(name)]
    return next(iter([*plain, *turned, *close]), "")


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def unknown(kind: str, name: str, known: Iterable[str], *, more: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest name that does.

    `more` is a trailing hint such as "`workup methods` lists all".
    """
    names = sorted(known)
    near = nearest(name, names)
    hint = (
        f"Did you mean '{near}'?"
        if near
        else f"Known: {', '.join(names[:12])}{' …' if len(names) > 12 else ''}."
    )
    return UserError(f"no {kind} '{name}'. {hint}{f' ({more})' if more else ''}")
