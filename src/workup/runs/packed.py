"""How episodes lie in episodes.sqlite: in blocks that are compressed.

A block holds the episodes of one write that have phase, doctor, stage and step in common. An
episode's number is 4,096 times the id of its block, plus its place in the block. A case's number is
made in the same way, from the id of its chunk of cases. Four parts of a block are compressed by
themselves, so that a list of episodes reads no transcripts:

    told        scores, parts and measures, three lines of JSON per episode
    said        how many texts are the block's own; these texts, a line each; a line per episode
    logprobs    float32, of the doctor's own tokens; the column of an episode has 0 at the others
    advantages  float32, of all tokens, or none for an episode

An episode's line is, for example, "-1,7,-2;120;0": the numbers of its texts, of its
log-probabilities (120) and of its advantages (none). Texts are the opening, with the ids of the
first prompt, and then the turns, each with the ids that were sampled and those of the next prompt
(none behind the last turn). Tabs part a text from its ids.

Numbers below 0 count the block's own texts: −1, −2, … A text that comes back in a later block is
written once more, into the table `shared`. From then on it is only referred to, by its number in
the whole file. A row of `shared` holds several texts, and its id is the number of the first one.

Log-probabilities lie as four planes, the first byte of each, then the second …, each compressed by
itself: signs and exponents are much alike, the rest is noise. Chunks of cases are compressed with
the first chunk as a dictionary.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

TURN = (
    *("text", "kind", "content", "errors", "item", "evidence", "observation", "done"),
    *("truncated", "sources", "understood", "parts", "passages"),
)
COUNTED = ("prompt", "completion")  # of a turn's tokens; the last two of its columns
_HEAD = '{"columns":' + json.dumps([*TURN, *COUNTED], separators=(",", ":")) + ',"rows":['
PER_BLOCK = 4_096  # numbers of episodes and of cases that a block or a chunk has for its own
FULL = 2**19  # characters after which a block of episodes or a chunk of cases is closed
LARGEST = 2**28  # bytes of a part that is read, and characters of one episode's texts
WINDOW = 2**15  # bytes that zlib takes for a dictionary
REMEMBERED = 200_000  # texts that a writer looks out for
HELD = 2**20  # bytes of compressed parts that a reader keeps unpacked; ten times as many then


@dataclass(frozen=True, slots=True)
class PackedEpisode:
    """One episode, ready for a block.

    `texts` are the opening and the turns, `told` scores, parts and measures as JSON. `logprobs`
    are those of the doctor's own tokens. `advantages` are those of all tokens, or none.
    """

    texts: Sequence[str]
    told: tuple[str, str, str]
    logprobs: array[float]
    advantages: array[float]

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))


def text(body: str, *ids: Sequence[int]) -> str:
    """A text of a block: JSON on one line, and lists of token ids that belong to it."""
    return "\t".join((body, *(",".join(map(str, each)) for each in ids)))


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")] if text else []


def spans(sizes: Sequence[int]) -> Iterator[range]:
    """The places of what goes into one block or chunk each, by the characters of each."""
    start, size = 0, 0
    for place, own in enumerate(sizes):
        if place > start and (size > FULL or place - start == PER_BLOCK):
            yield range(start, place)
            start, size = place, 0
        size += own
    if sizes:
        yield range(start, len(sizes))


class Sharing:
    """Which texts have a number in the whole file, and which were met in an earlier block.

    `last` is the id of the newest row of `shared` that is known here, None before there is one. A
    writer that finds a newer row in the file makes this object anew.
    """

    def __init__(self, texts: Iterable[str], last: int | None) -> None:
        self.numbers = {_digest(text): number for number, text in enumerate(texts)}
        self.last = last
        self._met: set[bytes] = set()

    def pack(self, entries: Sequence[PackedEpisode]) -> tuple[dict[str, bytes], list[str]]:
        """The parts of a block by column, and the texts that are shared from now on."""
        new: list[str] = []
        own: dict[str, int] = {}
        lines = []
        for entry in entries:
            numbers = [self._number(each, own, new) for each in entry.texts]
            counts = len(entry.logprobs), len(entry.advantages)
            lines.append(";".join([",".join(map(str, numbers)), *map(str, counts)]))
        if len(self._met) > REMEMBERED:
            self._met.clear()
        self._met.update(map(_digest, own))
        floats = b"".join(entry.logprobs.tobytes() for entry in entries)
        parts = {
            "told": squeezed(line for entry in entries for line in entry.told),
            "said": squeezed([str(len(own)), *own, *lines]),
            "logprobs": b"".join(zlib.compress(floats[byte::4]) for byte in range(4)),
            "advantages": zlib.compress(b"".join(entry.advantages.tobytes() for entry in entries)),
        }
        return parts, new

    def _number(self, text: str, own: dict[str, int], new: list[str]) -> int:
        key = _digest(text)
        if (number := self.numbers.get(key)) is not None:
            return number
        if key not in self._met:
            return own.setdefault(text, -1 - len(own))
        new.append(text)
        self.numbers[key] = len(self.numbers)
        return self.numbers[key]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=12).digest()


def squeezed(lines: Iterable[str], like: bytes = b"") -> bytes:
    """A part of these lines, none of which holds a line's end; `like` is a dictionary."""
    packer = zlib.compressobj(9, zdict=like) if like else zlib.compressobj(9)
    return packer.compress("\n".join(lines).encode()) + packer.flush()


def opened(part: bytes, like: bytes = b"") -> list[str]:
    """The lines of a part. Raises zlib.error where it is damaged."""
    whole, _ = _unpacked(part, like)
    return whole.decode().split("\n")


def _unpacked(part: bytes, like: bytes = b"", most: int | None = None) -> tuple[bytes, bytes]:
    """What was compressed, and the bytes that follow it. Raises zlib.error where it is damaged.

    `most` are its bytes at most; without it LARGEST.
    """
    packer = zlib.decompressobj(zdict=like) if like else zlib.decompressobj()
    whole = packer.decompress(part, LARGEST if most is None else most)
    if not packer.eof:
        raise zlib.error("a part is cut off, or larger than any that is written")
    return whole, packer.unused_data


def _bytes(part: bytes) -> bytes:
    return _unpacked(part)[0]


def likeness(connection: sqlite3.Connection) -> bytes:
    """The dictionary of the chunks of cases after the first one; none before there is one."""
    first = connection.execute("SELECT lines FROM bodies WHERE id = 1").fetchone()
    return b"" if first is None else _bytes(first[0])[:WINDOW]


def _floats(part: bytes) -> bytes:
    planes = []
    for _ in range(4):
        plane, part = _unpacked(part, most=LARGEST // 4)
        planes.append(plane)
    whole = bytearray(sum(map(len, planes)))
    for byte, plane in enumerate(planes):
        whole[byte::4] = plane
    return bytes(whole)


class UnpackedEpisode:
    """An episode's texts in their pieces, and its place among the floats of its block.

    `first_logprob` is where its log-probabilities begin, `advantages` where its advantages begin
    and end. `counts` are the tokens of each turn: of its prompt, of the completion.
    """

    def __init__(
        self, texts: list[list[str]], first_logprob: int, advantages: tuple[int, int]
    ) -> None:
        self.texts, self.first_logprob, self.advantages = texts, first_logprob, advantages
        prompts = [_count(ids[-1]) for ids in texts]  # each text ends with the ids that follow it
        self.counts = [
            (prompt, _count(said)) for prompt, (_, said, _) in zip(prompts, texts[1:], strict=False)
        ]


class Connection(sqlite3.Connection):
    """A connection whose statements can say `packed(COLUMN, EPISODE)` and `body(CASE)`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        BlockReader(self)


class BlockReader:
    """Reads the parts of blocks through a connection, and keeps those that were read last.

    Numbers of blocks are never used twice, so what was read stays right.
    """

    def __init__(self, connection: Connection) -> None:
        # SQLite holds on to this object for as long as the connection is open.
        self._held = weakref.ref(connection)
        self._kept: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._starts: list[int] = []
        self._like = b""
        self._last: tuple[tuple[int, int], UnpackedEpisode] = (
            (-1, -1),
            UnpackedEpisode([], 0, (0, 0)),
        )
        self._columns: dict[str, Callable[[int, int], Any]] = {
            **{name: partial(self._told, place) for place, name in enumerate(TOLD)},
            **{name: getattr(self, f"_{name}") for name in SAID},
        }
        connection.create_function("packed", 2, self.column)
        connection.create_function("body", 1, self.body)

    @property
    def _connection(self) -> Connection:
        connection = self._held()
        assert connection is not None
        return connection

    def column(self, name: str, episode: int) -> Any:
        """A column of one episode, as `store` describes it."""
        return self._columns[name](*divmod(episode, PER_BLOCK))

    def body(self, case: int) -> str:
        """A case as JSON."""
        chunk, number = divmod(case, PER_BLOCK)
        query = "SELECT lines FROM bodies WHERE id = ?"
        if not self._like and chunk > 1:
            self._like = likeness(self._connection)
        unpack = partial(opened, like=self._like if chunk > 1 else b"")
        lines: list[str] = self._part("lines", chunk, query, unpack)
        return lines[number]

    def _told(self, place: int, block: int, number: int) -> str | None:
        lines: list[str] = self._read("told", block, opened)
        line = lines[len(TOLD) * number + place]
        return None if line == "null" else line

    def _opening(self, block: int, number: int) -> str:
        return self._episode(block, number).texts[0][0]

    def _turns(self, block: int, number: int) -> str:
        found = self._episode(block, number)
        rows = [
            f"{row[:-1]},{prompt},{said}]"
            for (row, *_), (prompt, said) in zip(found.texts[1:], found.counts, strict=True)
        ]
        return f"{_HEAD}{','.join(rows)}]}}"

    def _tokens(self, block: int, number: int) -> bytes:
        ids = (each for _, *lists in self._episode(block, number).texts for each in lists)
        return array("i", _numbers(",".join(filter(None, ids)))).tobytes()

    def _mask(self, block: int, number: int) -> bytes:
        counts = self._episode(block, number).counts
        return b"".join(bytes(prompt) + b"\1" * said for prompt, said in counts)

    def _logprobs(self, block: int, number: int) -> bytes:
        episode = self._episode(block, number)
        floats: bytes = self._read("logprobs", block, _floats)
        pieces: list[bytes] = []
        start = 4 * episode.first_logprob
        for prompt, said in episode.counts:
            pieces += bytes(4 * prompt), floats[start : start + 4 * said]
            start += 4 * said
        return b"".join(pieces)

    def _advantages(self, block: int, number: int) -> bytes:
        start, end = self._episode(block, number).advantages
        floats: bytes = self._read("advantages", block, _bytes)
        return floats[4 * start : 4 * end]

    def _episode(self, block: int, number: int) -> UnpackedEpisode:
        if self._last[0] != (block, number):  # several columns of one episode are read together
            own, episodes = self._read("said", block, _spread)
            numbers, first_logprob, advantages = episodes[number]
            texts, size = [], 0
            for each in numbers:  # a damaged one may name the same large text many times
                texts.append(own[-1 - each] if each < 0 else self._shared_text(each))
                size += len(texts[-1])
                if size > LARGEST:
                    raise ValueError("an episode is larger than any that is written")
            found = UnpackedEpisode([each.split("\t") for each in texts], first_logprob, advantages)
            self._last = (block, number), found
        return self._last[1]

    def _shared_text(self, number: int) -> str:
        place = bisect_right(self._starts, number)
        if place == len(self._starts):  # perhaps in a row that was written since
            found = self._connection.execute("SELECT id FROM shared ORDER BY id")
            self._starts = [id for (id,) in found]
            place = bisect_right(self._starts, number)
        start = self._starts[place - 1]
        query = "SELECT texts FROM shared WHERE id = ?"
        texts: list[str] = self._part("texts", start, query, opened)
        return texts[number - start]

    def _read(self, name: str, block: int, unpack: Callable[[bytes], Any]) -> Any:
        return self._part(name, block, f"SELECT {name} FROM blocks WHERE id = ?", unpack)

    def _part(self, name: str, id: int, query: str, unpack: Callable[[bytes], Any]) -> Any:
        key = name, id
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        ((part,),) = self._connection.execute(query, (id,)).fetchall()
        found = unpack(part)
        self._kept[key] = found, len(part)
        self._size += len(part)
        while self._size > HELD and len(self._kept) > 1:
            _, (_, size) = self._kept.popitem(last=False)
            self._size -= size
        return found


TOLD = ("scores", "parts", "measures")
SAID = ("opening", "turns", "tokens", "mask", "logprobs", "advantages")


def _count(ids: str) -> int:
    return ids.count(",") + 1 if ids else 0


def _spread(part: bytes) -> tuple[list[str], list[tuple[list[int], int, tuple[int, int]]]]:
    """A block's own texts, and its episodes as `BlockReader._episode` takes them."""
    count, *lines = opened(part)
    own = lines[: int(count)]
    episodes = []
    first_logprob = first_advantage = 0
    for line in lines[int(count) :]:
        numbers, logprobs, advantages = line.split(";")
        end = first_advantage + int(advantages)
        episodes.append((_numbers(numbers), first_logprob, (first_advantage, end)))
        first_logprob, first_advantage = first_logprob + int(logprobs), end
    return own, episodes
