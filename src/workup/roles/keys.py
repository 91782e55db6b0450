"""Keys that this process has read from its environment are cut out of every text that comes back.

Whoever was sent a key can quote it: in an error, in a refusal, in an answer that a run would keep.
"""

from __future__ import annotations

import base64
import re

SHORTEST = 8
"""The least number of characters of a key that is cut out: "EMPTY" or "none" is no secret."""

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def learn(key: str) -> None:
    """From now on `without_keys` cuts out `key`."""
    global _pattern  # noqa: PLW0603 (compiled once per key, not once per text)
    if len(key) >= SHORTEST and key not in _known:
        _known.add(key)
        forms: list[str] = []
        for known in sorted(_known, key=len, reverse=True):
            forms.append("".join(map(_letter, known)))
            forms += [_encoded(known.encode(), before) for before in range(3)]
        _pattern = re.compile("|".join(forms))


def without_keys(text: str) -> str:
    """`text` with "…" for every known key.

    A key is found in any mixture of letter cases, with any characters escaped as in a URL (%2D), in
    JSON (\\\\u002d) or in HTML (&#45;), and in Base64, whatever stands before it.
    """
    return text if _pattern is None else _pattern.sub("…", text)


def _letter(letter: str) -> str:
    """A pattern for one character of a key, in either case and however it is escaped."""
    either = {letter.lower(), letter.upper()}
    written = [re.escape(one) for one in either]
    for one in either:
        code = f"(?i:{ord(one):02x})"
        written += [
            f"%{code}",
            rf"\\{{1,4}}u00{code}",
            f"&#x0{{0,4}}{code};",
            f"&#0{{0,4}}{ord(one)};",
        ]
    return f"(?:{'|'.join(written)})"


def _encoded(key: bytes, before: int) -> str:
    """A pattern for `key` in Base64 after `before` other bytes.

    It has the characters that `key` alone decides.
    """
    text = base64.b64encode(bytes(before) + key).decode()
    own = text[-(-before * 8 // 6) : (before + len(key)) * 8 // 6]
    return "".join({"+": "[+-]", "/": "[/_]"}.get(letter, letter) for letter in own)
