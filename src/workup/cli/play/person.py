"""A person as the doctor: plain words in, the consultation's grammar out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rapidfuzz import fuzz, process
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from workup.core.case import HEADINGS, Case, Item, Kind, Source
from workup.core.episode import DIAGNOSE, MALFORMED, Action, Completion, Message, Observation, Turn
from workup.core.ports import Act, Environment
from workup.core.text import neutralise, normalise, unsteering
from workup.environments.base.encounter import Encounter
from workup.environments.base.lexical import content, words
from workup.environments.base.searching import SEARCH, SEPARATOR
from workup.environments.consultation import Consultation
from workup.runs.transcript import understood_as

_ASKING = "fever · is there a fever?   ask for one thing; costs a turn"
_LISTED = """\
17                          ask for number 17 of the list
? · ? pain                  list everything that can be asked, or what has to do with pain"""
_SEARCHING = "search fever; cough         search the library; costs a turn"
_NAMING = "dx gout · diagnose gout     name the diagnosis, which ends the consultation"
_NUMBERED = """\
dx 3                        name number 3 of the diagnoses
diagnoses · diagnoses acute list the diagnoses, or some of them"""
_LEAVING = """\
<test>lipase</test>         the grammar that a policy writes is understood too
quit · Ctrl-D               leave"""
# Names longer than this are sentences: one per line.
_SHORT = 36
_NEAR = 70.0  # the least of rapidfuzz's weighted ratio, which is at most 100
_SUGGESTIONS = 5
_MANY = 60  # items that no screen shows at once

T = TypeVar("T")


class Person:
    """A doctor who is asked at the keyboard.

    What is not understood, asked twice or misspelt costs a person no turn, unlike a policy: it is
    said, and asked again. Nothing is coloured by what it is worth. Raises EOFError when the person
    leaves, by command or by the end of input.
    """

    def __init__(
        self, source: Source, environment: Environment, console: Console, ask: Callable[[str], str]
    ) -> None:
        self.environment, self.console, self.ask = environment, console, ask
        self._searches = environment.about.searches and not environment.about.asks
        self.items = () if self._searches else source.items
        self.diagnoses = source.diagnoses
        # Says what a request means before it costs a turn.
        matcher = environment.matcher if isinstance(environment, Encounter) else None
        self._record = Consultation(source.items, source.diagnoses, matcher=matcher)
        self._by_name = {item.name: item for item in source.items}
        self._numbers = {item.name: number for number, item in enumerate(source.items, 1)}
        self._wordings = [_content(f"{item.name} {item.question}") for item in source.items]

    def act(self, case: Case, opening: Sequence[Message], past: Sequence[Turn]) -> Act:
        """The next action after `past`, as the grammar writes it."""
        if past:
            self.show(past[-1].observation)
        else:
            self._introduce(case, opening)
        if len(past) == self.environment.max_turns - 1:
            self._say("This is your last action: a question now leaves you without a diagnosis.")
        while True:
            line = unsteering(self.ask(f"{len(past) + 1}/{self.environment.max_turns} > "))
            text = self._read(" ".join(line.split()), case, past)
            if text is not None:
                return Act((), Completion(text))

    def show(self, observation: Observation) -> None:
        """Prints an answer, after what was understood to be asked."""
        item = self._by_name.get(observation.item)
        if item is not None:
            self._say(f"  {item.question}")
        elif meant := understood_as(observation):
            self._say(f"  understood: {meant}")
        for message in observation.messages:
            self.console.print(Text(indent(unsteering(message.content))))

    def _introduce(self, case: Case, opening: Sequence[Message]) -> None:
        shown = "\n".join(message.content for message in opening if message.role != "system")
        # Options are numbered, so that `dx 2` can name one; in a policy's prompt they are not.
        lines = [
            f"{case.options.index(line) + 1:>3} {line}" if line in case.options else line
            for line in shown.splitlines()
        ]
        body = Text(unsteering("\n".join(lines)))
        self.console.print(Panel(body, title="the patient", title_align="left", border_style="dim"))
        asking = "" if self._searches else "ask in your own words · "
        asking = "? lists what to ask · " if self.items else asking
        looking = "search WORDS · " if self.environment.about.searches else ""
        naming = "dx NUMBER" if case.options and not self.diagnoses else "dx NAME"
        self._say(
            f"{self.environment.max_turns} actions, diagnosis included · {asking}{looking}"
            f"{naming} · help · quit"
        )

    def _read(self, line: str, case: Case, past: Sequence[Turn]) -> str | None:
        """The action that the line asks for, in the grammar.

        None for a command or an unknown text.
        """
        command, _, rest = line.partition(" ")
        match command.lower():
            case "quit" | "exit" | "q" if not rest:
                raise EOFError
            case "":
                return None
            case "help" | "h" if not rest:
                self._say(self._help(case))
            case "items" | "?":
                self._list_items(rest)
            case "diagnoses" | "dx?":
                self._list_diagnoses(self._known(case), rest)
            case "search" if rest and self.environment.about.searches:
                return self._written(SEARCH, rest)
            case "dx" | "diagnose":
                return self._diagnose(rest, self._known(case))
            case _ if line.startswith("?"):
                self._list_items(line[1:])
            case _:
                return self._request(line, case, past)
        return None

    def _help(self, case: Case) -> str:
        """What can be typed here: no number of a list where there is none, no search either."""
        parts = {
            _ASKING: self.environment.about.asks,
            _LISTED: bool(self.items),
            _SEARCHING: self.environment.about.searches,
            _NAMING: True,
            _NUMBERED: bool(self._known(case)),
            _LEAVING: True,
        }
        return "\n".join(part for part, there in parts.items() if there)

    def _known(self, case: Case) -> Sequence[str]:
        """The closed list that the diagnosis is among; empty where any answer may be given."""
        return self.diagnoses or case.options

    def _request(self, line: str, case: Case, past: Sequence[Turn]) -> str | None:
        action = self.environment.read(line)
        if action.kind == DIAGNOSE:
            return self._diagnose(action.content[0], self._known(case))
        if action.kind == SEARCH:
            return self._written(SEARCH, SEPARATOR.join(action.content))
        if action.kind != MALFORMED:
            return self._ask_for(action.content[0], action.kind, case, past)
        if line.startswith("<"):
            self._say("No complete action. Write <ask>…</ask>, or plain words. No turn was used.")
            return None
        return self._ask_for(line, "", case, past)

    def _ask_for(self, request: str, kind: str, case: Case, past: Sequence[Turn]) -> str | None:
        """The action that asks for `request`; None, and why, if it is none.

        The tag is the item's own if `kind` is "".
        """
        if not self.environment.about.asks:
            return self._order(request, kind or Kind.HISTORY.value, past)
        request = self._by_number(request)
        reply = self._record.reply(case, Action(Kind.HISTORY, (request,)))
        if self.items and not reply.item and not reply.evidence:
            self._suggest(request)
            return None
        # Who may contradict itself can be asked again.
        for number, turn in enumerate(() if self.environment.about.channel else past, 1):
            if _same_question(turn, reply, request):
                self._say(f"You asked that in turn {number}. No turn was used.")
                self.show(turn.observation)
                return None
        if reply.item in self._by_name and (meant := understood_as(reply)):
            self._say(f"  understood: {meant}")
        item = self._by_name.get(reply.item, Item(request, request, ""))
        return self._written(kind or item.kind.value, item.name)

    def _order(self, request: str, kind: str, past: Sequence[Turn]) -> str | None:
        """The action for a request: an order, or a search where one only searches."""
        request = self._by_number(request)
        for number, turn in enumerate(past, 1):
            if self.items and normalise(request) in map(normalise, turn.action.content):
                self._say(f"You ordered that in turn {number}. No turn was used.")
                self.show(turn.observation)
                return None
        return self._written(kind, request)

    def _by_number(self, request: str) -> str:
        """The name of the item with this number, or else the request."""
        number = _number(request)
        return self.items[number - 1].name if 1 <= number <= len(self.items) else request

    def _written(self, kind: str, content: str) -> str | None:
        """The action as text; None, and why, if nothing is said."""
        text = self.environment.write(kind, neutralise(content))
        if self.environment.read(text).kind != MALFORMED:
            return text
        self._say("Say in words what you want to know. No turn was used.")
        return None

    def _suggest(self, request: str) -> None:
        """Says that the request is not clear, and what has to do with it or is spelt like it."""
        if len(several := self._record.matcher.match(request).items) > 1:
            self._say(f"'{request}' may mean:")
            self._print_items(several)
            self._say("No turn was used: type a number or a name.")
            return
        wanted, related = self._related(_content(request))
        near = process.extract(
            wanted, self._wordings, scorer=fuzz.WRatio, score_cutoff=_NEAR, limit=_SUGGESTIONS
        )
        found = related or [self.items[number] for _, _, number in near]
        if not found:
            self._say(
                f"Nothing here is called '{request}'. No turn was used. ? lists all that can be "
                "asked."
            )
            return
        self._say(
            f"'{request}' may mean:" if related else f"Nothing here is called '{request}'. Near it:"
        )
        self._print_items(found[:_SUGGESTIONS])
        more = f" `? {wanted}` lists all {len(found)}." if len(found) > _SUGGESTIONS else ""
        self._say(f"No turn was used: type a number or a name.{more}")

    def _related(self, wanted: str) -> tuple[str, list[Item]]:
        """The words that any item matches, and the items that match all of these words.

        They are all of the wanted words, or else the one that the fewest items match. Words of
        less than four letters match whole: "up" is not "upper". No items if nothing matches.
        """
        found = {
            part: [
                item
                for item in self._search(part)
                if part == wanted or len(part) > 3 or part in words(f"{item.name} {item.question}")
            ]
            for part in (wanted, *wanted.split())
            if part
        }
        if found.get(wanted):
            return wanted, found[wanted]
        return min(
            ((part, items) for part, items in found.items() if items),
            key=lambda pair: len(pair[1]),
            default=(wanted, []),
        )

    def _search(self, wanted: str) -> list[Item]:
        return _matching(wanted, self.items, lambda item: f"{item.name} {item.question}")

    def _list_items(self, wanted: str) -> None:
        if not self.items:
            if self._searches:
                self._say("Nothing is asked here: search the library. Each search costs a turn.")
                return
            self._say(
                "This record is free text: ask for anything in your own words. Each request "
                "costs a turn."
            )
            return
        found = self._search(wanted)
        if not found:
            self._suggest(wanted)
        for kind, title in HEADINGS.items():
            group = [item for item in found if item.kind is kind]
            if group:
                self._heading(f"{title} ({len(group)})")
                self._print_items(group, brief=not wanted)
        if len(found) > _MANY:
            self._say("? and a word, as in `? pain`, lists only what has to do with it.")

    def _print_items(self, items: Sequence[Item], brief: bool = False) -> None:
        """The numbered items by name, each with its question unless `brief`."""
        entries = []
        for item in items:
            beside = "" if brief or item.question == item.name else f"  {item.question}"
            entries.append(
                (
                    self._numbers[item.name],
                    Text(unsteering(item.name)) + Text(unsteering(beside), style="dim"),
                )
            )
        self._print(entries)

    def _list_diagnoses(self, known: Sequence[str], wanted: str) -> None:
        if not known:
            self._say("Any diagnosis may be named here: dx and its name.")
            return
        found = _matching(wanted, known, str)
        self._heading(f"Diagnoses ({len(found)}{f' of {len(known)}' if wanted else ''})")
        self._print([(known.index(name) + 1, Text(unsteering(name))) for name in found])

    def _diagnose(self, name: str, known: Sequence[str]) -> str | None:
        """The diagnosis that ends the encounter: a name on the closed list, if there is one.

        Unless the text is exactly that name, the person is asked.
        """
        if not normalise(name):
            self._list_diagnoses(known, "")
            return None
        exact = _exactly(name, known)
        if exact is None:
            exact = self._nearest(name, known) if known else name
            if exact is None or not self._confirmed(name, exact):
                return None
        return self.environment.write(DIAGNOSE, neutralise(exact))

    def _nearest(self, name: str, known: Sequence[str]) -> str | None:
        near = process.extractOne(
            name, known, scorer=fuzz.WRatio, processor=normalise, score_cutoff=_NEAR
        )
        if near is None:
            self._say(f"No diagnosis is called '{name}' here; `diagnoses` lists all {len(known)}.")
        return None if near is None else near[0]

    def _confirmed(self, name: str, meant: str) -> bool:
        if name == meant:
            self._say(f"Answers are open here, so spelling counts. End with '{name}'?")
        else:
            self._say(f"No diagnosis is called '{name}' here. Did you mean '{meant}'?")
        return self.ask("y/N > ").strip().lower() in {"y", "yes"}

    def _heading(self, text: str) -> None:
        self.console.print(Text(text, style="bold"))

    def _print(self, entries: Sequence[tuple[int, Text]]) -> None:
        """Numbered entries: in columns where all are short, else one below the other."""
        if all(len(entry) <= _SHORT for _, entry in entries):
            cells = [Text(f"{number:>4} ") + entry for number, entry in entries]
            self.console.print(Columns(cells, padding=(0, 2), column_first=True))
            return
        table = Table.grid(padding=(0, 1, 0, 0))
        for number, entry in entries:
            table.add_row(f"{number:>4}", entry)
        self.console.print(table)

    def _say(self, text: str) -> None:
        self.console.print(Text(unsteering(text), style="dim"))


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _content(text: str) -> str:
    """The content words of `text` in normal form, in their order."""
    return " ".join(content(text))


def _matching(wanted: str, entries: Sequence[T], wording: Callable[[T], str]) -> list[T]:
    """The entries in whose wording every word of `wanted` begins a word.

    All entries if nothing is wanted.
    """
    parts = normalise(wanted).split()
    return [
        entry
        for entry in entries
        if all(f" {part}" in f" {normalise(wording(entry))}" for part in parts)
    ]


def _exactly(name: str, known: Sequence[str]) -> str | None:
    """The known name with this number or normal form."""
    if 1 <= (number := _number(name)) <= len(known):
        return known[number - 1]
    return next((one for one in known if normalise(one) == normalise(name)), None)


def _number(text: str) -> int:
    """The number that was typed; 0 for other texts, and for numbers that no list has."""
    return int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else 0


def _same_question(turn: Turn, reply: Observation, request: str) -> bool:
    if reply.item or turn.observation.item:
        return reply.item == turn.observation.item
    return normalise(turn.action.content[0]) == normalise(request)
