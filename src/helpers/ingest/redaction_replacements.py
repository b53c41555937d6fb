"""What stands for what: the same thing always gets the same placeholder, and text its length class."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable

from helpers.ingest.redaction_words import EPOCH, KEPT_NETWORKS, PLACEHOLDER, SHAPES, STAMP

MAX_NAMES = 500_000
"""Different things kept apart in one run: memory stays bounded. Later ones all get the number 0."""

_SHAPE_KINDS = tuple(kind for kind, _ in SHAPES)
_SHAPE = re.compile("|".join([f"(?P<kept>{PLACEHOLDER}|{STAMP}|{EPOCH})",
                              *(f"(?P<s{n}>{pattern})" for n, (_, pattern) in enumerate(SHAPES))]))


class Replacements:
    """Gives placeholders and remembers them.

    Parameters
    ----------
    public_model : callable, optional
        Name or path of a model -> the part that may stay, or None.

    Attributes
    ----------
    counts : Counter
        Replacements by kind, each occurrence counted.
    n_changed : int
        Lines that differ, for whoever counts them.
    """

    def __init__(self, public_model: Callable[[str], str | None] | None = None) -> None:
        self._public_model = public_model or (lambda _: None)
        self._numbers: dict[str, dict[str, int]] = {}
        self.counts: Counter[str] = Counter()
        self.n_changed = 0

    @property
    def names(self) -> dict[str, str]:
        """Placeholder -> what it stands for. This is secret."""
        return {f"redacted_{kind}_{n}": text for kind, numbers in self._numbers.items() for text, n in numbers.items()}

    @property
    def is_full(self) -> bool:
        """More different things than are kept apart: the later ones share a number."""
        return self._size() >= MAX_NAMES

    def _size(self) -> int:
        return sum(map(len, self._numbers.values()))

    def replace(self, kind: str, text: str) -> str:
        """Return the placeholder of a thing, the same for the same thing."""
        if re.fullmatch(PLACEHOLDER, text):
            return text
        self.counts[kind] += 1
        numbers = self._numbers.setdefault(kind, {})
        if text not in numbers and self._size() >= MAX_NAMES:
            return f"redacted_{kind}_0"
        return f"redacted_{kind}_{numbers.setdefault(text, len(numbers) + 1)}"

    def model(self, text: str) -> str:
        """Return the public part of a model's name, or a placeholder."""
        public = self._public_model(text)
        return public if public is not None else self.replace("model", text)

    def mask(self, text: str) -> str:
        """Replace a text by the power of two that bounds its length; blanks at its ends stay."""
        plain = text.strip()
        if not plain or re.fullmatch(PLACEHOLDER, plain):
            return text
        self.counts["text"] += 1
        start = len(text) - len(text.lstrip())
        ends = text[start + len(plain):]
        return f"{text[:start]}redacted_text_{1 << max(2, (len(plain) - 1).bit_length())}{ends}"

    def guard(self, text: str) -> str:
        """Replace everything that has the shape of a secret."""
        def one(match: re.Match[str]) -> str:
            if match["kept"] is not None:
                return match[0]
            kind = _SHAPE_KINDS[int(str(match.lastgroup)[1:])]
            return self.address(match[0]) if kind == "ip" else self.replace(kind, match[0])

        return _SHAPE.sub(one, text)

    def address(self, text: str) -> str:
        """Replace an IP address; those that say nothing stay."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return text  # 999.1.2.3 is a version or nothing at all; a word filter sees it next
        if any(address in network for network in KEPT_NETWORKS if network.version == address.version):
            return text
        number = int(self.replace("ip", text).rsplit("_", 1)[1])
        if address.version == 6:
            return f"2001:db8::{number >> 16:x}:{number & 0xFFFF:x}"
        return f"240.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def is_kept_address(text: str) -> bool:
    """Tell whether an address says nothing."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(PLACEHOLDER, text) is not None
    return any(address in network for network in KEPT_NETWORKS if network.version == address.version)
