"""Whose encounters a warm start imitates: a doctor of `About.anchors`, by name."""

from __future__ import annotations

from workup.core.case import Source
from workup.core.errors import UserError, nearest
from workup.core.ports import Doctor, Environment
from workup.engines.settings import OWN_TEACHER


def teacher(name: str, environment: Environment, source: Source, seed: int) -> Doctor:
    """The doctor of this label; its first word is enough where no other label begins with it.

    Raises UserError, with the teachers that there are, where there is no such doctor.
    """
    anchors = environment.about.anchors(source, seed)
    if not anchors:
        why = (
            f"no teacher '{name}': nobody here knows a model of {source.name}; leave out "
            f"sft.teacher, or type sft.teacher={OWN_TEACHER}, the method's own demonstrations"
        )
        raise UserError("; ".join((why, *environment.about.notes)))
    words = [label.partition(" ")[0] for label in anchors]
    short = {
        word: label for word, label in zip(words, anchors, strict=True) if words.count(word) == 1
    }
    label = short.get(name, name)
    if label not in anchors:
        near = nearest(name, (OWN_TEACHER, *short, *anchors))
        meant = f". Did you mean '{near}'?" if near else ""
        here = ", ".join((OWN_TEACHER, *anchors))
        raise UserError(f"no teacher '{name}'{meant} (sft.teacher is one of {here})")
    return anchors[label]
