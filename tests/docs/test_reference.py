"""docs/reference.md holds every number of real scorecards, comparisons and all tables, and nothing else.

Would catch: a new key of the scorecard or a new column without a definition, a definition of what no longer exists.
"""

import re

import pytest

from docsite import reference
from helpers import analysis, regression
from helpers.schema import SCHEMAS

CASE_A = {"model_config": "DeepSeek-V4-Flash-NVFP4", "hardware": "rtx pro 6000 blackwell server"}
CASE_B = {"model": "Qwen3.6-27B", "hardware": "RTX A6000", "tp": 2, "engine": "sglang", "num_draft_tokens": 4,
          "context_tok": 500.0, "interconnect": "pcie4"}
INPUTS = [("samples/sim-field-case-a/server.log", CASE_A), ("samples/vllm-sweep/server.log", None),
          ("samples/sglang-sweep/server.log", None), ("field/case_a_config1.csv", None),
          ("field/case_b_acceptance.csv", CASE_B)]


EMPTY = {"base.inputs[].notes[]", "new.inputs[].notes[]"} | {
    f"checks[].{name}" for name in ("name", "value", "limit", "pass")}
"""Lists of a comparison that are empty in all of these; notebook 08 adds the checks."""


@pytest.fixture(scope="module")
def comparisons(data):
    paths = [str(data / path) for path, _ in INPUTS]
    sides = [regression.gather_side([path], context={}) for path in paths[:3]]
    return [regression.compare_sides(*pair) for pair in (sides[1:], sides[:2], [sides[0], sides[0]])]


@pytest.fixture(scope="module")
def cards(data):
    return [analysis.analyse(data / path, context=context).scorecard for path, context in INPUTS]


def test_every_key_of_real_scorecards_is_described(cards):
    described = [row["key"] for row in reference.keys()]
    assert len(set(described)) == len(described)
    assert {path for card in cards for path in reference.undescribed(card, described)} == set()


def test_every_described_key_is_in_a_scorecard(cards):
    """Lists that were empty in all inputs are the exception, and named here."""
    seen = {path for card in cards for path in reference.leaves(card)}
    unseen = {row["key"] for row in reference.keys()
              if not any(re.fullmatch(reference.pattern(row["key"]), path) for path in seen)}
    assert unseen <= {"run.notes[]"}


def test_every_key_of_a_comparison_is_described_and_no_other(comparisons):
    described = [row["key"] for row in reference.keys(reference.COMPARISON_FILE)]
    assert len(set(described)) == len(described)
    assert {path for card in comparisons for path in reference.undescribed(card, described)} == set()
    seen = {path for card in comparisons for path in reference.leaves(card)}
    unseen = {key for key in described if not any(re.fullmatch(reference.pattern(key), path) for path in seen)}
    assert unseen <= EMPTY
    without = [key for key in described if key != "rows[].se"]
    assert "rows[].se" in {path for card in comparisons for path in reference.undescribed(card, without)}


def test_a_key_without_definition_is_seen(cards):
    described = [row["key"] for row in reference.keys()]
    without = [key for key in described if key != "fit.slope_s_per_req_lo"]
    assert reference.undescribed(cards[0], without) == ["fit.slope_s_per_req_lo"]
    assert reference.undescribed(cards[0] | {"news": {"x_s": 1.0}}, described) == ["news.x_s"]
    assert reference.undescribed({"client": None, "levels": []}, described) == []
    assert reference.undescribed({"levels": [{"n_rejected": {"a.b [c]": 1}}]}, described) == []


def test_units_agree_with_the_names():
    """A key that ends with a unit's suffix has that unit; a unit is one of the base units."""
    units = {"_s": "s", "_tok": "tok", "_req": "req", "_frac": "1", "_tok_per_s": "tok/s", "_s_per_req": "s/req",
             "_len": "tok"}
    both = [*reference.keys(), *reference.keys(reference.COMPARISON_FILE)]
    rows = {row["key"]: row["unit"] for row in both}
    known = {"", *units.values(), "bytes", "lines", "records", "intervals", "levels", "ranks", "see unit", "runs",
             "rows"}
    assert set(rows.values()) <= known
    wrong = {}
    for key, unit in rows.items():
        name = "_" + re.sub(r"(_lo|_hi)$", "", re.sub(r"\[\]$|\.\{\w+\}", "", key).split(".")[-1])
        suffix = max((s for s in units if name.endswith(s)), key=len, default=None)
        if suffix and unit != units[suffix]:
            wrong[key] = unit
    assert wrong == {}


def test_every_number_has_a_meaning_and_a_place():
    for row in [*reference.keys(), *reference.keys(reference.COMPARISON_FILE)]:
        assert len(row["meaning"]) > 3 and row["computed_by"], row
    for schema in SCHEMAS:
        assert all(column.meaning for column in schema.columns) and schema.name in reference.STAGES


def test_the_page_is_what_the_code_says():
    """`make dictionary` writes it."""
    text = reference.REFERENCE.read_text(encoding="utf-8")
    assert reference.text() == text
    for schema in SCHEMAS:
        assert f"### {schema.name}\n" in text and all(f"| `{column.name}` |" in text for column in schema.columns)
    changed = [{**row, "unit": "h"} for row in reference.keys()]
    assert reference.text(changed) != text
