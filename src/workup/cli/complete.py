"""What the shell offers when Tab is pressed. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workup.core.disk import there

if TYPE_CHECKING:
    from workup.cli.fields import Setting

Offer = tuple[str, str]  # what is typed, and what it means


def methods(incomplete: str) -> Iterator[Offer]:
    """Methods, for `workup train`."""
    from workup import methods

    yield from ((name, "a method") for name in methods.names() if name.startswith(incomplete))


def choices(incomplete: str) -> Iterator[Offer]:
    """Methods, strategies and environments."""
    from workup import environments
    from workup.doctors import strategies

    yield from methods(incomplete)
    yield from ((n, "a strategy") for n in strategies.names() if n.startswith(incomplete))
    yield from ((n, "an environment") for n in environments.names() if n.startswith(incomplete))


def formats(incomplete: str) -> Iterator[Offer]:
    """Formats of `workup export`."""
    from workup.interop import exports

    yield from ((n, "a format") for n in exports.names() if n.startswith(incomplete))


def names(incomplete: str) -> Iterator[Offer]:
    """What `workup settings` can be asked for."""
    yield from choices(incomplete)
    yield from ((typed.partition("=")[0], sense) for typed, sense in settings(incomplete))


def settings(incomplete: str) -> Iterator[Offer]:
    """Settings with their defaults, to be changed.

    Those that hold more than one value are left out.
    """
    from workup import environments
    from workup.cli.fields import evaluated, owner, trained
    from workup.doctors import strategies

    found = {each.typed: each for own in (trained() | evaluated()).values() for each in own}
    owned: dict[str, Setting] = {}  # name → the first of several owners' settings
    for name in (*strategies.names(), *environments.names()):
        owns = owner(name)
        typed, _, summary = owns.title.partition(": ")
        if typed.startswith(incomplete):
            yield typed, summary
        for each in filter(_single, owns.settings):
            owned.setdefault(each.name, each)
    for each in (*filter(_single, found.values()), *owned.values()):
        if each.name.startswith(incomplete):
            yield each.typed, each.sense


def _single(setting: Setting) -> bool:
    """Whether the setting has a default, of one value."""
    return bool(setting.default) and str(setting.default)[0] not in "[{"


def sources(incomplete: str) -> Iterator[Offer]:
    """Kinds of sources; behind the colon, files and folders."""
    from workup.cases import schemes

    scheme, colon, rest = incomplete.partition(":")
    if not colon:
        found = (each for each in schemes() if each.name.startswith(incomplete))
        yield from ((f"{each.name}:", each.summary) for each in found)
        return
    yield from ((f"{scheme}:{path}", "") for path, _ in paths(rest))


def policies(incomplete: str) -> Iterator[Offer]:
    """The policies that are found on this machine: smollm2, run folders, model folders.

    Hub ids and endpoints are not completed.
    """
    from workup.models import smollm2

    if incomplete and smollm2.NAME.startswith(incomplete):
        yield smollm2.NAME, "a pretrained chat model of 135 M parameters"
    yield from paths(incomplete or "runs/")


def suites(incomplete: str) -> Iterator[Offer]:
    """Built-in suites, and files."""
    from workup.loops.evaluation import suites

    for name in suites.names():
        if name.startswith(incomplete):
            yield name, suites.read(name).about
    yield from paths(incomplete)


def papers(incomplete: str) -> Iterator[Offer]:
    """Papers with claims, and files."""
    from workup.studies import claims

    for name in claims.names():
        if name.startswith(incomplete):
            yield name, f"{len(claims.read(name).claims)} claims"
    yield from paths(incomplete)


def paths(incomplete: str) -> Iterator[Offer]:
    """What lies in the folder that is being typed."""
    folder, slash, _ = incomplete.rpartition("/")
    place = there(f"{folder}{slash}" or ".")
    for entry in sorted(place.iterdir()) if place is not None and place.is_dir() else ():
        typed = f"{folder}{slash}{entry.name}"
        if typed.startswith(incomplete) and not entry.name.startswith("."):
            yield typed + ("/" if entry.is_dir() else ""), ""
