"""The component table: rows add up, intervals hold, the field case comes out, what cannot be is said."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.physics.catalogue import hardware, models
from helpers.physics.linking.communication import find_table
from helpers.physics.steps import bound
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.steps.demand import Parallel, touched_experts
from helpers.physics.steps.hand import HandModel
from helpers.physics.steps.step import ACHIEVABLE_RANGE, Shares, achievable
from helpers.physics.what_if.components import COMPONENTS, achieved, component_table, gap_table, impossible
from helpers.physics.what_if.plausible import ScaledLink, ends, skew_frac, skewed_experts
from helpers.schema import RooflogError

A6000 = hardware.find("RTX A6000")
LINKS = {2: find_table(A6000, 2)}
ROUND_S, ROUND_LO_S, ROUND_HI_S = 0.0555, 0.0552, 0.0558
SLAB = hardware.Hardware("slab", 1e12, bf16_flop_per_s=100e12)  # 1 TB/s: 1 GB a millisecond
HAND = HandModel(weight_bytes_per_step=10e9, kv_bytes_per_tok=1e5, state_bytes_per_req=1e7)


@pytest.fixture(scope="module")
def qwen() -> DecodeModel:
    """Field case B: Qwen3.6-27B, BF16, two ranks, three draft tokens."""
    return DecodeModel(models.find("Qwen3.6-27B"), Parallel(tp=2), n_draft_tok=3)


@pytest.fixture(scope="module")
def moe() -> DecodeModel:
    return DecodeModel(models.find("Qwen3-30B-A3B"))


def times(table, column="time_s", level=None):
    rows = table if level is None else table[table["running_req"].eq(level)]
    return dict(zip(rows["name"], rows[column], strict=True))


def test_a_model_by_hand_against_arithmetic():
    # 10 GB / (0.5 x 1 TB/s) = 20 ms; 4 x 1000 x 0.1 MB = 0.4 GB -> 0.8 ms; 4 x 10 MB = 0.04 GB -> 0.08 ms.
    table = component_table(HAND, SLAB, 4, 1000, 0.030, 0.029, 0.032, shares=Shares(0.5))
    assert times(table) == pytest.approx({"weights": 0.020, "kv": 0.0008, "state": 0.00008, "unexplained": 0.00912})
    # Widened to hold the central share: 0.5 to 0.87.
    assert times(table, "lo")["weights"] == pytest.approx(0.010 / 0.87)
    assert times(table, "hi")["weights"] == pytest.approx(0.020)
    assert times(table, "lo")["unexplained"] == pytest.approx(0.029 - 0.02088)
    assert times(table, "hi")["unexplained"] == pytest.approx(0.032 - 0.01044 / 0.87)
    assert times(table, "share_frac")["weights"] == pytest.approx(2 / 3)


def test_the_interval_spans_the_range_of_measured_shares():
    table = component_table(HAND, SLAB, 1, 0, 0.030, shares=Shares(0.8))
    assert times(table, "lo")["weights"] == pytest.approx(0.010 / ACHIEVABLE_RANGE[1])
    assert times(table, "hi")["weights"] == pytest.approx(0.010 / ACHIEVABLE_RANGE[0])


def test_field_case_b_comes_out(qwen, shared):
    values = json.loads((shared / "reference" / "field_values.json").read_text())

    def agrees(name, found):
        assert found == pytest.approx(values[name]["value"], abs=values[name]["tol"]), name

    reached = achieved(qwen, A6000, 1, 500, ROUND_S, ROUND_LO_S, ROUND_HI_S).iloc[0]
    agrees("qwen.bytes_per_round_GB_rank", reached["read_bytes"] / 1e9)
    agrees("qwen.achieved_GBs", reached["bytes_per_s"] / 1e9)
    agrees("qwen.achieved_frac_of_768", reached["mbu_frac"])
    ideal_s = bound.line_step_s(qwen, A6000, np.array([1.0]), 500, "expected", links=LINKS)[0]
    agrees("qwen.ideal_round_ms_this_ref", 1e3 * ideal_s)
    peak = times(component_table(qwen, A6000, 1, 500, ROUND_S, links=LINKS, shares=Shares(1.0, 1.0)))
    agrees("qwen.true_target_read_GB_rank", (peak["weights"] + peak["head"]) * 768)
    assert peak["state"] * 768 == pytest.approx(0.385, abs=0.001)  # read 1 + write 4 of 77 MB
    draft = component_table(qwen, A6000, 1, 500, ROUND_S, shares=Shares(1.0, 1.0))
    agrees("qwen.draft_step_read_GB_rank", times(draft)["draft"] * 768 / 3)
    reduces_s = 128 * LINKS[2].all_reduce_s(np.array(4 * 5120 * 2.0))  # 41 kB; the report takes 8 us each: 1.02 ms
    assert 1e3 * reduces_s == pytest.approx(1.0, abs=0.1)


def test_the_13_ms_of_field_case_b_are_itemised(qwen):
    # 31.1 GB at 0.82 of 768 GB/s are 49.4 ms, 8.9 more than at the peak; collectives 1.1; the floor hides behind.
    gap = gap_table(qwen, A6000, 1, 500, ROUND_S, ROUND_LO_S, ROUND_HI_S, links=LINKS)
    found = {name: 1e3 * time_s for name, time_s in times(gap).items()}
    assert list(found) == ["peak", "efficiency", "all_reduce", "unexplained"]
    assert found["peak"] == pytest.approx(40.52, abs=0.05)
    assert found["efficiency"] == pytest.approx(8.89, abs=0.05)
    assert found["all_reduce"] == pytest.approx(1.1, abs=0.1)
    assert found["unexplained"] == pytest.approx(5.0, abs=0.2)
    assert sum(found.values()) == pytest.approx(1e3 * ROUND_S, rel=1e-12)
    rest = gap[gap["name"].eq("unexplained")].iloc[0]
    table = component_table(qwen, A6000, 1, 500, ROUND_S, ROUND_LO_S, ROUND_HI_S, links=LINKS)
    assert (rest["lo"], rest["hi"]) == (times(table, "lo")["unexplained"], times(table, "hi")["unexplained"])
    assert rest["lo"] < 0 < rest["hi"]  # 0.82 is assumed on this board: nothing need be left
    assert not impossible(table, achieved(qwen, A6000, 1, 500, ROUND_S))


def test_collectives_are_wider_where_they_were_not_measured(qwen):
    assert not LINKS[2].is_measured
    table = component_table(qwen, A6000, 1, 500, ROUND_S, links=LINKS)
    row = table[table["name"].eq("all_reduce")].iloc[0]
    assert (row["lo"], row["hi"]) == pytest.approx((0.8 * row["time_s"], 1.5 * row["time_s"]))
    assert "not measured on this system" in row["source"]
    measured = {2: replace(LINKS[2], is_measured=True)}
    row = component_table(qwen, A6000, 1, 500, ROUND_S, links=measured).query("name == 'all_reduce'").iloc[0]
    assert (row["lo"], row["hi"]) == pytest.approx((0.8 * row["time_s"], 1.2 * row["time_s"]))
    size = np.array([4096.0])
    assert ScaledLink(LINKS[2], 1.5).all_gather_s(size) == 1.5 * LINKS[2].all_gather_s(size)


def test_skewed_routing_touches_what_was_measured():
    # physics.md 1.4: power-law routing of 8 of 128 experts, 64.7 at 16 tokens and 116.5 at 64 (uniform 82.4, 125.9).
    found = skewed_experts(128, 8, np.array([1.0, 16.0, 64.0]))
    assert found == pytest.approx([8.0, 64.7, 116.5], rel=0.03)
    assert skewed_experts(4, 4, np.array([1.0, 9.0])) == pytest.approx([4.0, 4.0])


@given(st.integers(1, 512), st.data())
@settings(max_examples=40, deadline=None)
def test_skewed_routing_stays_between_one_token_and_uniform(n_experts, data):
    n_active = data.draw(st.integers(1, n_experts))
    tok = np.array([1.0, 2.0, 10.0, 100.0, 1e4])
    found = skewed_experts(n_experts, n_active, tok)
    assert (found >= n_active * (1 - 1e-9)).all()
    assert (found <= touched_experts(n_experts, n_active, tok) * (1 + 1e-9)).all()
    assert (np.diff(found) >= -1e-9).all()


def test_the_lower_end_of_experts_is_skewed_routing(moe):
    board = hardware.find("H100 SXM 80GB")
    table = component_table(moe, board, [1, 16], 1000, [0.02, 0.03])
    fast = achievable(board).bandwidth_frac / ACHIEVABLE_RANGE[1]
    skew = skewed_experts(128, 8, np.array(16.0)) / touched_experts(128, 8, 16.0)
    for level, share in ((1, 1.0), (16, skew)):
        row = table.query(f"name == 'experts' and running_req == {level}").iloc[0]
        assert row["lo"] == pytest.approx(row["time_s"] * fast * share)
    assert "20% fewer" in row["source"]
    spec_model = replace(moe, n_draft_tok=3)  # a round of 4 requests verifies 16 tokens
    assert skew_frac(spec_model, np.array([4.0])) == pytest.approx([float(skew)])
    by_hand = HandModel(6e9, 0.0, expert_bytes=50e9, n_experts=128, n_experts_active=8)
    assert skew_frac(by_hand, np.array([16.0])) == pytest.approx([float(skew)])
    assert skew_frac(HAND, np.array([16.0])) == 1


def test_the_floor_is_what_kernels_add_beyond_the_rest(moe):
    board = hardware.find("H100 SXM 80GB")
    table = component_table(moe, board, 1, 1000, 0.008)
    others = table[~table["name"].isin(["floor", "unexplained"])]
    least, most = 48 * 20 * 2e-6, 48 * 30 * 5e-6  # 48 layers with experts
    floor = table[table["name"].eq("floor")].iloc[0]
    assert floor["time_s"] == pytest.approx(np.sqrt(least * most) - others["time_s"].sum())
    assert floor["lo"] == pytest.approx(max(least - others["hi"].sum(), 0))
    assert floor["hi"] == pytest.approx(most - others["lo"].sum())
    assert "floor" not in set(component_table(moe, board, 1, 1000, 0.008, floor=False)["name"])
    assert "floor" not in set(component_table(moe, board, 64, 1000, 0.03)["name"])


def test_compute_beyond_the_bytes_is_a_row(qwen):
    table = component_table(replace(qwen, n_draft_tok=0), A6000, 400, 10, 0.2)
    row = table[table["name"].eq("compute")].iloc[0]
    assert row["lo"] < row["time_s"] < row["hi"]


def test_without_an_interval_the_source_says_so():
    table = component_table(HAND, SLAB, [1, 2], 100, [0.03, 0.03], [0.029, np.nan], [0.031, np.nan])
    rest = table[table["name"].eq("unexplained")].set_index("running_req")
    assert "no interval" not in rest.loc[1.0, "source"]
    assert "no interval" in rest.loc[2.0, "source"]
    others = table[table["running_req"].eq(2) & table["name"].ne("unexplained")]
    assert rest.loc[2.0, "lo"] == pytest.approx(0.03 - others["hi"].sum())


def test_an_unknown_context_leaves_the_rest_unknown():
    table = component_table(HAND, SLAB, 1, None, 0.03)
    assert np.isnan(times(table)["kv"])
    assert np.isnan(times(table)["unexplained"])
    assert times(table)["weights"] == pytest.approx(10e-3 / 0.82)


def test_products_against_peak(qwen):
    # Two FLOPs per parameter and token: 2 x 25.6e9 parameters/2 ranks x 4 tokens in BF16 bytes, plus 3 drafts.
    found = achieved(qwen, A6000, 1, 0, 0.1).iloc[0]
    assert found["flop"] == pytest.approx(2 * (25.625e9 / 2 * 4 + 3 * 1.696e9 / 2), rel=0.01)
    assert found["mfu_frac"] == pytest.approx(found["flop"] / 154.8e12 / 0.1)
    assert achieved(HAND, SLAB, 1, 0, 0.1)[["flop", "flop_per_s", "mfu_frac"]].isna().all(axis=None)
    assert np.isnan(achieved(qwen, replace(A6000, bf16_flop_per_s=None, fp16_flop_per_s=None), 1, 0, 0.1)
                    ["mfu_frac"].iloc[0])


def test_what_cannot_be_is_said_with_its_input():
    reached = achieved(HAND, SLAB, 1, 0, 0.008)
    table = component_table(HAND, SLAB, 1, 0, 0.008)
    above, alone = impossible(table, reached)
    assert "1251 GB/s per rank is 1.25 of the peak" in above
    assert "weights takes at least 11.5 ms" in alone
    assert "at most 8 ms" in alone
    assert "tp counted too small" in alone
    # Together too long, none of them alone: 11.5 ms + 8.05 ms against 15 ms.
    (together,) = impossible(component_table(HAND, SLAB, 1, 70_000, 0.015))
    assert "4.55 ms longer" in together and "most likely wrong" in together
    (context,) = impossible(component_table(HAND, SLAB, 1, 700_000, 0.03))
    assert "kv takes" in context and "the context per request" in context
    assert impossible(component_table(HAND, SLAB, 1, 0, 0.0117)) == ()  # negative, but not beyond the interval


def test_wrong_columns_are_refused():
    with pytest.raises(RooflogError, match="levels above 0"):
        component_table(HAND, SLAB, [0, 1], 0, 0.1)
    with pytest.raises(RooflogError, match="step_s: expected one number per level"):
        component_table(HAND, SLAB, [1, 2, 3], 0, [0.1, 0.2])


def test_the_ends_hold_the_centre():
    _, fast, slow = ends(Shares(0.95, 0.9), LINKS)
    assert (fast.shares.bandwidth_frac, slow.shares.bandwidth_frac) == (0.95, 0.66)
    assert (fast.shares.compute_frac, slow.shares.compute_frac) == (0.9, 0.51)


@given(
    st.lists(st.floats(1, 600), min_size=1, max_size=4, unique=True), st.floats(0, 1e5), st.floats(1e-4, 10),
    st.sampled_from(["hand", "Qwen3.6-27B", "Qwen3-30B-A3B", "DeepSeek-V3.2"]), st.floats(0.3, 1.0), st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_rows_add_up_and_intervals_hold_the_value(levels, context_tok, step_s, name, share, has_links):
    model = HAND if name == "hand" else DecodeModel(models.find(name), Parallel(tp=2), n_draft_tok=2)
    links = LINKS if has_links else {}
    steps = np.full(len(levels), step_s)
    args = model, A6000, levels, context_tok, steps, 0.9 * steps, 1.2 * steps
    for table in (component_table(*args, shares=Shares(share), links=links),
                  gap_table(*args, shares=Shares(share), links=links)):
        sums = table.groupby("running_req")["time_s"].sum()
        scale = table.groupby("running_req")["time_s"].agg(lambda column: column.abs().sum())
        assert ((sums - step_s).abs() <= 1e-12 * scale).all()
        assert table.groupby("running_req")["share_frac"].sum().to_numpy() == pytest.approx(1, abs=1e-6)
        slack = 1e-12 * scale.max()
        assert (table["lo"] <= table["time_s"] + slack).all() and (table["time_s"] <= table["hi"] + slack).all()
    parts = component_table(*args, links=links)
    assert set(parts["name"]) <= set(COMPONENTS)
    assert (parts.query("name != 'unexplained'")["lo"] >= 0).all()
