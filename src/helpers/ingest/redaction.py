"""Making a log safe to share, line by line: what ingest reads stays, everything else is replaced.

Each line is treated as ingest would read it. Of a statistic the keys and numbers stay; of an event what its rule looks
for; of an argument dump names, numbers and the engine's own choices; of any other line no more than stamp and level.
What goes is replaced by ``redacted_<kind>_<n>``: the same thing by the same number, free text by its length class.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import polars as pl

from helpers.ingest.chunk_lines import FAMILIES
from helpers.ingest.dialect import HOLE, EventRule, Family, read_layout
from helpers.ingest.events import ARGS_LITERALS, INTERNAL_KINDS, RULES, read_event
from helpers.ingest.extract import JSON_TAIL, NEXT_MESSAGE_PATTERN
from helpers.ingest.known import KNOWN, OPAQUE
from helpers.ingest.redaction_arguments import redact_dump
from helpers.ingest.redaction_replacements import Replacements, is_kept_address
from helpers.ingest.redaction_tokens import (
    BEFORE_RECORD,
    HEAD,
    MEASURE,
    TOKENS,
    UNITS,
    VALUE,
    VERSION_NUMBER,
    is_device,
    is_frame,
    is_new_key,
    is_pair,
    is_prose,
)
from helpers.ingest.redaction_words import (
    GROUPS,
    ROUTES,
    RULE_WORDS,
    STATISTIC_WORDS,
)

_MAX_TEMPLATES = 20_000
_MAX_ROUNDS = 6

_ACCESS = re.compile(
    r"(?P<before>(?:.*\s)?)(?P<address>\S+?)(?P<port>:[0-9]{1,5})? - \""
    r"(?P<method>GET|POST|PUT|HEAD|DELETE|OPTIONS|PATCH) (?P<route>[^ \"?]*)(?P<query>\?[^ \"]*)? "
    r"(?P<http>HTTP/[0-9.]+\") ?(?P<status>[0-9]{3})?(?P<rest>.*)", re.DOTALL,
)
_PHRASES = frozenset(
    "OK|Created|Accepted|No Content|Bad Request|Unauthorized|Forbidden|Not Found|Method Not Allowed|Request Timeout|"
    "Unprocessable Entity|Too Many Requests|Internal Server Error|Bad Gateway|Service Unavailable|Gateway Timeout|"
    "Temporary Redirect|Client Closed Request".split("|")
)
_CLIENT = re.compile(r"(?<![\w.:])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?=:[0-9]{1,5} - \")")
# addresses that nothing replaces (loopback, and those that stand for others) are alike too
_NUMBERS = re.compile(
    r"(?<![0-9.])((?:240\.[0-9]{1,3}\.[0-9]{1,3}|192\.0\.2|198\.51\.100|203\.0\.113)\.[0-9]{1,3}|127\.0\.0\.1)(?![0-9.])"
    r"|[0-9]+"
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]|\[[0-9]{1,3}(?:;[0-9]{1,3})*m")
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n\r"} | dict.fromkeys((127, *range(128, 160)))
_VERSION = re.compile(r"[0-9][\w.+-]{0,40}\) with config:")
_NAMED = re.compile("|".join(re.escape(family.literal) for family in FAMILIES if not family.literal.startswith("#")))
_TAIL = re.compile(rf"(?:{NEXT_MESSAGE_PATTERN.pattern}|{JSON_TAIL})")


class Redactor(Replacements):
    """Replaces what must not be shared; holds the numbers given so far.

    Parameters
    ----------
    public_model : callable, optional
        Name or path of a model -> the part that may stay, or None.
    keep_other : bool
        Keep the text of lines that ingest does not know, but for what has the shape of a secret. Not safe.

    Examples
    --------
    >>> Redactor().line("[2026-01-02 03:04:05] user alice asked for a poem")
    '[2026-01-02 03:04:05] redacted_text_32'
    """

    def __init__(self, public_model: Callable[[str], str | None] | None = None, *, keep_other: bool = False) -> None:
        super().__init__(public_model)
        self._keep_other = keep_other
        self._unchanged: set[str] = set()

    def line(self, text: str) -> str:
        """Redact one line.

        Parameters
        ----------
        text : str
            Without its line feed.

        Returns
        -------
        str
            One line of the same class, with the same values.
        """
        if ' - "' in text:  # access lines are most of a busy log: once the client is replaced they are alike
            text = _CLIENT.sub(lambda match: self.address(match[0]), text)
        template = _template(text)
        if template in self._unchanged:
            return text
        plain = _COLOUR.sub("", text).translate(_CONTROL)
        body = plain.rstrip("\r")
        redacted = self._settled(body) + plain[len(body):]
        holds_identifier = "\0.\0.\0.\0" in template or "\1" in template
        if redacted == text and not holds_identifier and len(self._unchanged) < _MAX_TEMPLATES:
            self._unchanged.add(template)
        return redacted

    def _settled(self, text: str) -> str:
        """Redact until nothing changes, so that a redacted log is left alone."""
        for _ in range(_MAX_ROUNDS):
            redacted = self._message(text)
            if redacted == text:
                return text
            text = redacted
        return self._other(text)

    def _message(self, text: str) -> str:
        """Redact by class, in the order in which ingest decides it."""
        if not text.strip():
            return text
        for literal in ARGS_LITERALS:
            if literal in text:
                return self._arguments(text)
        if any(literal in text for literals in OPAQUE.values() for literal in literals):
            return self._known(text, OPAQUE)
        for piece_of in (self._statistic, self._access, self._event):
            found = piece_of(text)
            if found is not None:
                return found
        return self._known(text, GROUPS)

    def _other(self, text: str) -> str:
        """Keep stamp and level."""
        if self._keep_other:
            return self.guard(text)
        head = HEAD.match(text)
        end = head.end() if head else 0
        return text[:end] + self.mask(text[end:])

    def _known(self, text: str, groups: dict[str, tuple[str, ...]]) -> str:
        """Keep the literal by which a line is counted."""
        for literals in groups.values():
            for literal in literals:
                before, found, after = text.partition(literal)
                if found:
                    return self._frame(before) + found + self._quoted(after)
        return self._other(text)

    def _quoted(self, text: str) -> str:
        """Mask the text behind a literal; the end of a JSON wrapper stays, with its stamp."""
        end = re.search(r'(?:\\n)?"(?:,"\w+":"[^"\\]*")*\}\s*$', text)
        if end is None:
            return self.guard(text) if self._keep_other else self.mask(text)
        return self.mask(text[: end.start()]) + self._frame(end[0])

    def _access(self, text: str) -> str | None:
        """Keep who (by number), method, own route and status of an access line."""
        if not any(literal in text for literal in KNOWN["access line"]):
            return None
        match = _ACCESS.fullmatch(text)
        if match is None:
            return self._known(text, {"access line": KNOWN["access line"]})
        address = match["address"].strip("[]")
        who = self.guard(address)
        if not is_kept_address(who):
            who = self.replace("host", address)
        route = match["route"] if match["route"] in ROUTES else self.mask(match["route"])
        rest = match["rest"] if match["rest"].strip() in _PHRASES else self.mask(match["rest"])
        return (
            f"{self._frame(match['before'])}{match['address'].replace(address, who)}{match['port'] or ''} - \""
            f"{match['method']} {route}{'?' + self.mask(match['query'][1:]) if match['query'] else ''} {match['http']}"
            f"{' ' + match['status'] if match['status'] else ''}{rest}"
        )

    def _event(self, text: str) -> str | None:
        """Keep what the rule of an event looks for: the literal alone if that is enough."""
        plain = text.strip()
        event = read_event(1, plain)
        if event is None:
            return None
        rule = _rule(event.literal, event.kind, plain)
        start = text.find(event.literal)
        end = start + len(event.literal)
        # a mere fact is counted by what else the line holds
        keep = self._with_group if event.kind in INTERNAL_KINDS else lambda part, redact: redact(part)
        strict = keep(text[:start], self._frame) + text[start:end] + keep(text[end:], self._quoted)
        if not rule.pattern:
            return strict
        match = re.search(rule.pattern, text)
        begin, stop = (min(match.start(), start), max(match.end(), end)) if match else (start, end)
        words = RULE_WORDS[id(rule)]
        before = keep(text[:begin], self._frame)
        wide = before + self._filter(text[begin:stop], words) + keep(text[stop:], self._quoted)
        widest = before + self._filter(text[begin:], words)  # some rules look ahead of what they match
        for candidate in (strict, wide, widest):
            again = read_event(1, candidate.strip())
            if again is not None and (again.kind, again.detail) == (event.kind, event.detail):
                return candidate
        return wide

    def _with_group(self, text: str, redact: Callable[[str], str]) -> str:
        """Keep the literal by which a line is counted, if it is in this part of it."""
        for literals in KNOWN.values():
            for literal in literals:
                before, found, after = text.partition(literal)
                if found:
                    return redact(before) + found + redact(after)
        return redact(text)

    def _arguments(self, text: str) -> str:
        """Keep names, numbers and choices of an argument dump."""
        start = min(text.find(literal) for literal in ARGS_LITERALS if literal in text)
        literal = max((literal for literal in ARGS_LITERALS if text.startswith(literal, start)), key=len)
        end = start + len(literal)
        version = _VERSION.match(text, end) if literal.endswith("(v") else None
        if version:
            literal, end = literal + version[0], version.end()
        if any(name in text[:start] for names in OPAQUE.values() for name in names):
            return self._known(text[:start], OPAQUE) + literal + redact_dump(text[end:], self)
        return self._frame(text[:start]) + literal + redact_dump(text[end:], self)

    def _statistic(self, text: str) -> str | None:
        """Keep the records of a line; None if it only mentions one."""
        if (whole := self._whole(text)) is not None:
            return whole
        anchors = [match.start() for match in _NAMED.finditer(text)]
        starts = [0]
        for before, here in zip(anchors, anchors[1:], strict=False):
            found = NEXT_MESSAGE_PATTERN.search(text, before + 1, here)
            starts.append(found.start() if found else here)
        pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
        redacted = [self._record(piece) for piece in pieces]
        if all(piece is None for piece in redacted):
            return None
        return "".join(
            new if new is not None else self.mask(old) for old, new in zip(pieces, redacted, strict=True)
        )

    def _whole(self, text: str) -> str | None:
        """Redact a line that is one whole record, as nearly all are."""
        family = next((family for family in FAMILIES if family.literal in text), None)
        if family is None or _NAMED.search(text.partition(family.literal)[0]):
            return None
        before, found, body = text.partition(family.literal)
        is_whole = _status(family, body) == "whole"
        return self._frame(before) + found + self._body(body) if is_whole else None

    def _record(self, text: str) -> str | None:
        """Redact a piece with at most one record; None if it holds none, whole or broken."""
        for family in FAMILIES:
            before, found, body = text.partition(family.literal)
            if not found:
                continue
            end = self._end_of_record(family, body)
            if end is not None:
                tail = body[end:]
                frame = self._frame(before)
                return frame + found + self._body(body[:end]) + (self._tail(tail) if tail else "")
            if _status(family, body) == "prose":
                return None
            return self._broken(family, before, body)
        return None

    def _body(self, body: str) -> str:
        """Keep the numbers of a whole record, words that engines print, and names of new keys."""
        def one(match: re.Match[str]) -> str:
            if match["number"]:
                is_number = MEASURE.fullmatch(match[0]) is not None and len(match[0].partition(".")[0]) <= 20
                return match[0] if is_number else self.mask(match[0])
            if match["word"] is None or is_new_key(match):
                return match[0]
            parts = re.split(r"([-.])", match[0])
            known = (part in STATISTIC_WORDS or part in UNITS or part in "-." for part in parts)
            return "".join(part if is_known else self.mask(part) for part, is_known in zip(parts, known, strict=True))

        return TOKENS.sub(one, body)

    def _end_of_record(self, family: Family, body: str) -> int | None:
        """Return how far a record goes that can be read whole."""
        if _status(family, body) == "whole":
            return len(body)
        tail = _TAIL.search(body)
        return tail.start() if tail and _status(family, body[: tail.start()]) == "whole" else None

    def _tail(self, text: str) -> str:
        """Redact what follows a record: the rest of a wrapper, or another message."""
        if text.startswith("\\r"):  # `docker run -t` ends its records so
            return "\\r" + self._tail(text[2:])
        for end in ("\\n", '"'):
            if text.startswith(end):
                return end + self._frame(text[len(end):])
        return self._message(text)

    def _broken(self, family: Family, before: str, body: str) -> str:
        """Keep a record malformed: its keys and numbers, or no more than its beginning."""
        frame = self._frame(before) + family.literal
        kept = ", ".join(part if is_pair(part) else self.mask(part) for part in body.split(", "))
        begins = next((name for name in family.begins if name != HOLE), "0")
        head = re.match(family.head.replace(HOLE, "[0-9]+"), body)
        start = head[0] if head else " "
        mask = self.mask(body.strip())
        tries = [kept, f"{start}{begins} {mask}", f"{start}0, {mask}", f"0, {mask}"]
        tries.append(self._filter(body, STATISTIC_WORDS))
        return frame + next((text for text in tries if _status(family, text) == "broken"), kept)

    def _frame(self, text: str) -> str:
        """Redact what stands around a record: stamps, levels and processes stay, labels keep apart what they name."""
        head = HEAD.match(text)
        begin = head.end() if head else 0
        tail = BEFORE_RECORD.search(text, begin)
        end = tail.start() if tail else len(text)
        middle = text[begin:end]
        middle = self.mask(middle) if is_prose(middle) else self._labels(middle)
        return self._labels(text[:begin]) + middle + self._labels(text[end:])

    def _labels(self, text: str) -> str:
        """Replace each word that is no part of a known frame."""
        guarded = self.guard(text) if text.strip() else text
        return TOKENS.sub(lambda match: match[0] if is_frame(match) else self.replace("name", match[0]), guarded)

    def _filter(self, text: str, words: frozenset[str]) -> str:
        """Keep numbers and the given words; mask others."""
        def one(match: re.Match[str]) -> str:
            if match["word"] is None and match["number"] is None:
                return match[0]
            if is_device(match[0]) or match[0] in words or VERSION_NUMBER.fullmatch(match[0]):
                return match[0]
            if match["number"]:
                is_value = MEASURE.fullmatch(match[0]) is not None and len(match[0]) <= 20
                return match[0] if is_value and not re.match("[0-9]{13}", match[0]) else self.mask(match[0])
            parts = re.split(r"([-.])", match[0])
            known = (part in words or part in UNITS or part in "-." for part in parts)
            return "".join(part if is_known else self.mask(part) for part, is_known in zip(parts, known, strict=True))

        return TOKENS.sub(one, text)


def _template(text: str) -> str:
    """Return a line with its numbers blanked: lines of one template are treated alike."""
    return _NUMBERS.sub(lambda match: "\2" if match[1] else "\0" if len(match[0]) < 10 else "\1", text)


def _rule(literal: str, kind: str, text: str) -> EventRule:
    """Return the rule that recognised an event."""
    return next(
        rule for _, rule in RULES
        if rule.literal == literal and rule.kind == kind and (not rule.pattern or re.search(rule.pattern, text))
    )


def _status(family: Family, body: str) -> str:
    """Say whether a record's body is whole, broken, or prose that mentions the literal."""
    for pattern, replacement in family.rewrite:
        body = _rewritten(pattern, replacement, body)
    layout = read_layout(family, VALUE.sub(HOLE, body))
    if layout.is_prose:
        return "prose"
    return "broken" if layout.reason is not None else "whole"


@functools.lru_cache(maxsize=4096)
def _rewritten(pattern: str, replacement: str, body: str) -> str:
    """Apply a rewrite as `extract` does (Rust's regular expressions)."""
    return str(pl.Series([body]).str.replace_all(pattern, replacement)[0])
