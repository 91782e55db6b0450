"""Reading and writing the tag grammar, and the one normal form of a name.

Everything here is linear in the length of the text: models and files reach it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

THINK = "think"
# Control tokens of chat templates: <|im_end|>, <|eot_id|>, and the full-width bars that some
# families use. Bounded: linear.
_CONTROL = re.compile(r"<[|｜][^<>\s]{1,64}>")
# What could be read as a tag or a control token by our grammar or by any chat template.
_OPENER = re.compile(r"<(?=[/!|｜A-Za-z])")
# Tokens in square brackets: of Mistral and Llama 2, GLM, Kimi, InternLM, EXAONE ([|user|]), and
# BERT's.
_BRACKET = re.compile(
    r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|ARGS|CALL_ID|THINK"
    r"|MODEL_SETTINGS|PREFIX|MIDDLE|SUFFIX|IMG(?:_BREAK|_END)?|(?:BEGIN_)?AUDIO|control_\d{1,4}"
    r"|[gs]?MASK|CLS|SEP|PAD|UNK|BOS|EOS|EOT|UNUSED_TOKEN_\d{1,4}|(?:start|end)_header_id"
    r"|[|｜][^\[\]\s]{1,64}[|｜])\])"
)

_APOSTROPHES = re.compile(r"['’‘ʼ`´′]")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # soft hyphens, and blanks without width
_MARKS = 30  # combining marks in a row that count: more make NFKC quadratic (UAX #15)
_DASHES = re.compile(r"[‐‑‒–—−]")
# A hyphen is a sign after a word that it ends ("Rh-") or before a digit ("-3"); between or beside
# words it is punctuation.
_HYPHEN = re.compile(r"(?<=[^\W_])-(?=[^\W_])|(?<![^\W_])-(?!\d)")
_POINT = re.compile(r"(?<=[^\W\d_])\.|\.(?!\d)")
_LEADING = re.compile(r"(?<![\w.])\.(?=\d)")  # ".5", which is "0.5"
_PUNCTUATION = re.compile(r"[^\w+\-<>%≤≥≠±↑↓♂♀.]")
_ARTICLES = re.compile(r"^(?:(?:an?|the) )+(?=.)")

# Words that may stand before a denial, as in "it is not asthma".
_BEFORE = (
    "it|its|this|that|there|the|a|an|is|are|was|has|have|s|i|we|think|am|diagnosis|answer|final|"
    "patient|definitely|certainly|clearly|absolutely|surely|probably"
)
_NO = r"not|no|never|without|neither|nor|cannot|rather than|other than|anything but|negative for"
_DENIED = re.compile(
    # "!X", "~X", "not X", "this is not X", "X is not it", "X was ruled out"
    r"^\W*[!！~∼～¬≠]"
    rf"|^(?:\W|(?:{_BEFORE})\b)*(?:{_NO})\b(?!-)"
    r"|\b(?:is|are|was|were|do|does|did|has|have|can|could|should|would)(?: not\b|n'?t\b)"
    r"|\b(?:can'?t|won'?t|cannot)\b|^\W*(?:ruled[ -]out|excluded)\b"
    r"|\b(?:ruled[ -]out|excluded|unlikely|not present|is absent)\W*$"
    # "X (negative)", "X: absent", but "X (HER2 negative)" is a kind of X
    r"|(?:[(\[:]| [-–—]) ?(?:negative|absent|none|no|false)\W*$"
    r"|\bruled[ -]out by\b|[❌✗✘🚫⛔☒👎∅⊘☐❎✕]|^\W*(?:不是|并非|没有|排除|否认)"
    # "− X", "X ×", "X (−)", "X, no", "X = no", "X (0 %)", "absence of X", "X-free", "X mimic"
    r"|^\s*[−×]|(?:[,=]| [‐-―]) ?(?:no|none|false)\W*$"
    # signs at the end, looked for in the last run of signs alone: elsewhere it would take a square
    r"|(?:^|(?<=\w))(?=\W*$)\W*?(?:×|[(（]\s*[-−–]\s*[)）])"
    r"|[(（]\s*0+(?:\.0+)?\s*(?:%\s*)?[)）]\W*$|^\W*(?:absence|exclusion|lack|mimics?) of\b"
    r"|-free\W*$|\bmimics?\W*$|^\W*(?:resolved|excluded)\b",
    re.IGNORECASE,
)
_DOUBTED = re.compile(
    # "X?", "possibly X", "rule out X"
    r"[?？¿؟]|[(（]\s*(?:differential|probability\b[^()]{0,20})[)）]"
    r"|\b(?:possibl[ey]|probabl[ey]|maybe|perhaps|likely|unlikely|suspected|suspicio(?:n|us)"
    r"|presum(?:ed|ably|ptive)|doubtful|might|(?:may|could|can) be|rule[ -]out|consider(?:ing)?"
    r"|suggest(?:s|ing|ive))\b|\br/o\b|^\W*query\b"
    r"|疑似|可能|待排|待查",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    # "X or Y", "X vs Y", "X / Y", "X; Y"; "and/or" as well, "graft versus host" not
    r"(?<![-\w])(?:or|vs|versus|either)(?![-\w])(?! host\b| without\b)"
    r"|\s[/|]\s|[;；](?=\s|[^\W\d_]{3})|\n\s*\S|或|还是",
    re.IGNORECASE,
)
# An element of HTML or XML, also where its bracket was made harmless: <b>, ‹/sup>, <a href="…">.
_VALUE = r"(?:\"[^\"<>]{0,200}\"|'[^'<>]{0,200}'|[^\s<>\"']{1,200})"
_MARKUP = re.compile(
    rf"[<‹]/?[A-Za-z][A-Za-z0-9]{{0,15}}(?:\s{{1,9}}[\w:-]{{1,40}}\s?=\s?{_VALUE}){{0,8}}\s?/?>"
)
# Characters of scripts that put nothing between words: kana and ideographs.
_UNSPACED = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Block:
    """One complete `<tag>content</tag>`; `text[start:end]` is the whole of it, tags included."""

    tag: str
    content: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The complete blocks of a text in order; `errors` counts misplaced tags and control tokens."""

    found: tuple[Block, ...]
    errors: int


@lru_cache(maxsize=64)
def any_tag(names: tuple[str, ...]) -> re.Pattern[str]:
    """Opening and closing tags of these names, and of a thought."""
    return re.compile(rf"<(/?)({'|'.join(map(re.escape, (*names, THINK)))})>")


def digest(text: str) -> bytes:
    """The BLAKE2b digest, 8 bytes, of a text of any characters, halves of one included."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def control_tokens(text: str) -> int:
    """How many control tokens, such as `<|im_end|>`, stand in `text`."""
    return sum(1 for _ in _CONTROL.finditer(text))


def blocks(text: str, tags: Sequence[str]) -> Blocks:
    """The blocks of `tags` (matched exactly, lower case as given) that follow an optional thought.

    A thought is everything up to the first `</think>`; its opening tag may be missing, since some
    chat templates write it. Tags inside it are not read, and are errors, as is each control token
    anywhere. No block contains a tag: another opening tag abandons the open block and takes over
    from it, a closing tag of another name abandons it too; each tag that is part of no block is one
    error. Linear in `len(text)`; never raises.
    """
    pattern = any_tag(tuple(tags))
    thought, closed, rest = text.partition(f"</{THINK}>")
    errors = control_tokens(text)
    if closed:
        errors += sum(1 for _ in pattern.finditer(thought)) - thought.lstrip().startswith(
            f"<{THINK}>"
        )
    else:
        thought, rest = "", text
    found, strays = scanned(rest, pattern, len(thought) + len(closed))
    return Blocks(found, errors + strays)


def scanned(
    text: str, tags: re.Pattern[str], offset: int = 0, *, thoughts: bool = False
) -> tuple[tuple[Block, ...], int]:
    """The complete blocks of `text` in order, and how many of `tags` belong to none.

    No block contains a tag: an opening tag abandons the open block and takes over from it, a
    closing tag of another name abandons it too. With `thoughts` a thought is a block. Then a
    closing tag of a thought that is the first tag is no error and no block: some chat templates
    write its opening tag.
    """
    found: list[Block] = []
    opened: re.Match[str] | None = None
    errors = 0
    for count, tag in enumerate(tags.finditer(text)):
        if not tag[1]:
            errors += opened is not None
            opened = tag
        elif opened is not None and opened[2] == tag[2] and (thoughts or tag[2] != THINK):
            content = text[opened.end() : tag.start()]
            found.append(Block(tag[2], content, offset + opened.start(), offset + tag.end()))
            opened = None
        elif count or not thoughts or tag[2] != THINK:
            errors += 1 + (opened is not None)
            opened = None
    return tuple(found), errors + (opened is not None)


def tagged(tag: str, content: str) -> str:
    """`<tag>content</tag>`: what `blocks` reads back."""
    return f"<{tag}>{content}</{tag}>"


def neutralise(text: str) -> str:
    """`text` with everything made harmless that could act as a tag or a control token.

    For text that goes into a transcript: a record that contains `<diagnose>` or `<|im_end|>` must
    not act. Only the opening bracket changes (`<` to `‹`, `[` to `［`), and only where it could
    open such a token, so `WBC < 5` and `<5` stay. Idempotent.
    """
    if "<" in text:
        text = _OPENER.sub("‹", text)
    return _BRACKET.sub("［", text) if "[" in text else text


def _blank(found: re.Match[str]) -> str:
    """A space for punctuation; combining marks stay, since in many scripts they are letters."""
    return found[0] if unicodedata.category(found[0])[0] == "M" else " "


_NAME = 1_000  # characters: what is longer is no name that comes again


def normalise(name: str) -> str:
    """The normal form in which names are compared (C-MIG B.3).

    Lower case, compatibility forms folded (NFKC), punctuation dropped, white space folded. Unlike
    the paper's, it keeps what carries meaning. Signs stay: `+ - < > % ≤ ≥ ≠ ± ↑ ↓ ♂ ♀`, so that
    "Rh-" is not "Rh+" and "stage <3" not "stage >3". A hyphen within a word is punctuation, a
    decimal point is not, and ".5" is "0.5". Only a leading article is dropped: "Hepatitis A" is not
    "Hepatitis". Idempotent; empty for a name without content.
    """
    return _of_name(name) if len(name) <= _NAME else _normal(name)


def _normal(name: str) -> str:
    seen = settled(_UNSEEN.sub("", _APOSTROPHES.sub("", name)))
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).lower())
    text = _DASHES.sub("-", _APOSTROPHES.sub("", text)).replace("_", " ")
    text = _HYPHEN.sub(" ", _LEADING.sub("0.", _POINT.sub(" ", text)))
    text = unicodedata.normalize("NFKC", _PUNCTUATION.sub(_blank, text))
    return _ARTICLES.sub("", " ".join(text.split()))


_of_name = lru_cache(maxsize=4_096)(_normal)  # the same few names are compared in every episode


def settled(text: str) -> str:
    """`text` with at most _MARKS combining marks in a row, so that normalising it is linear."""
    if text.isascii():
        return text
    kept, run = [], 0
    for letter in text:
        run = run + 1 if unicodedata.combining(letter) else 0
        if run <= _MARKS:
            kept.append(letter)
    return "".join(kept)


def asserts(answer: str) -> bool:
    """Whether an answer says of one disease that it is the diagnosis.

    It does not where it denies ("not X", "!X", "X was ruled out"), doubts ("possibly X", "X?") or
    offers several ("X or Y", "X / Y", "X; Y"). English and some Chinese words are known; the rule
    reads words, not sense: "non-X" and "X without Y" are names of diseases, and so are "X, not
    elsewhere classified" and "X and Y". Linear in the length of the answer.

    >>> [asserts(text) for text in ("asthma", "asthma?", "no asthma", "asthma or not")]
    [True, False, False, False]
    """
    said = _folded(answer).strip()
    return not (_DENIED.search(said) or _DOUBTED.search(said) or _SEVERAL.search(said))


def doubts(answer: str) -> bool:
    """Whether an answer says only that something may be ("possibly X", "X?", "rule out X").

    The words are those of `asserts`.
    """
    return bool(_DOUBTED.search(_folded(answer)))


def _folded(answer: str) -> str:
    """`answer` with signs in their common form: "⁇" is "??", and an apostrophe is "'"."""
    folded = unicodedata.normalize("NFKC", settled(_APOSTROPHES.sub("'", answer)))
    return folded.replace("_", " ")


def same_name(one: str, other: str) -> bool:
    """Whether two names have the same normal form; two empty ones are no match.

    The normal form has no "!" and no "?". So both have to be asserted, or neither: "asthma?" is not
    "asthma".
    """
    form = normalise(one)
    return bool(form) and form == normalise(other) and asserts(one) == asserts(other)


def abbreviates(short: str, name: str) -> bool:
    """Whether the letters of `short` stand in `name` in this order, the first one first.

    >>> abbreviates("TG", "triglycerides"), abbreviates("ALT", "liver enzymes")
    (True, False)
    """
    short, name = normalise(short).replace(" ", ""), normalise(name)
    letters = iter(name)
    return 0 < len(short) < len(name) and short[0] == name[0] and all(s in letters for s in short)


def several(count: int, noun: str) -> str:
    """A number of things, for nouns with a regular plural.

    >>> several(1, "case"), several(1_200, "case")
    ('1 case', '1,200 cases')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def unsteering(text: str) -> str:
    """`text` for a terminal: what could steer one is a blank, such as a colour's code.

    Lines stay lines. Every text that a file, a model or a server wrote goes through this on its way
    to a terminal.

    >>> unsteering("red \\x1b[31m")
    'red  [31m'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def without_markup(text: str) -> str:
    """`text` with a blank in place of each element of HTML or XML, such as <b> and </sup>."""
    return _MARKUP.sub(" ", text)


def places(name: str, text: str) -> Iterator[int]:
    """Where `name` begins in `text` as whole words; both are in normal form.

    Whatever is no letter and no digit may stand beside it: "flu" stands in "flu<" and in "b>flu".
    A decimal point is part of a number: "type 1" is not in "type 1.5". Chinese and Japanese
    characters are words by themselves, since nothing stands between words there. None for an empty
    name.
    """
    at = text.find(name) if name else -1
    while at >= 0:
        end = at + len(name)
        before, after = text[at - 1 : at], text[end : end + 1]
        if not (_one_word(before, name[0]) or _one_word(name[-1], after)):
            yield at
        at = text.find(name, at + 1)


def _one_word(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word or number; "" is a text's edge."""
    return _spelt(left) and _spelt(right)


def _spelt(sign: str) -> bool:
    """Whether words and numbers are spelt with `sign`: a letter, a mark, a digit, the point."""
    known = sign == "." or unicodedata.category(sign or " ")[0] in "LMN"
    return known and not _UNSPACED.match(sign)


def up_to(text: str, stop: Sequence[str], *, in_thoughts: bool = True) -> str:
    """`text` up to the end of the stop string that ends first; all of it if there is none.

    Without `in_thoughts` those before the first `</think>` do not count.
    """
    closed = f"</{THINK}>"
    begin = 0 if in_thoughts or closed not in text else text.index(closed) + len(closed)
    ends = [at + len(mark) for mark in stop if (at := text.find(mark, begin)) >= 0]
    return text[: min(ends)] if ends else text
