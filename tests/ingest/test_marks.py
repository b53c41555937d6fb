"""Marks of lines that are alike but for digits: those that looking at each line by itself gives."""

from __future__ import annotations

import random

import polars as pl
import pytest

from helpers.ingest import native
from helpers.ingest.chunk_lines import ACCESS, MARKS, STATISTIC
from helpers.ingest.marks import Marks

NAMES = [name for names in MARKS.literals.values() for name in names]
WORDS = (
    'INFO:     10.1.1.3:40000 - "POST /v1/x HTTP/1.1" 200 OK', "[2026-11-03 10:06:38] router: backend 21 answered",
    " HTTP/2", 'HTTP/1.0"', 'HTTP/1.1"', 'HTTP/2"', 'HTTP/3"', "HTTP/11", '"', " 7", "0/5", ".", ":", "/", "2\u00bd",
    "it/s]", "MFU: 8",
)


@pytest.fixture(autouse=True)
def compiled():
    """Without it there is nothing to compare."""
    if native.library() is None:
        pytest.skip("no compiled reader")


def marks_both_ways(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    found = MARKS.of_texts(pl.Series(texts)).tolist()
    monkeypatch.setenv("ROOFLOG_NATIVE", "0")
    expected = MARKS.of_texts(pl.Series(texts)).tolist()
    monkeypatch.delenv("ROOFLOG_NATIVE")
    return found, expected


def with_other_digits(text: str, rng: random.Random, share: float) -> str:
    return "".join(rng.choice("0123456789") if code in "0123456789" and rng.random() < share else code for code in text)


@pytest.mark.parametrize("seed", range(6))
def test_lines_alike_but_for_digits_have_the_marks_of_each_by_itself(seed, monkeypatch):
    rng = random.Random(seed)
    shapes = []
    for _ in range(300):
        parts = [rng.choice(rng.choice((WORDS, NAMES))) for _ in range(rng.randint(1, 4))]
        text = rng.choice(("", " ", "-", "1")).join(parts)
        n_bytes = rng.choice((len(text), rng.choice((15, 16, 17, 31, 32, 33, 111, 112, 113, 126, 127, 128, 129))))
        shapes.append(text[:n_bytes].ljust(n_bytes, rng.choice("x 5")))
    texts = [with_other_digits(rng.choice(shapes), rng, rng.choice((0.0, 0.1, 1.0))) for _ in range(6000)]
    found, expected = marks_both_ways(texts, monkeypatch)
    assert found == expected
    assert len(set(found)) > 5


def test_digits_of_a_literal_are_none_that_may_differ(monkeypatch):
    usual = 'INFO:     10.1.1.{} - "GET /health HTTP/1.1" 200 OK'
    texts = [usual.format(n) for n in range(5)]
    texts[2] = texts[2].replace('1.1"', '1.0"')
    found, expected = marks_both_ways(texts, monkeypatch)
    assert found == expected == [found[0], found[0], found[0] - ACCESS, found[0], found[0]]
    found, expected = marks_both_ways([texts[2], texts[0], texts[2], texts[1]], monkeypatch)
    assert found == expected and found[0] != found[1] == found[3]


def test_more_such_digits_in_a_line_than_are_compared(monkeypatch):
    """Sixteen are: the last of ten literals is the only one that is whole."""
    line = 'HTTP/1.0"' * 9 + 'HTTP/1.{}" {:03}'
    found, expected = marks_both_ways([line.format(n % 3, n) for n in range(300)], monkeypatch)
    assert found == expected and sum(mark & ACCESS > 0 for mark in found) == 100


def test_more_shapes_than_are_kept_and_some_that_come_again(monkeypatch):
    rng = random.Random(1)
    ends = ("Decode batch", "nothing here")
    words = ["".join(rng.sample("abcdefghij", 5)) + " 12 " + ends[n % 2] for n in range(1000)]
    some = [*(rng.choice(words[:50]) for _ in range(10_000)), *(rng.choice(words) for _ in range(10_000))]
    texts = [with_other_digits(text, rng, 0.5) for text in rng.sample(some, len(some))]
    found, expected = marks_both_ways(texts, monkeypatch)
    assert found == expected and 5000 < sum(mark & STATISTIC for mark in found) < 15_000


def test_beginning_with_a_digit_is_refused():
    with pytest.raises(ValueError, match="expected a beginning without digits"):
        Marks({1: ("some text",)}, {2: ("ab", "2026-")})


@pytest.mark.parametrize("n_bytes", [24, 40, 60])
def test_two_shapes_with_the_same_key(n_bytes, monkeypatch):
    """One more in the second word of the first sixteen bytes and one less in the first word of the next sixteen."""
    one = "xxxxaxxxxxxxxxxxMFU: 7 of ".ljust(n_bytes, "x")[:n_bytes]
    other = "xxxxbxxxxxxxxxxxLFU: 7 of ".ljust(n_bytes, "x")[:n_bytes]
    found, expected = marks_both_ways([one, other] * 20, monkeypatch)
    assert found == expected == [STATISTIC, 0] * 20


def test_only_digits_may_differ(monkeypatch):
    """Any other byte of a literal counts, those beside the digits in their order too: a slash, a colon."""
    texts = []
    for name in NAMES:
        for at in range(len(name)):
            broken = name[:at] + "5" + name[at + 1:]
            texts += [f"{text} behind a long text 12".rjust(60) for text in (name, broken, name)]
    found, expected = marks_both_ways(texts, monkeypatch)
    assert found == expected and found[0] != found[1]
