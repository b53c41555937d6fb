"""Server events, odd levels, and fields that mislead in the log's version."""

from __future__ import annotations

import pandas as pd
import pytest

from build import decode, no_events, samples, window
from helpers import schema
from helpers.diagnose import of_events


def events(*rows):
    """EVENTS from (server_life, kind)."""
    return schema.conform(pd.DataFrame([
        {"file": "hand.log", "line_no": i + 1, "server_life": life, "kind": kind, "text": kind}
        for i, (life, kind) in enumerate(rows)]), schema.EVENTS)


def levels(*rows):
    """LEVELS from (running_req, population, step_s)."""
    return schema.conform(pd.DataFrame([
        {"server_life": 0, "rank_group": "all", "population": population, "running_req": n, "n_clean": 9,
         "step_s": step_s, "method": "median_of_blocks", "is_fitted": True, "n_rejected": "{}"}
        for n, population, step_s in rows]), schema.LEVELS)


def seen(of=None, records=None, table=None, **facts):
    records = samples(decode(4, 100.0)) if records is None else records
    return {item.name: item for item in of_events.observe(
        no_events() if of is None else of, records, schema.LEVELS.empty() if table is None else table, facts, [0])}


@pytest.mark.parametrize(("n", "is_said"), [(2, False), (3, True)])
def test_retractions_count_from_three_and_only_in_the_lives_of_the_answer(n, is_said):
    found = seen(events(*[(0, "retraction")] * (n - 1), (0, "preemption"), (1, "retraction")))
    assert ("retracted_events" in found) is is_said
    if is_said:
        assert found["retracted_events"].value == 3 and "3 times" in found["retracted_events"].says


@pytest.mark.parametrize(("later_req", "is_said"), [(48, True), (49, False)])
def test_a_smaller_batch_after_out_of_memory(later_req, is_said):
    """Largest batch 64 before: three quarters of it are 48."""
    records = samples(decode(64, 100.0, life=0), decode(later_req, 100.0, life=1))
    found = seen(events((0, "out_of_memory")), records)
    assert ("smaller_after_out_of_memory" in found) is is_said
    assert "smaller_after_out_of_memory" not in seen(no_events(), records)
    assert "smaller_after_out_of_memory" not in seen(events((1, "out_of_memory")), records)  # nothing came after


def test_two_steps_at_one_level_are_named_with_their_ratio():
    found = seen(table=levels((16, 0, 0.020), (16, 1, 0.030), (32, 0, 0.040)))
    assert found["two_steps_at_one_level"].value == pytest.approx(1.5)
    assert "N=16" in found["two_steps_at_one_level"].says and "1.50 times" in found["two_steps_at_one_level"].says
    assert "two_steps_at_one_level" not in seen(table=levels((16, 0, 0.020), (32, 0, 0.040)))


@pytest.mark.parametrize(("version", "is_said"), [
    ("0.5.9", False), ("0.5.10", True), ("0.5.10.post1", True), (None, True)])
def test_a_misleading_field_is_named_where_the_version_prints_it_so(version, is_said):
    records = samples({**decode(4, 100.0), "extra": '{"est. read BW (GB/s per GPU)": 9000}'})
    found = seen(records=records, engine="sglang", engine_version=version)
    assert ("misleading_field" in found) is is_said
    assert "misleading_field" not in seen(records=records, engine="vllm", engine_version="0.20.0")
    assert "misleading_field" not in seen(engine="sglang", engine_version="0.5.10")  # not printed


def test_a_column_may_mislead_too():
    records = samples({**window(4, 100.0, t=10.0), "engine": "sglang", "prefill_tok_per_s": 12.0})
    assert "no rate" in seen(records=records, engine="sglang")["misleading_field"].says
