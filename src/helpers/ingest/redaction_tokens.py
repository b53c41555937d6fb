"""The tokens of a line, and which of them may stay: around a record, in a record, in an event."""

from __future__ import annotations

import re

from helpers.ingest.dialect import VALUE_PATTERN
from helpers.ingest.redaction_words import EPOCH, FRAME_WORDS, PLACEHOLDER, SOURCE_FILES, STAMP, STATISTIC_WORDS

_MAX_FRAME_WORDS = 8
"""More unknown words in front of a record are prose, not the labels of a wrapper."""

VALUE = re.compile(VALUE_PATTERN.replace(r"(?-u:\b)", r"\b"), re.ASCII)
TOKENS = re.compile(
    rf"(?P<kept>{PLACEHOLDER}|(?<=\.py:)[0-9]+|(?<=pid=)[0-9]+|{EPOCH}|\\(?!redacted_)[nrtbfu\"\\/])"
    rf"|(?P<stamp>(?:{STAMP})(?:(?: [A-Z][A-Z_]{{0,15}}[0-9]{{1,6}})+(?=\]))?)"
    r"|(?P<word>[^\W\d_](?:[\w]|[-.](?=\w))*|_\w+)"
    r"|(?P<number>[0-9](?:\w|[-.+](?=\w))*)"
)
_PLAIN_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?(?:[eE][+-]?[0-9]{1,3}|s|it)?")
VERSION_NUMBER = re.compile(
    r"[0-9]{1,4}(?:\.[0-9]{1,5}){1,2}(?:\.?(?:rc|dev|post|a|b)[0-9]{1,5}){0,2}"
    r"(?:\+(?:g?[0-9a-f]{6,12}|cu[0-9]{2,3}|cpu|rocm[0-9.]{1,6})(?:\.[a-z0-9]{1,12}){0,2})?"
)
_ENGINE_WORD = re.compile(
    r"[IWEF][0-9]{4}|(?:EngineCore|Worker|VllmWorker|ApiServer)(?:[_-](?:(?:DP|TP|PP|EP)?[0-9]{1,4})){0,5}"
    r"|(?:TP|PP|DP|EP|CP|SP)[0-9]{1,4}|(?:rank|node|worker|engine|server|gpu|replica)[-_]?[0-9]{1,4}"
)
_STRUCTURE = (
    rf"\((?:APIServer|ApiServer|EngineCore|Worker|VllmWorker)[A-Z0-9_]{{0,20}} pid=[0-9]{{1,8}}\) *"
    rf"|\[?(?:{STAMP})(?: [A-Z][A-Z_]{{0,15}}[0-9]{{1,6}})*\]? *"
    r"|(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL|TRACE|NOTICE)\b:? *"
)
HEAD = re.compile(
    rf"\s*(?:{_STRUCTURE}|\[(?:{'|'.join(map(re.escape, sorted(SOURCE_FILES)))}):[0-9]{{1,5}}\] *)*"
)
BEFORE_RECORD = re.compile(
    rf"(?:{_STRUCTURE}|\[\w+\.py:[0-9]{{1,5}}\] *|Engine [0-9]{{1,4}}: *|[0-9]{{1,4}} Engines Aggregated: *"
    r"|\[gpu_id=[0-9]{1,4}\] *|#|Initializing an? (?:V[0-9] )?)+$"
)
UNITS = frozenset("B KB MB GB TB KiB MiB GiB TiB bytes ns us ms s".split())
MEASURE = re.compile(rf"(?:{VALUE.pattern}|[0-9]+(?:\.[0-9]+)?)(?:{'|'.join(UNITS)}|µs|μs|x)?", re.ASCII)


_PAIR = re.compile(rf"[.,\s]*(?P<words>[^:=]{{1,60}}?)(?:: *|=)(?:{VALUE.pattern})(?P<unit>[^0-9:=]{{0,20}})", re.ASCII)


def is_pair(part: str) -> bool:
    """Tell whether a part of a broken record is a known key with a value that could be one."""
    match = _PAIR.fullmatch(part)
    if match is None or len(part) > 80 or re.search("[0-9]{10}", part):
        return False
    words = re.findall(r"[^\W\d_]\w*|[0-9]\w*", f"{match['words']} {match['unit']}")
    return all(word in STATISTIC_WORDS for word in words)


def is_device(word: str) -> bool:
    """Tell whether a word is the name of an accelerator as its driver prints it."""
    makers = "NVIDIA|AMD|Tesla|GeForce|Quadro|Intel"
    return re.fullmatch(rf"(?:{makers})(?:_[A-Za-z0-9]{{1,12}}){{1,8}}(?:\.json)?", word) is not None


_NEW_KEY = re.compile(r"#?[a-z]+(?:[_-][a-z]+){0,6}")
_BEFORE_KEY = re.compile(r"(?:^|, |\. |\| |[{'\"#])\s*['\"#]?$")
_AFTER_KEY = re.compile(r"['\"]?\s*[:=]\s*\"?-?[0-9TFN]")


def is_new_key(match: re.Match[str]) -> bool:
    """Tell whether a word is the whole name of a value, as a newer engine may print it: one word in small letters."""
    is_name = len(match[0]) <= 32 and _NEW_KEY.fullmatch(match[0]) is not None
    text, start, end = match.string, match.start(), match.end()
    return is_name and _BEFORE_KEY.search(text[max(0, start - 8):start]) is not None \
        and _AFTER_KEY.match(text, end) is not None


def is_prose(text: str) -> bool:
    """Tell whether a text is sentences, not the labels of a wrapper: three unknown words with nothing but blanks."""
    unknown = [match for match in TOKENS.finditer(text) if not is_frame(match)]
    in_a_row = 0
    for before, here in zip(unknown, unknown[1:], strict=False):
        in_a_row = in_a_row + 1 if not text[before.end():here.start()].strip() else 0
        if in_a_row == 2:
            return True
    return len(unknown) > _MAX_FRAME_WORDS


def is_frame(match: re.Match[str]) -> bool:
    """Tell whether a token around a record may stay."""
    if match["kept"] is not None or match["stamp"] is not None:
        return True
    if match["number"] is not None:
        return _PLAIN_NUMBER.fullmatch(match[0]) is not None or match[0] == "000"
    word = match[0]
    return word in FRAME_WORDS or word in SOURCE_FILES or _ENGINE_WORD.fullmatch(word) is not None
