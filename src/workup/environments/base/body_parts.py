"""Parts and sides of the body that a text names, so that a left knee is no right hip."""

from __future__ import annotations

import re
from functools import lru_cache

# One line for each part; ankle and foot are one, since patients say either.
_PARTS = (
    "heads?|headaches?|skull|scalp",
    "faces?|facial|cheeks?",
    "eyes?|ocular",
    "ears?",
    "noses?|nosebleeds?|nasal",
    "mouth|tongue|lips?|gums?|oral (?:ulcers?|lesions?|mucosa|cavity|exam)",
    "throat",
    "neck|cervical (?:spine|nodes?|lymph)",
    "shoulders?",
    "(?:fore)?arms?|upper (?:limbs?|extremit(?:y|ies))",
    "elbows?",
    "wrists?",
    "(?<!other )(?<!right-)hands?|fingers?|thumbs?|palms?|knuckles?",
    "chest|thora(?:x|cic)|breast ?bone|stern(?:um|al)",
    "breasts?",
    "(?<!goes )(?<!come )(?<!coming )(?<!go )(?<!went )(?<!to the )back|lumbar|spine|spinal",
    r"abdom\w+|belly|stomach|tummy|quadrant|epigastr\w+",
    "flanks?",
    "groin|inguinal",
    "hips?",
    "thighs?",
    "legs?|calf|calves|shins?|lower (?:limbs?|extremit(?:y|ies))",
    "knees?",
    "ankles?|foot|feet|heels?|toes?",
    r"armpits?|axilla\w*",
    r"vagina\w*|vulva\w*",
    r"penis|penile",
)
# Where a biopsy was taken; of other requests organs are no places.
_ORGANS = (
    "skin|cutaneous",
    "kidneys?|renal",
    "liver|hepatic",
    "lungs?|pulmonary",
    "(?:bone )?marrow",
    r"colon\w*|rect\w+",
    "lymph nodes?",
    "thyroid",
    r"prostat\w+",
    "muscles?",
    r"endometri\w+",
    "brain|cerebral",
)
# The same in Chinese, which writes no blanks; what only sounds like a part is left out ("恶心").
_HAN_PARTS = (
    "头|颅|脑(?!膜)",
    "眼",
    "耳",
    "鼻",
    "咽|喉",
    "颈",
    "肩",
    "胸|肺",
    "乳(?!酸)",
    "背|腰|脊",
    "腹(?!泻)|肝|胆|胰|脾",
    "肾(?!上腺)",
    "盆腔|骨盆",
    "髋",
    "膝",
    "腿|下肢",
    "足(?!月)|踝",
    "臂|上肢",
    "手(?!术)",
)
_BIOPSY = re.compile(r"\bbiops", re.IGNORECASE)
_BOTH = re.compile(r"\b(?:both|bilateral\w*)\b", re.IGNORECASE)
_OPPOSITES = (
    (r"\bleft\b|左", r"\bright\b(?!-hand)|右"),
    (r"\bupper\b(?=.{0,40}(?:quadrant|abd|belly))", r"\blower\b(?=.{0,40}(?:quadrant|abd|belly))"),
)
_SIDES = tuple(
    tuple(re.compile(side, re.IGNORECASE) for side in opposites) for opposites in _OPPOSITES
)
_PLACES = {part: re.compile(rf"\b(?:{part})\b", re.IGNORECASE) for part in (*_PARTS, *_ORGANS)}
_PLACES |= {part: re.compile(part) for part in _HAN_PARTS}


@lru_cache(maxsize=1 << 14)
def parts(text: str) -> frozenset[str]:
    """The parts of the body that a text names; of a biopsy the organs as well."""
    organs = _ORGANS if _BIOPSY.search(text) else ()
    known = (*_PARTS, *_HAN_PARTS, *organs)
    return frozenset(part for part in known if _PLACES[part].search(text))


def other_side(asked: str, said: str) -> bool:
    """Whether two texts name opposite sides: left and right, upper and lower abdomen."""
    if _BOTH.search(said):
        return False
    for sides in _SIDES:
        one, other = ([bool(side.search(text)) for side in sides] for text in (asked, said))
        if sum(one) == sum(other) == 1 and one != other:
            return True
    return False


def elsewhere(asked: str, said: str, *, own: str = "") -> bool:
    """Whether `said` is about another part or side than the ones asked about.

    Both name parts, and none in common, or opposite sides. With `own`, such as an item's name and
    question without its synonyms, that has to name the part or side.
    """
    wanted = parts(asked)
    apart = bool(wanted and parts(own or said)) and wanted.isdisjoint(parts(said))
    return apart or other_side(asked, own or said)
