"""What a request is about, where the words that it shares with an item are not enough.

`AskedText` reads a request: what counts of it, whether it is about the patient, and what it cannot
be about. The matcher compares words; then `AskedText` says whether what was found fits. Example:
"does your mother have asthma" has a word of the item "asthma", and does not fit it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from workup.core.case import Fact, Item, Kind
from workup.environments.base.body_parts import elsewhere, parts
from workup.environments.base.lexical import stems
from workup.environments.base.other_tests import names_other_test
from workup.environments.base.other_things import another_thing

LONGEST = 500  # characters of a request that are compared

# --- what of a request counts ---

# What a request mentions only to leave it out: "apart from the fever", "no cough, but …". It ends
# where a question begins: "besides the cough do you have fever".
_LEFT_OUT = re.compile(
    r"\b(?:apart from|aside from|besides|except(?: for)?|other than|in addition to|instead of"
    r"|rather than)\b[^,;.?!]*?"
    r"(?=$|[,;.?!]|\b(?:do|does|did|have|has|are|is|was|were) (?:you|he|she)\b)"
    r"|\b(?:no|not(?! only)|without)\b[^,;.?!]{0,80}(?=,? but\b)",
    re.IGNORECASE,
)
# "What's the hemoglobin?": a lone s beside a test's name would make another test of it.
_CONTRACTED = re.compile(r"\b(what|where|how|when|who|there)['’]s\b", re.IGNORECASE)
# How a study is made: "CT with and without contrast". Such words make no other study of it.
_MANNER = re.compile(
    r"(?:\b(?:with(?:out)?|w/?o?|non)\b\W{0,3}|\b(?:and|or)\b\W{1,3}|/ ?){1,4}"
    r"(?:iv )?con(?:trast)?\b",
    re.IGNORECASE,
)
_DIFFERENTIAL = re.compile(
    r"(?<=cbc|fbc|unt)\W+(?:with|w)\b\W{0,2}diff(?:erential)?\b", re.IGNORECASE
)
# An order that is none: "no CRP", "cancel the ECG", "CT not needed", "if negative: …".
_DECLINED = re.compile(
    r"^\W*(?:(?:test|order|image|examine|ask)\W+)?"
    r"(?:no|without|cancel\w*|skip|omit|hold off|avoid|all\b.{0,40} (?:but|except)"
    r"|(?:if|unless)\b[^,;:]{1,60}\b(?:negative|positive|normal|abnormal)"
    r"|instead of)\b(?! (?:not|you|possible|available|he|she|the patient)\b)"
    r"|^\W*(?:please )?(?:do not|don['’]?t|never|not)\b(?! (?:you|he|she|we|forget)\b)"
    r"|\b(?:not|n['’]t) (?:be )?(?:needed|necessary|indicated|required|wanted)\b|\bno need\b"
    r"|\b(?:unnecessary|contraindicated)\b|^\W*(?:不做|不查|不需要|不用|不必|无需|取消)",
    re.IGNORECASE,
)
# Why something is ordered: "chest x-ray for cough", "ECG to evaluate chest pain". It ends where
# another one begins: "test for lipase because of the pain" has two, of which the last is a reason.
_WHY = (
    r"\b(?:for|because of|due to|given|in view of"
    r"|to (?:evaluate|assess|rule out|exclude|confirm|investigate|look for|check for))\b"
)
_REASON = re.compile(rf"{_WHY}(?:(?!{_WHY})[^,;.?!])*", re.IGNORECASE)
_LOOKED_FOR = re.compile(r"for\b|to (?:look|check)", re.IGNORECASE)
# What is ordered for a reason alone: "MRI for headache". A blood test for lipase is no such study.
_STUDY = re.compile(
    r"\b(?:mri|ct|pet|eeg|e[ck]g|emg|echo\w{0,10}|x-?rays?|scans?|imaging|radiograph\w{0,3}"
    r"|ultraso(?:und|nograph\w{0,3})|sonograms?|mammogra\w{1,3}|\w{1,20}oscopy|\w{0,20}angiogra\w{1,3}"
    r"|biopsy)\b",
    re.IGNORECASE,
)
# What is taken for something: "have you taken anything for the headache" asks for no headache.
_TREATMENT = re.compile(
    r"\b(?:medic(?:ation|ine)|pill|drop|inhaler|laxative|treatment|antibiotic|painkiller)s?\b"
    r"(?=.{0,60} for\b)",
    re.IGNORECASE,
)
_FOR = re.compile(r"\bfor\b[^,;.?!]*", re.IGNORECASE)
# What makes something better or worse: "does coffee make the pain worse".
_TRIGGER = re.compile(
    r"\b(?:do|does|did|can|will|would) [^,;.?!]{1,40}? (?:make|bring|cause|trigger|worsen"
    r"|aggravate|relieve|ease|help|improve|hurt(?= (?:the|your|his|her)\b))\b(?: it\b)?",
    re.IGNORECASE,
)
# The circumstance of what is asked for: "when you cough, does your chest hurt".
_CIRCUMSTANCE = re.compile(
    r"(?:\b(?:when(?:ever)?|while|before|after|since|during)\b"
    r"|(?:(?<=\bhurt )|(?<=\bhurts )|(?<=\bpainful ))to\b(?!.*\b(?:when|while)\b))"
    r"(?:(?!\b(?:do|does|did|is|are|have|has) (?:you|your|the|it|there)\b)[^,;.?!])*,?"
    rf"|{_TRIGGER.pattern}",
    re.IGNORECASE,
)
# How an examination of a part of the body is asked for, and what says nothing of that part.
_EXAMINING = re.compile(
    r"\b(?:examin(?:e|ing|ation)|exam|inspect(?:ion)?|look(?:ing)? (?:at|over|in)"
    r"|assess|evaluate|check)\b",
    re.IGNORECASE,
)
# An order to examine that holds for what is joined to it: "examine the heart, lungs and abdomen".
# "Check weakness in an arm or leg" is none to examine the leg.
_EXAMINING_ONE = re.compile(
    r"^\W*(?:(?:please|now|let['’]s|let us|i(?:['’]d| would) like to|can you|could you)\W+)*"
    r"(?:examine|inspect|look at|assess|evaluate|check)(?: (?:the|your|his|her|both))?"
    r" (?:lower |upper |oral )?[\w-]+\W*$",
    re.IGNORECASE,
)
# "Have you had an eye exam?" asks for none.
_EXAMINED_BEFORE = re.compile(r"\b(?:had|ever|last|when|why|who|did)\b", re.IGNORECASE)
_EXAMINED = stems(
    "examine examination inspect inspection look over assess evaluate physical perform "
    "focused full complete thorough detailed careful carefully closely finding result general now "
    "next let like want would"
)
_RECALLING = stems("remember recall know tell describe explain say sure notice")
# Words of a main clause that asks for nothing by itself: "what happened after the operation".
_GENERAL = _RECALLING | stems(
    "happen begin began start started long time feel felt feeling well okay go going how ago many"
)
_MOMENT = re.compile(r"\bwh(?:en|ile)", re.IGNORECASE)
_ASIDE = re.compile(r"^\W*(?:before|after|during|to)\b", re.IGNORECASE)
# Several things in one request: "chest pain or fever", "fever, chest pain". A comma before a
# further question joins nothing.
_JOINED = re.compile(
    r"\b(?:or|and)\b(?<!comes and)(?<!come and)|[/;&]"
    r"|,(?![^,]*\b(?:do|does|did|have|has|had|is|are|was|were)\b)",
    re.IGNORECASE,
)
# Of a question for a free fact, what people do with a thing, how much and since when: words that
# records rarely repeat.
_AROUND = re.compile(
    r"\b(?:tak(?:e|es|ing|en)|us(?:e|es|ing|ed)|drink(?:s|ing)?|high|known|notic(?:e|ed|ing)"
    r"|experienc(?:e|ed|ing)|becom(?:e|ing)|more|much|many|recent(?:ly)?|lately|current(?:ly)?|now"
    r"|(?:any )?history of)\b",
    re.IGNORECASE,
)
# The panel of which one value is asked for: "albumin on liver function tests".
_OF_PANEL = re.compile(
    r"(?<=\w) (?:on|in|from|of) (?:the |a |his |her )?"
    r"(?:complete blood count|full blood count|cbc|urinalysis|liver function tests?|lfts?|bmp|cmp"
    r"|(?:basic |comprehensive )?metabolic panel)\b",
    re.IGNORECASE,
)
_REFERRING = stems("severe bad long old start begin began started side stable often much many last")
# How the age is asked for, and what a record says: "a 34-year-old man", not "normal for age".
_AGE = (
    re.compile(
        r"\bhow old (?:are you|(?:is|was) (?:he|she|the patient))\b"
        r"|\b(?:your|his|her|patient['’]s) (?:current )?age\b(?! group)|^\W*age\W*$",
        re.IGNORECASE,
    ),
    re.compile(
        r"^(?:\W|\w){0,40}?\b(?:\d{1,3}|(?:one|two|three|four|five|six|seven|eight|nine|ten))"
        r"[- ](?:year|month|week|day)s?[- ](?:\d{1,2}[- ]months?[- ])?old\b|^age\b",
        re.IGNORECASE,
    ),
)
# (asked, told) of the age and of habits. Who is asked for two of them is answered about both; a
# record may say "two beers a night" of what a question calls drinking.
_NO_ALCOHOL = r"(?:water|coffee|tea|milk|fluids?|soda|juice|enough|plenty|anything|liquids?)"
_HABITS = (
    _AGE,
    (
        re.compile(
            rf"\b(?:drink(?:s|ing)?(?! (?:\w{{1,10}} ){{0,3}}{_NO_ALCOHOL})"
            r"|(?<!blood )alcohol(?! (?:level|rub|swab|content))|etoh)\b",
            re.IGNORECASE,
        ),
        re.compile(
            r"\b(?:alcohol\w*|(?<!port[- ])wine(?! (?:tast|colou?r|stain))|beers?|vodka|liquor"
            r"|whisk(?:e?y|ies)|spirits|etoh|teetotal\w*"
            r"|drinks? (?:socially|occasionally|heavily|daily|about|\d|one|two|three|four|five))\b",
            re.IGNORECASE,
        ),
    ),
    (
        re.compile(r"\b(?:smok(?:e|es|ed|er|ing)|tobacco|cigarettes?|nicotine)\b", re.IGNORECASE),
        re.compile(
            r"(?<!exposure to )(?<!exposed to )"
            r"\b(?:(?:non-?)?smok|tobacco|cigar|nicotine"
            r"|packs?[- ]?(?:/|(?:a|per|each|every) |daily|years?))",
            re.IGNORECASE,
        ),
    ),
    (
        re.compile(
            r"\b(?:(?:illicit|illegal|recreational|street) drugs?"
            r"|(?:us(?:e|es|ing)|do|does|takes?|abuse) (?:any )?drugs"
            r"|(?:drug|substance) (?:use|abuse)|inject\w{0,3} (?:any )?drugs)\b|\bdrugs\W*$",
            re.IGNORECASE,
        ),
        re.compile(
            r"\b(?:illicit|recreational|substance|cocaine|heroin|marijuana|cannabis"
            r"|methamphetamine|drug (?:use|abuse)"
            r"|(?:us(?:e|es|ing)|abus\w*|inject\w*) (?:any |of )?(?:\w{1,12} )?drugs?)\b",
            re.IGNORECASE,
        ),
    ),
)
# What an image was made by. Who asks for a CT is not answered by an X-ray.
_MADE_BY = (
    re.compile(r"\b(?:ct|cta|computed tomogra\w{0,6})\b", re.IGNORECASE),
    re.compile(r"\b(?:mr[ia]|magnetic resonance)\b", re.IGNORECASE),
    re.compile(r"\b(?:ultraso\w{0,12}|sonogra\w{0,4}|echo\w{0,12})\b|\bUS\b"),
    re.compile(r"\b(?:x-? ?rays?|radiogra\w{0,5}|cxr|plain films?)\b", re.IGNORECASE),
)
# General words of a question about the family, which are taken away before texts are compared.
_FAMILY = re.compile(
    r"\b(?:famil(?:y|ies)|relatives?|hereditary|household|history|runs?|(?:any|some)(?:one|body))\b",
    re.IGNORECASE,
)

# --- whose state it is ---

# Each topic has two patterns: one for requests, one for the wordings of items and facts. "Family
# history of joint disease" is a wording about the family.
_KIN = (
    r"(?:(?:step-?|half-?)?(?:mother|mom|mum|father|dad|parents?|brothers?|sisters?|siblings?|sons?"
    r"|daughters?)|husband|wife|spouse|partner|girlfriend|boyfriend|fianc[eé]e?|twin|children|kids"
    r"|aunts?|uncles?|cousins?|nieces?|nephews?"
    r"|grand(?:mothers?|fathers?|parents?|sons?|daughters?|child(?:ren)?|kids?|mas?|pas?)"
    r"|friends?|neighbou?rs?|co-?workers?|colleagues?|boss|teachers?|(?:class|flat|house|room|team)-?mates?"
    r"|care-?givers?|carers?|bab(?:y-?|ie)sitters?)\b"
)
_RELATIVE = re.compile(rf"\b{_KIN}", re.IGNORECASE)
# A relative who only noticed something is not asked about: "has your wife told you that you snore".
_NOTICED = (
    r"(?! (?:tell|told|noticed?|say|said|says|heard|seen|mention(?:ed)?|complained|pointed)\b)"
)
# Chinese writes no blanks between words. A child may be the patient, so "孩子" is no relative.
_KIN_CHINESE = (
    "(?:父亲|母亲|爸爸|妈妈|父母|兄弟|姐妹|哥哥|弟弟|姐姐|妹妹|丈夫|妻子|爱人|配偶|子女|祖父|祖母|爷爷|奶奶"
    "|外公|外婆|亲属|亲戚|家人|家里人|家族|同事|朋友|邻居)"
)
_NEARBY = (
    r"(?:at (?:home|work|school)|in (?:your|the) (?:home|house(?:hold)?)|around you|close to you"
    r"|near you|you (?:know|live with|work with)"
    r"|on the (?:plane|flight|bus|train|ship|boat|trip|ward))\b"
)
# Others who are asked about. A child is one where the case is no child's (`of_patient`).
_OTHERS = (
    r"(?:(?:(?:your|his|her|their|the|any) )?"
    r"(?:child|boys?|girls?|infants?|newborns?|toddlers?|bab(?:y|ies)|twins|dogs?|cats?|pets?|animals?)"
    r"|other(?:s| people| patients?)|the (?:previous|last|next) patient)\b(?! mov)"
)
_WHOSE = r"(?:(?:any of |one of )?(?:your|his|her|their|the) )"
_ASKED_KIN = re.compile(
    r"\b(?:(?:family(?! (?:doctors?|physicians?|medicine|planning|practice))|families|relatives?"
    r"|hereditary|household(?! (?:clean|chem|product|chore|item|work)))\b"
    rf"|(?<!with )(?<!near )(?<!around )(?<!to )(?:(?:any|some|every)(?:one|body)|people|those)"
    rf"(?: else)? {_NEARBY}{_NOTICED}"
    rf"|(?<!with )(?<!near )(?<!around )(?<!to )(?:any|some)(?:one|body)(?: else)?{_NOTICED}"
    rf" (?:\w{{1,20}} ){{1,4}}{_NEARBY}"
    r"|the (?:person|people|ones?) (?:(?:who|that) )?you (?:live|work|sleep|share)\b"
    rf"|(?<!with )(?<!near )(?<!around )(?<!to )(?:any|some)(?:one|body) else\b{_NOTICED}"
    r"|(?:any|some)(?:one|body) (?:who )?smok\w{1,3} (?:around|near)\b"
    rf"|(?:do|does|did|has|have|had|is|are|was|were) {_WHOSE}?(?:\w{{1,20}} )?{_KIN}{_NOTICED}"
    rf"|(?:in|of|among) {_WHOSE}{_KIN}|{_WHOSE}{_KIN}['’]s?|(?<!\w ){_KIN}['’]s?"
    rf"|(?:do|does|did|is|are|was|were) {_OTHERS}{_NOTICED})|^\W*your {_KIN}"
    rf"|{_KIN_CHINESE}(?!.{{0,4}}(?:发现|注意|说|诉|告诉|提到|觉得|看到))",
    re.IGNORECASE,
)
_TOLD_KIN = re.compile(
    rf"\b(?:famil|relatives?\b|heredit|inherit|{_KIN})|{_KIN_CHINESE}", re.IGNORECASE
)
# A fact about somebody else: "My mother had breast cancer." It is no answer about the patient. One
# that somebody else noticed is the patient's, and so is one that a parent says of a child.
_NOTICING = r"(?:\w{1,20} )?(?:notic|noted|concerned|observed|worried|brought)"
_DOES = (
    r"(?:\w{1,12}ly )?(?:had|has|have|was|is|were|are|died|suffer\w{0,3}|passed away|developed"
    r"|underwent|experienced|became|began|takes?|taking|took|uses?|used|smokes?|smoked|drinks?|drank"
    r"|received|required)"
)
_OF_KIN = re.compile(
    rf"(?:\b(?:my|his|her|their|patient['’]s) (?:[\w-]{{1,20}} )?{_KIN}"
    rf"(?: and (?:[\w-]{{1,20}} ){{0,2}}{_KIN})?(?: both)?"
    r" (?:had|has|have|was|is|were|are|died|suffer)"
    rf"|(?:^|[.:] )(?:both |no |the (?!son|daughter|child|kid))?(?:{_KIN}|relatives?\b)"
    rf" (?:had|has|have|died))(?! {_NOTICING})"
    rf"|\b(?:has|have|had) (?:an?|one|two|three) (?:[\w-]{{1,20}} )?{_KIN} (?:with|who)\b"
    rf"|(?<!and )\b(?:my|his|her|their|the|\w{{1,20}}['’]s) (?:[\w-]{{1,20}} ){{0,2}}{_KIN}"
    rf"(?<!son)(?<!daughter) {_DOES}\b(?! {_NOTICING})(?! (?:\w{{1,20}} )?(?:found|seen|witnessed"
    r"|told|by|worried|afraid|requesting|unable to))"
    rf"|\b(?:his|her|their|the|\w{{1,20}}['’]s) (?:[\w-]{{1,20}} ){{0,2}}{_KIN}['’]s"
    r" (?:\w{1,20} ){0,2}(?:history|decline|death|illness|disease)\b"
    r"|\banother (?:member|person|patient|child|student|passenger|camper)\b"
    r"|\b(?:in|of|throughout) (?:the|his|her|their) (?:immediate |extended )?famil(?:y|ies)\b"
    r"|(?<!personal or )(?<!personal and )\bfamily history\b|家族史"
    rf"|(?:^|[:：。；，,] ?)(?:其|患者|他|她|我)?的?{_KIN_CHINESE}"
    "(?:也|曾|均|都|有|患|因|死于|去世)",
    re.IGNORECASE,
)
_BY_KIN = re.compile(rf"\b{_KIN} (?:{_NOTICING}|says?\b|said\b|reports?\b)", re.IGNORECASE)
_BY_PARENT = re.compile(
    r"^(?:[^:]{0,80}: )?(?:(?:the|his|her) )?(?:patient['’]s )?(?:mother|father|parents?)\b"
    r"(?! of (?:\d|one|two|three|four|five|six|twins)\b)"
    r"|\bbrought\b.{0,80}\bby (?:his|her|the) (?:mother|father|parents?)\b",
    re.IGNORECASE,
)
_YOUNG = re.compile(
    r"\b(?<!-)(?:[1-9]|1[0-7]|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
    r"[- ]years?[- ]old\b|\b(?:days?|weeks?|months?)[- ]old\b"
    r"|\b(?:aged|age) (?:[1-9]|1[0-7])\b(?! ?\d)"
    r"|\b(?:boy|girl|infant|newborn|neonate|toddler|child|baby)\b|患儿",
    re.IGNORECASE,
)
# The first age that a presentation states, if it is an adult's: "a 34-year-old mother of a girl".
_ADULT = re.compile(
    r"^[^.]{0,40}?\b(?:1[89]|[2-9]\d|1\d\d|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)"
    r"(?:-\w{3,5})?)[- ]years?[- ]old\b",
    re.IGNORECASE,
)
_CHILD = re.compile(
    r"\b(?<!as a )(?<!as an )(?<!was a )(?<!was an )(?<!were a )(?<!were an )"
    r"(?:(?:your|his|her|their|the) )?"
    r"(?:(?:little )?(?:son|daughter|boy|girl)|child|baby|infant|newborn|toddler)\b",
    re.IGNORECASE,
)

_GIRL = re.compile(r"\b(?:girl|female|daughter)\b", re.IGNORECASE)
_BOY = re.compile(r"\b(?:boy|male|son)\b", re.IGNORECASE)

# --- which kind of thing it is ---


def _beginning(words: str, chinese: str = "") -> re.Pattern[str]:
    """Finds words that begin like one of `words`, and the `chinese` ones anywhere."""
    return re.compile(rf"\b(?:{words})" + (f"|{chinese}" if chinese else ""), re.IGNORECASE)


# What has an antigen and antibodies, each with results of its own.
_OF_VIRUS = r"(?:hepatitis \w|hbv|hcv|hiv|virus|surface|core|e\b)"
_TESTS = (Kind.LABORATORY, Kind.IMAGING, Kind.PROCEDURE)
_SYMBOL = re.compile(r"\b[A-Z]{1,5}-?\d|\b[A-Z]{2,}\d?\b")  # CD20, CA-125, HER2, PSA
# A time that is over. "In the last year" is not: it ends today.
_EARLIER = re.compile(
    r"(?<!\bthe )(?<!\bthis )\blast (?:year|month|summer|winter|spring|autumn|fall|season)\b"
    r"|\b(?:years?|months?) (?:ago|earlier|before)\b|(?<!since )\byesterday\b"
    r"|\ba few (?:days|weeks) before\b"
    r"|\bin the past\b"
    r"(?! (?:\d|few|couple|several|one|two|three|hour|day|week|fortnight|month|year))"
    r"|\bbefore (?:this|the (?:current|present)) (?:illness|episode|admission|one)\b"
    r"|\bever (?:had|been)\b.{0,60}\bbefore\W*$|\bpregnant before\b"
    r"|\bas (?:an? )?(?:child|kid|teen\w*|bab(?:y|ies)|infant|newborn|adolescent)\b"
    r"|\bin (?:your |his |her )?(?:childhood|youth|teens)\b"
    r"|\bwhen (?:you|he|she) (?:was|were) (?:an? )?"
    r"(?:child|kid|young\w*|little|small|bab\w+|teen\w*)\b",
    re.IGNORECASE,
)
# Smoke that is not the patient's own, and what is smoked beside tobacco.
_SMOKE_AROUND = _beginning(
    r"second[- ]?hand|passive(?:ly)? smok|exposed to .{0,20}smok|smok\w{0,3} (?:in|at)"
    r" (?:your |the )?(?:home|house|work|office|kitchen)|smokers? (?:at|in) |smoke exposure"
    r"|(?:wood|cooking|fire|chimney)[- ]?smoke"
    r"|(?:live|lived|grow|grew).{0,12} with (?:an? |any )?smokers?"
)
_CANNABIS = _beginning(r"(?:marijuana|cannabis|weed)\b")
# Who asks for ill people around the patient.
_EXPOSED = _beginning(
    r"(?:(?:contact with|expos(?:ed|ure) to|(?:been|come|were|near|live) (?:near|around|with))"
    r" (?:(?:any|some)(?:one|body)|people|others|an? (?:ill|sick)|sick|ill\b)|sick contacts?\b)"
)
# Diseases that are called fevers.
_FEVERS = "(?:yellow|valley|scarlet|dengue|rheumatic|typhoid|lassa|spotted) fever"
# (asked, told): who asks about one of these is answered only by what is about the same. The first
# ones hold for all that a request joins: "does your mother have asthma or diabetes".
_ABOUT_ALL = (
    (_ASKED_KIN, _TOLD_KIN),
    (
        _beginning(r"vaccin|immuni[sz]|(?:shots?|jabs?) (?:against|for)\b"),
        _beginning(r"vaccin|immuni[sz]|shots?\b|jabs?\b"),
    ),
    (_beginning(r"allerg(?:y|ic|ies) to\b", "对.{1,9}过敏"), _beginning("allerg", "过敏")),
    (
        _beginning(r"medic(?:ation|ine)s?\b|(?:pills?|tablets?|drugs?) for\b"),
        _beginning(
            r"medic|tak(?:es?|ing)\b|treat|drug|pill|tablet|therap|prescri|inhal|managed\b|controlled"
        ),
    ),
    (
        _beginning(
            r"(?:use|do|inject|illicit|recreational|street)"
            r" (?:any |illegal |illicit |recreational |street ){0,2}drugs?\b|drug (?:use|abuse)\b"
        ),
        _beginning("use|using|abuse|illicit|recreation|inject|substance|cocaine|heroin"),
    ),
    (
        _CANNABIS,
        _beginning("marijuana|cannabis|weed|drug|subst"),
    ),
    (
        _SMOKE_AROUND,
        _beginning("second[- ]?hand|passive|expos|household"),
    ),
    (
        _EXPOSED,
        _beginning("contact|expos|sick|ill|similar|travel"),
    ),
    (
        _EARLIER,
        _beginning(
            r"year|month|child|ago\b|past|previous|histor|ever\b|since|young|age|last"
            r"(?! (?:menstrual )?period)"
        ),
    ),
    (
        _beginning("(?:hot|cold) (?:and|or) (?:hot|cold) (?:drink|food|water|weather)"),
        _beginning("drink|food|water|weather|tooth|teeth"),
    ),
)
# These are about the piece that names them: "high blood pressure" of "asthma or high blood
# pressure".
_ABOUT_ONE = (
    (_beginning(r"white (?:blood )?(?:cell|count)|wbc\b"), _beginning(r"white\b|wbc|leu[ck]o")),
    (_beginning(r"red (?:blood )?(?:cell|count)|rbc\b"), _beginning(r"red\b|rbc|erythrocyt")),
    (_beginning("reflex"), _beginning("reflex|neuro")),
    (_beginning(_FEVERS), _beginning(f"{_FEVERS}|travel")),
    (_beginning("(?:water|room|bath) temperature"), _beginning("water|room|bath")),
    (  # "sick" is ill there, and no nausea
        re.compile(
            r"\b(?:when|how long)\b.{0,30}\b(?:feel|been|felt)\w{0,3} (?:sick|ill|unwell)\b", re.I
        ),
        _beginning("onset|since|how long|began|start|durat"),
    ),
    (re.compile("(?<![高低])血压"), re.compile("(?<![高低])血压")),
    (re.compile("(?<=[一-龥])CT"), re.compile("CT")),
    (re.compile("(?<=[一-龥])MR|磁共振"), re.compile("MR|磁共振")),
    (re.compile("(?<=[一-龥])(?:B超|超声|彩超)"), re.compile("B超|超声|彩超")),
    (
        re.compile(r"\b(?:lying|lie|lay)(?: down)? flat\b|\bpillows\b", re.IGNORECASE),
        _beginning("lying|lie|lay|flat|orthopn|pillow|supine|recumb"),
    ),
    (
        _beginning(
            r"(?:ever|previous(?:ly)?|before|prior)\b.{0,20}pregnan|been pregnant|pregnancies"
        ),
        _beginning(r"pregnancies|previous|prior|histor|gravid|para\b|births?\b|deliver|miscarr"),
    ),
    (_beginning(rf"{_OF_VIRUS} antigen"), _beginning(r"antigen|\w{0,6}ag\b")),
    (_beginning(rf"{_OF_VIRUS} antibod"), _beginning(r"anti\b|antibod|anti-|ig[gm]\b|serolog")),
    (re.compile(r"\bIgM\b"), re.compile("IgM")),
    (re.compile(r"\bIgG\b"), re.compile("IgG")),
    (_beginning(r"surface (?:anti|ag\b)"), _beginning(r"surface|hbs")),
    (_beginning(r"core (?:anti|ig)"), _beginning(r"core|hbc")),
    (_beginning(r"e ant(?:igen|ibod)"), _beginning(r"e ant|envelope|hbe")),
    (
        _beginning(r"periods? (?:usually |normally )?last\b"),
        _beginning(r"durat|lasts?\b(?! (?:menstrual )?period)|long\b|days\b"),
    ),
    (_beginning("high blood pressure"), _beginning("hypertens|(?:high|rais|elevat)")),
    (
        _beginning(r"job\b|occupation|profession\b|(?:do|does) for a living"),
        _beginning("work|occupation|retir|employ|profession|unemploy|student|job:"),
    ),
    (
        re.compile(r"^(?!.*\b(?:fo?etal|fetus|baby)).*\b(?:heart rate|pulse)\b", re.IGNORECASE),
        re.compile(
            r"\b(?:pulse|heart rate)\b(?<!fetal heart rate)(?<!foetal heart rate)"
            r"|^(?!.*\bfo?etal)",
            re.IGNORECASE,
        ),
    ),
    _AGE,
    (
        re.compile(
            r"\b(?:what|how) .{0,30}\bweigh(?:t|s)?\b(?!.*\b(?:los|gain|chang))", re.IGNORECASE
        ),
        re.compile(
            r"^(?!.*\b(?:los|gain|chang)).*\d ?(?:kg|lbs?|pounds?|g)\b|\bbmi\b", re.IGNORECASE
        ),
    ),
    (_beginning("cultur", "培养"), _beginning("cultur|grow|organism|flora", "培养")),
    (_beginning("biops", "活检"), _beginning("biops|histolog|patholog|microscop", "活检|病理")),
    (re.compile(r"\bPET\b|\bFDG"), re.compile(r"\bPET\b|(?i:positron)")),
    (
        _beginning("better|reliev|improv"),
        _beginning("better|reliev|improv|eas(?:es|ed|ing)|allevi|help|worse"),
    ),
)
# "Do you take magnesium?" asks for no laboratory value. A request that speaks of a test may, and so
# may one that a colleague is asked: "have you taken his potassium".
_TAKEN = re.compile(
    r"\b(?:do|does|did|are|is|have|has) (?:you|he|she|the patient) (?:\w{1,20} )?"
    r"(?:tak|us(?:e|ing)\b|(?:been )?(?:prescribed|on)\b)|\bsupplements?\b"
    r"|服用|在吃|在用|吃过",
    re.IGNORECASE,
)
_TESTED = re.compile(
    r"\b(?:tests?|levels?|samples?|blood(?! (?:pressure|sugar|thin)))\b|\byou\b.*\b(?:his|her)\b"
    r"|检查|检测|化验|水平",
    re.IGNORECASE,
)
# A test of what the patient takes: it is no question about the habit.
_MEASURED = re.compile(
    r"\b(?:urine|blood|serum|breath|saliva|hair)"
    r" (?:alcohol|ethanol|etoh|drugs?|nicotine|cotinine)\b"
    r"|\b(?:urine|urinary|serum|stool) (?:proteins?|albumin|glucose|ketones?|blood)\b"
    r"|\b(?:alcohol|ethanol|etoh|nicotine|cotinine) (?:level|concentration)s?\b",
    re.IGNORECASE,
)
# Words of tests and of signs, which no question about the history has unless it says so itself.
_TEST_WORDS = re.compile(
    r"\b(?:cytolog\w{1,3}|histolog\w{1,3}|smears?|gram stain|cultures?|tenderness|serolog\w{1,3}"
    r"|antibod(?:y|ies)|antigens?|occult|dipstick|assay|titers?|titres?|pcr|swabs?|biops\w{1,3}"
    r"|auscultat\w{1,4}|palpat\w{1,4}|percuss\w{1,4})\b|\b(?:test|level|count)s?(?=\W*$)",
    re.IGNORECASE,
)
# The specimen: serum sodium is no urine sodium. It counts for laboratory tests alone, since a
# patient may say anything of urine.
_SPECIMENS = (
    _beginning("urin", "尿(?!酸|素)"),
    _beginning("csf|spinal|cerebrospinal|lumbar puncture", "脑脊液"),
    _beginning("stool|f(?:a)?ec(?:es|al)", "大便|粪"),
    _beginning("synovial|joint (?:fluid|aspirat)", "关节液|滑液"),
    _beginning("ascit|peritoneal", "腹水"),
    _beginning("pleural", "胸水|胸腔积液"),
    _beginning("pericardial", "心包"),
    _beginning("amniotic", "羊水"),
    _beginning("saliva", "唾液"),
    _beginning("sputum|phlegm|bronchoalveolar|bronchial (?:wash|lavage)", "痰"),
    _beginning(
        r"sweat (?:test|chlor|sodium|electrolyt)|(?:in|of) (?:the |his |her )?sweat\b", "汗液"
    ),
    _beginning("(?:bone )?marrow", "骨髓"),
)
# A value of the blood, and what a value or a test of it looks like in a record.
_BLOOD = re.compile(
    r"\b(?:serum|plasma|wbc|rbc|(?:white|red) (?:blood )?cell|leu[ck]ocyte count|cbc"
    r"|(?:complete|full) blood count"
    r"|blood (?:glucose|sugar|urea|cortisol|calcium|sodium|potassium|protein|culture))"
    "|血(?:清|浆|液|常规|白细胞|红细胞|蛋白|糖|钠|钾|钙|氯|肌酐|尿素|培养|脂)",
    re.IGNORECASE,
)
_OF_BLOOD = re.compile(
    r"\b(?:serum|plasma|cbc|hemoglobin|blood(?! cells?))|血(?![尿压管])", re.IGNORECASE
)
_VALUE = re.compile(
    r"\d ?(?:mg|g|µg|μg|mcg|ng|pg|mmol|meq|u|iu|miu|mu|µmol)/|\bserum\b|\blaborator|\blevels?\b"
    r"|\bstudies\b|\bblood (?:tests?|work|pressure)|\belectrolytes?\b|\bsaturation\b|\broom air\b",
    re.IGNORECASE,
)
_TREATED = re.compile(r"\b(?:tak|medic|supplement|prescri)", re.IGNORECASE)
# "Have you ever had a gastroscopy?" orders none.
_HAD_BEFORE = re.compile(
    r"\b(?:have|has|had) (?:you|he|she|the patient) ever\b|\bhad\b.{1,40}\bbefore\W*$",
    re.IGNORECASE,
)
# Who asks for what has been ("any recent surgery") is answered by no test and by nothing planned.
_OF_PAST = re.compile(
    r"\b(?:have|has|had) (?:you|he|she|the patient) (?:ever |recently )?"
    r"(?:had|used|taken|undergone)\b"
    r"|\brecent (?!lab|test|blood|imag|x-?ray|ct\b|mri\b|scan|result|value|weight)|\bhistory of\b",
    re.IGNORECASE,
)
_PLANNED = re.compile(
    r"\b(?:needs? to (?:be|under|have)|(?:is|are) (?:begun|initiated|started|scheduled|recommended)"
    r"|decides? to|will (?:be|under|have)|plans? to)\b",
    re.IGNORECASE,
)
# A stain shows a protein in the tissue. Tests of a gene or of the blood are no stains.
_STAINED = re.compile("immunohistochem", re.IGNORECASE)
_NOT_STAINED = re.compile(
    r"\b(?:[fscd]?ish\b|pcr|ngs|hybridi[sz]|mutat|rearrang|amplif|sequenc|fusion|transloc|deletion"
    r"|copy number|exon|genes?\b|genom|germline|m?rna\b|elisa|(?:western|southern) blot|autoantibod"
    r"|anti-|flow cytom|serum|csf\b|urin|ratio\b|scans?\b|pet\b|blood(?! (?:vessel|cell))"
    r"|plasma(?! cell))|血清|血浆|突变|基因|流式|荧光原位|扩增|重排|抗(?=CD)",
    re.IGNORECASE,
)
# A record's sentence on a marker, with its result: "CD20: positive."
_TOLD = re.compile(
    r"^[^:：]{1,40}[:：] ?(?:[^:：]{1,40}[:：] ?)?(?:positive|negative|阳性|阴性)(?:[,.;，。]|$)",
    re.IGNORECASE,
)
_STAIN = re.compile(r"\bimmuno(?:histo|stain|perox)|\bihc\b|\bstain", re.IGNORECASE)


class AskedText:
    """A request, of which LONGEST characters are read.

    `whole` are these, `text` the same without how a study is made. `cut` says that what was looked
    for is left out of it, `looking` that it stands behind an order to examine ("and the legs").
    """

    def __init__(self, request: str, *, cut: bool = False, looking: bool = False) -> None:
        self._cut, self._looking = cut, looking
        self.whole = _CONTRACTED.sub(r"\1 is", request[:LONGEST])
        study = _MANNER.sub(" ", self.whole) if _STUDY.search(self.whole) else self.whole
        self.text = _DIFFERENTIAL.sub(" ", study)

    @cached_property
    def thing(self) -> str:
        """The request without what it mentions to leave it out ("apart from the fever")."""
        return _LEFT_OUT.sub(" ", self.text)

    @cached_property
    def declined(self) -> bool:
        """Whether it says that something shall not be done: "no CRP", "ECG not needed"."""
        return bool(_DECLINED.search(self.thing))

    @cached_property
    def several(self) -> bool:
        """Whether it joins things: "fever or cough"."""
        return bool(_JOINED.search(self.thing))

    @cached_property
    def joined(self) -> Sequence[AskedText]:
        """The things that it joins, where one has a specimen: "serum sodium and urine protein".

        Of each its own specimen holds. Empty where no specimen is named, or nothing joined.
        """
        pieces = _JOINED.split(self.thing) if self._specimens else ()
        return tuple(AskedText(piece) for piece in pieces) if len(pieces) > 1 else ()

    @cached_property
    def pieces(self) -> Sequence[AskedText]:
        """The things that it joins, at most eight; empty where it joins none."""
        pieces = [piece for piece in _JOINED.split(self.thing) if stems(piece)]
        looking = bool(pieces and _EXAMINING_ONE.search(pieces[0]))
        each = [AskedText(piece, looking=looking) for piece in pieces[:8]]
        return tuple(each) if len(each) > 1 else ()

    @property
    def orders(self) -> Sequence[AskedText]:
        """The request without its reasons, then without the last one alone; empty without any."""
        if not (reasons := list(_REASON.finditer(self.text))):
            return ()
        last, cut = reasons[-1], any(_LOOKED_FOR.match(reason[0]) for reason in reasons)
        without_last = self.text[: last.start()] + self.text[last.end() :]
        return AskedText(_REASON.sub(" ", self.text), cut=cut), AskedText(without_last, cut=cut)

    @cached_property
    def examined(self) -> frozenset[str]:
        """The part of the body whose examination is all that it asks for: "examine the neck".

        Empty where it asks for anything else, as in "examine the neck for lumps".
        """
        looked = self._looking or _EXAMINING.search(self.thing)
        if self._cut or not looked or _EXAMINED_BEFORE.search(self.thing):
            return frozenset()
        return stems(self.thing) - _EXAMINED

    @cached_property
    def study(self) -> AskedText | None:
        """Of a study that is ordered for a reason ("MRI for headache") the study alone."""
        return next((order for order in self.orders[:1] if _STUDY.search(order.text)), None)

    @cached_property
    def treatment(self) -> AskedText | None:
        """Of a treatment that is taken for a reason the treatment alone."""
        treated = _TAKEN.search(self.text) or _TREATMENT.search(self.text)
        return AskedText(_FOR.sub(" ", self.text)) if treated and self.reason else None

    @cached_property
    def reason(self) -> str:
        """What follows "for"."""
        return " ".join(clause[0] for clause in _FOR.finditer(self.text))

    @cached_property
    def circumstance(self) -> str:
        """The clauses that say when: "when you cough," of "when you cough, does it hurt"."""
        return " ".join(clause[0] for clause in _CIRCUMSTANCE.finditer(self.text))

    @property
    def of_moment(self) -> bool:
        """Whether it asks what is so at a moment: "do you leak urine when you cough".

        "Do you remember when the cough began" does not.
        """
        return bool(_MOMENT.search(self.circumstance) and stems(self.main.thing) - _RECALLING)

    @property
    def of_trigger(self) -> bool:
        """Whether it asks what something does to something else: "does bread make it worse"."""
        return bool(_TRIGGER.search(self.text))

    @property
    def of_circumstance(self) -> bool:
        """Whether it asks for something in a circumstance: "any bleeding after the operation"."""
        return bool(_ASIDE.search(self.circumstance) and stems(self.main.thing) - _GENERAL)

    @cached_property
    def main(self) -> AskedText:
        """The request without them: "does it hurt" of "when you cough, does it hurt"."""
        return AskedText(_CIRCUMSTANCE.sub(" ", self.text))

    @cached_property
    def free(self) -> tuple[str, str]:
        """What is compared with free texts: first without words that records rarely repeat.

        Of "family history of kidney disease" only the disease counts: else it would be much like
        any other family history. "MCV on the complete blood count" asks for the MCV.
        """
        thing = _OF_PANEL.sub(" ", self.thing)
        if self.of_others and stems(own := _FAMILY.sub(" ", thing)):
            thing = own
        bare = _AROUND.sub(" ", thing)
        # Of "does your father drink" no father is left alone.
        return bare if stems(_RELATIVE.sub(" ", bare)) else thing, thing

    @cached_property
    def refers(self) -> bool:
        """Whether it says nothing but how, when or which: "how severe is it", "when did it start".

        What it refers to stands in an earlier question, which is not known here.
        """
        return stems(self.thing) <= _REFERRING

    @cached_property
    def habits(self) -> Sequence[re.Pattern[str]]:
        """How a record tells of the habits that it asks about, and of the age."""
        other = _SMOKE_AROUND.search(self.text) or _CANNABIS.search(self.text)
        if self.of_others or other or _MEASURED.search(self.text):
            return []
        return [told for asked, told in _HABITS if asked.search(self.text)]

    @cached_property
    def of_others(self) -> bool:
        """Whether it is about the family, or others around the patient."""
        return bool(_ASKED_KIN.search(self.text))

    def fits(self, item: Item, called: Sequence[str], piece: AskedText | None = None) -> bool:
        """Whether it can be about an item; `called` are all wordings of the item.

        `piece` is the one of its pieces that names the item.
        """
        own, said = f"{item.name}. {item.question}", " ".join(called)
        if _ASKED_KIN.search(own) and not (self.of_others or _EXPOSED.search(self.text)):
            return False
        stain = bool(_STAINED.search(item.question))
        if item.kind in _TESTS and (
            self.declined or self._other_test(called, stain) or _HAD_BEFORE.search(self.text)
        ):
            return False
        # Beginnings are compared: "auscult" of "auscultate" begins "auscultation" too.
        tested = (word[0][:7] for word in _TEST_WORDS.finditer(self.text))
        if item.kind is Kind.HISTORY and (
            _MEASURED.search(self.text)
            or any(not re.search(rf"\b{word}", said, re.IGNORECASE) for word in tested)
        ):
            return False
        if item.kind is Kind.LABORATORY and (self._taken or self._other_specimen(said, own)):
            return False
        about = (piece or self).thing
        if elsewhere(self.thing, said, own=own) or another_thing(about, own, said):
            return False
        return not (stain and self._unstained) and self._alike(said, piece)

    def fits_fact(self, fact: Fact) -> bool:
        """Whether a free fact can be an answer to it."""
        wording = f"{fact.item}: {fact.text}"
        called = (fact.item, fact.item.rpartition(",")[2])
        test = fact.kind in _TESTS or _SYMBOL.search(fact.item)
        if test and (self.declined or names_other_test(self.text, called)):
            return False
        stain = _STAIN.search(wording) or (_SYMBOL.search(fact.item) and _TOLD.search(wording))
        if stain and self._unstained and not _NOT_STAINED.search(wording):
            return False
        if self.of_others:
            wrong = bool(_BY_KIN.search(wording)) or any(
                asked.search(self.text) and not told.search(wording) for asked, told in _HABITS
            )
        else:
            brought = _BY_PARENT.search(wording)
            own = _CHILD.sub("the patient", wording) if brought else wording
            wrong = bool(_OF_KIN.search(own))
        if wrong or not self.fits_specimen(fact) or elsewhere(self.thing, wording):
            return False
        past = _OF_PAST.search(self.text)
        planned = (past or self._taken) and _PLANNED.search(wording)
        if planned or (past and fact.kind in _TESTS):
            return False
        value = fact.kind is Kind.LABORATORY or _VALUE.search(wording)
        if self._taken and value and not _TREATED.search(wording):
            return False
        return not self._otherwise_made(wording) and self._alike(wording)

    def fits_specimen(self, fact: Fact) -> bool:
        """Whether a free fact is of the specimen that it names; of blood, if it speaks of blood."""
        wording = f"{fact.item}: {fact.text}"
        return not self._other_specimen(wording, wording)

    def _otherwise_made(self, wording: str) -> bool:
        """Whether it names a way of imaging, and a wording another one alone."""
        asked, told = (
            {way for way in _MADE_BY if way.search(text)} for text in (self.text, wording)
        )
        return bool(asked and told) and asked.isdisjoint(told)

    def of_patient_alone(self, fact: Fact) -> bool:
        """Whether a fact is not about somebody else."""
        return not _OF_KIN.search(f"{fact.item}: {fact.text}")

    def names_place(self, fact: Fact) -> bool:
        """Whether a free fact names a part of the body that is asked about; true where none is."""
        wanted = parts(self.thing)
        return not wanted or not wanted.isdisjoint(parts(f"{fact.item}: {fact.text}"))

    def _other_test(self, called: Sequence[str], stain: bool) -> bool:
        """Whether a further word makes another test of it: "fetal hemoglobin" is no hemoglobin.

        A request that says "immunostain" or "IHC" means the stain, whatever else it says.
        """
        if stain and _STAIN.search(self.text):
            return False
        return names_other_test(self.text, called, stain=stain)

    @cached_property
    def _taken(self) -> bool:
        return bool(_TAKEN.search(self.text)) and not _TESTED.search(self.text)

    @cached_property
    def _unstained(self) -> bool:
        return bool(_NOT_STAINED.search(self.text)) and not _STAIN.search(self.text)

    @cached_property
    def _specimens(self) -> list[re.Pattern[str]]:
        return [each for each in _SPECIMENS if each.search(self.thing)]

    def _other_specimen(self, said: str, own: str) -> bool:
        """Whether an item or fact is of another specimen than the request.

        `said` are all its wordings, `own` its name and question. A specimen that the request names
        must stand in `said`. A request that names none but speaks of the blood ("serum", "WBC")
        does not fit an `own` of another specimen.
        """
        if self._specimens:
            return any(not specimen.search(said) for specimen in self._specimens)
        other = any(specimen.search(own) for specimen in _SPECIMENS)
        return bool(other and _BLOOD.search(self.text) and not _OF_BLOOD.search(own))

    @cached_property
    def _topics(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        """The patterns that a wording must contain: of all that is joined, and of a piece alone."""
        every, one = (
            [told for asked, told in about if asked.search(self.thing)]
            for about in (_ABOUT_ALL, _ABOUT_ONE)
        )
        return every, one

    def _alike(self, wording: str, piece: AskedText | None = None) -> bool:
        topics = (*self._topics[0], *(piece or self)._topics[1])
        return all(told.search(wording) for told in topics)


def of_patient(request: str, presentation: str) -> str:
    """The request, in which "your son" is the patient where the case is that of a boy."""
    young = _BY_PARENT.search(presentation) or (
        _YOUNG.search(presentation) and not _ADULT.search(presentation)
    )
    if not young:
        return request
    girl, boy = (each.search(presentation) for each in (_GIRL, _BOY))
    other = _BOY if girl and not boy else _GIRL if boy and not girl else None
    return _CHILD.sub(
        lambda child: child[0] if other and other.search(child[0]) else "the patient", request
    )
