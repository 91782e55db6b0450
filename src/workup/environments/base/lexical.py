"""Which entries does a request speak about? By shared words; deterministic.

Chinese is written without spaces: there a word is any two neighbouring characters, once the words
of asking are taken away.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache

from rapidfuzz import process
from rapidfuzz.distance import Indel
from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

from workup.core.text import normalise

# Words of asking ("please", "check"), not words of what is asked for.
_REQUESTING = (
    "a about an and any are at be been can check could did do does ever for from get give had "
    "has have having he him his her how i if in is it its me my of on or order patient patients "
    "perform performed please s she show tell that the their there they this to was were what when "
    "which with would you your "
    # contractions, which have no apostrophe in normal form
    "whats wheres whens hows whos thats theres heres hes shes theyre youre ive im "
    "isnt arent wasnt werent hasnt havent hadnt doesnt dont didnt"
)
STOPWORDS = frozenset(_REQUESTING.split())
"""Words that ask and say nothing of what is asked for, in normal form."""
HAN = r"\u3400-\u4dbf\u4e00-\u9fff"
"""The Chinese characters, for use inside the brackets of a regular expression."""
_HAN = re.compile(f"[{HAN}]+")
_HAN_ASKING = re.compile(
    "请问|有没有|没有|有无|是不是|是否|什么|怎么样|怎样|如何|哪里|哪儿|哪些|多少|多久|多长|几个|时候|一下|告诉|可以|能否|知道"
    "|患者|病人|医生|出现|感到|觉得|[您你我他她它们的了吗呢吧啊呀么和与或也都很这那在有]"
)
# Words that together are another thing: who asks for hay fever does not ask for fever.
ONE_THING = re.compile(
    r"\b(?:(?:yellow|hay|scarlet|rheumatic|dengue|typhoid|glandular) fever|x rays?|pet (?:scan|ct)"
    r"|pale stools?|stools? pale|sleep apno?ea|sleep(?:ing)? (?:aids?|pills?|tablets?)"
    r"|ha?emoglobin (?:a1c|electrophoresis)|lactate dehydrogenase|vitamin [a-z]\d{0,2}"
    r"|(?:pulmonary|portal|intracranial|ocular|venous) (?:arterial )?hypertension"
    r"|smoke (?:detectors?|alarms?|inhalation)|rubbing alcohol|non alcoholic|worn out shoes?"
    r"|post traumatic stress|ulcerative colitis|petting zoo|drug (?:reactions?|eruptions?)"
    r"|ringers? lactate|lactated ringers?|arterial doppler|skin tests?(?= for)|blood alcohol"
    r"|e cigarettes?"
    r"|bence jones(?: protein)?|albumin (?:to )?creatinine(?: ratio)?|temperature sensation"
    r"|pleural (?:friction )?rub|swollen veins?|(?:in|during) (?:your|his|her) sleep"
    r"|(?:at|level) t\d{1,2}|chew(?:ing)? tobacco|low temperature|weight loss surgery|fundal height"
    r"|(?:cough|rash|headache|fever) (?:syrup|drops?|medicine|cream|tablets?|pills?)"
    r"|sleep (?:study|mask)|lying flat|lie flat|friction rub over the lungs?"
    r"|orthostatic hypotension|pulse (?:pressure|deficit)"
    r"|(?:muffled|distant) heart sounds?|heart sounds (?:are )?(?:muffled|distant)"
    r"|(?:potassium|iron|calcium|magnesium) supplements?|smell (?:of )?(?:alcohol|ketones?|acetone)"
    r"|(?:legs?|arms?|eyes?) (?:get |gets |feel |feels |become |becomes )?tired"
    r"|(?:left|right) handed(?:ness)?|(?:st|st segment|respiratory) depression"
    r"|pain and temperature|temperature and pain|space occupying"
    r"|fever blisters?|ice ?creams?|belly buttons?|(?:about|going) to (?:vomit|throw up)"
    r"|glyc(?:at|osylat)ed ha?emoglobin)\b"
)
_BRITISH = re.compile(r"\boe(?=dema|soph|str)")
# Words whose stem is that of another word, or not that of their own kind, and what stands for them.
_OTHERWISE = (
    (r"medications?\b", "medicine"),  # medical
    (r"abdomen\b", "abdominal"),
    (r"sleep(?:y|iness)\b", "drowsy"),  # who is sleepy does not sleep badly
    (r"test(?:es|is|icles?|icular)\b", "testicle"),  # a test
    (r"several\b", "numerous"),  # severe
    (r"stroked\b", "rubbed"),  # a stroke
    (r"operating\b", "handling"),  # an operation
    (r"hepatitis\b", "liverinflammation"),  # hepatic
    (r"positional\b", "posture"),  # positive
    (r"los(?:t|e|ing)\b(?=(?: \w+){0,4} weight\b)", "loss"),
    (r"discharged\b", "released"),  # a discharge
    (r"glass(?:es)? of\b", "cup"),  # glasses
    (r"depressed (?=fontanel)", "sunken "),  # a depression
    (r"exam\b", "examination"),
    (r"puls(?:ing|at\w{1,4})\b", "throbbing"),  # a pulse
    (r"vitamin e\b", "tocopherol"),  # whose stem is that of "vitamin"
    (r"faint(?= (?:crackles|sounds|murmur|bowel|heart))", "soft"),  # who fainted
    (r"faint\b(?<=sounds are faint)", "soft"),
    (r"periods?(?= of\b)", "timespan"),  # a menstrual period
    (r"non steroid(?:al)?\b", "nonsteroid"),  # a steroid
    (r"inhalation(?:al)?\b", "breathedin"),  # an inhaler
    (r"f(?:al|el)l(?:s|ing|en)? asleep\b", "fallasleep"),  # a fall
    (r"(?:a|common) cold\b(?= recently| lately| before|$)", "commoncold"),
    (r"ct angiogra(?:m|ms|phy)\b", "ctangiography"),
    (r"difficult(?:y|ies)\b", "trouble"),
)
# All of them in one pass, since every text that is compared goes through it.
_ANY_OTHERWISE = re.compile(rf"\b(?:{'|'.join(f'({words})' for words, _ in _OTHERWISE)})")
# A kind in one letter: of "hepatitis A" the letter counts, which is no article.
_LETTERED = re.compile(r"\b(hepatitis|influenza|inhibin|protein|factor|group|type) ([a-e])\b")
# Stems of words that are spelled as they are meant, though another word is one letter away.
_SPELLED_RIGHT = "contract shingl addict perfor strain stain water hernia palpat inspect insect"
_NO_SLIP = frozenset(_SPELLED_RIGHT.split())
# Shorter words are matched exactly: one letter apart is another laboratory value (T3, T4; WBC,
# RBC).
_SPELLED = 5


@lru_cache(maxsize=1 << 17)
def content(text: str) -> tuple[str, ...]:
    """The content words of `text` in normal form, in their order."""
    form = _BRITISH.sub("e", _HAN.sub(_pairs, normalise(text)))
    form = _LETTERED.sub(r"\1 \2\1", form)  # letter first: no slip of another kind
    form = _ANY_OTHERWISE.sub(lambda found: _OTHERWISE[(found.lastindex or 1) - 1][1], form)
    form = ONE_THING.sub(lambda thing: thing[0].replace(" ", ""), form)
    return tuple(word for word in form.split() if word not in STOPWORDS)


def words(text: str) -> frozenset[str]:
    """The content words of `text` in normal form."""
    return frozenset(content(text))


def stems(text: str) -> frozenset[str]:
    """The stems of the content words of `text`: "coughed" and "coughing" are one word."""
    return frozenset(stemmed(content(text)))


def stemmed(words: Sequence[str]) -> list[str]:
    """The stem of each word, in their order."""
    return _stemmer().analyze(" ".join(words))


@cache
def _stemmer() -> TextAnalyzer:
    return TextAnalyzerBuilder(Tokenizer.whitespace()).filter(Filter.stemmer("english")).build()


def chinese(text: str) -> bool:
    """Whether `text` holds Chinese characters."""
    return _HAN.search(text) is not None


def _pairs(run: re.Match[str]) -> str:
    """A run of Chinese characters as pairs of neighbours; a single character is a word."""
    parts = _HAN_ASKING.sub(" ", run[0]).split()
    pairs = (part[i : i + 2] for part in parts for i in range(max(len(part) - 1, 1)))
    return f" {' '.join(pairs)} "


class Lexicon:
    """Entries that can be looked up by the words they contain, or by what `read` makes of these.

    `entries` are these words, in the order of the texts.
    """

    def __init__(
        self, entries: Sequence[str], read: Callable[[str], frozenset[str]] = words
    ) -> None:
        self._read, self.entries = read, [read(entry) for entry in entries]
        self._where: defaultdict[str, list[int]] = defaultdict(list)
        for index, entry in enumerate(self.entries):
            for word in entry:
                self._where[word].append(index)
        self._vocabulary: defaultdict[str, list[str]] = defaultdict(list)
        for word in sorted(word for word in self._where if len(word) >= _SPELLED):
            self._vocabulary[word[0]].append(word)

    def overlap(self, request: str, least: float) -> list[tuple[float, int]]:
        """Entries that share at least `least` of the words of both (Jaccard), best first.

        Unweighted: in a name of two words the common one counts as much as the rare one ("chest
        pain" is not "pain").
        """
        asked = self.asked(request)
        return self._rank(
            ((len(e & asked) / len(e | asked), i) for e, i in self._touched(asked)), least
        )

    def coverage(self, request: str, least: float) -> list[tuple[float, int]]:
        """Entries that contain at least `least` of the request's words by weight, best first.

        A word weighs log(1 + n / entries that contain it); one that no entry contains weighs as if
        one did.
        """
        asked = self.asked(request)
        return self._rank(
            ((self._weight(e & asked) / self._weight(asked), i) for e, i in self._touched(asked)),
            least,
        )

    def held(self, request: str) -> list[tuple[frozenset[str], int]]:
        """The entries whose words all stand in the request, with these words; in order.

        A request may say anything besides: "Have you had any chest pain since Monday?" holds "chest
        pain". An entry without words is never held.
        """
        asked = self.asked(request)
        return [(entry, index) for entry, index in self._touched(asked) if entry <= asked]

    def apart(self, request: str, index: int) -> tuple[frozenset[str], frozenset[str]]:
        """The words that only the request has, and those that only the entry has."""
        asked, entry = self.asked(request), self.entries[index]
        return asked - entry, entry - asked

    def named(self, request: str) -> list[int]:
        """Of the entries that the request holds, those with the most words.

        Several are returned where equally long ones stand in it ("fever or cough?").
        """
        return most_words(self.held(request))

    def asked(self, request: str) -> frozenset[str]:
        """The words of a request; a slip or a plural is the known word."""
        return frozenset(map(self._spell, self._read(request)))

    def _spell(self, word: str) -> str:
        """The known word one insertion or deletion away (a plural, a slip), else the word.

        No substitution and nothing further away: dysphagia is not dysphasia, hypertension not
        hypotension. The first letter is the same: a bother is no other. A last letter goes only if
        it is s, e or i (of a stem): "allergies" is "allergic". B1 is no misspelt B12. A contraction
        is no contact (`_NO_SLIP`).
        """
        known = self._vocabulary.get(word[0])
        if word in self._where or word in _NO_SLIP or len(word) < _SPELLED:
            return word
        if not known or not word.isalpha():
            return word
        near = process.extractOne(word, known, scorer=Indel.distance, score_cutoff=1)
        return word if near is None or (near[0] == word[:-1] and word[-1] not in "sei") else near[0]

    def _touched(self, asked: Iterable[str]) -> list[tuple[frozenset[str], int]]:
        touched = sorted({index for word in asked for index in self._where.get(word, ())})
        return [(self.entries[index], index) for index in touched]

    def _weight(self, chosen: Iterable[str]) -> float:
        count, size = self._where, len(self.entries)
        return math.fsum(math.log1p(size / max(len(count.get(word, ())), 1)) for word in chosen)

    @staticmethod
    def _rank(scored: Iterable[tuple[float, int]], least: float) -> list[tuple[float, int]]:
        return sorted(
            (pair for pair in scored if pair[0] >= least), key=lambda pair: (-pair[0], pair[1])
        )


def most_words(held: Sequence[tuple[frozenset[str], int]]) -> list[int]:
    """The numbers of the entries with the most words."""
    most = max((len(entry) for entry, _ in held), default=0)
    return [index for entry, index in held if len(entry) == most]


def unheld(held: Sequence[tuple[frozenset[str], int]]) -> list[int]:
    """The numbers of the entries whose words no longer entry has."""
    different = {entry for entry, _ in held}
    longer = {entry for entry in different if any(entry < other for other in different)}
    return [index for entry, index in held if entry not in longer]
