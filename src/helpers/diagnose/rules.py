"""The table of tests: what is seen, at which value it speaks, for or against which cause, and how strongly.

Adding a test is adding a row. Weights are likelihood ratios in steps (physics.md 4.2): +3 ten times likelier under the
cause, +2 five times, +1 twice; -1 and -2 the other way; -3 refutes. A weight rests on a value that was seen, never on
one that is missing. How an observation is computed, and what it leaves open, stands where it is made.

Long because every test is a row, and all rows are in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

PHYSICS = "physics.md 4.2"
FORMATS = "log-formats.md"


@dataclass(frozen=True)
class Rule:
    """One test: it speaks where ``at_least <= value <= at_most``.

    Attributes
    ----------
    cause : str
        Of `causes.CAUSES`.
    observation : str
        Name of the `Observation`.
    weight : int
        -3 .. +3.
    at_least, at_most : float
        Range of the observed value, its unit.
    source : str
        Where the test comes from.
    """

    cause: str
    observation: str
    weight: int
    at_least: float = -inf
    at_most: float = inf
    source: str = PHYSICS

    def fits(self, value: float) -> bool:
        """Tell whether a value lies in the range; NaN never does."""
        return self.at_least <= value <= self.at_most


def _rows(cause: str, *rows: tuple[str, int, float, float] | tuple[str, int, float, float, str]) -> tuple[Rule, ...]:
    return tuple(Rule(cause, *row) for row in rows)


YES, NO = (1.0, inf), (-inf, 0.0)
"""Ranges of a flag."""

RULES: tuple[Rule, ...] = (
    *_rows(
        "healthy",
        ("step_is_explained", +3, *YES),
        ("step_over_prediction", +2, 0.75, 1.25),
        ("step_over_prediction", -2, 1.6, inf),
        ("unexplained_worst_frac", -3, 0.20, inf),
    ),
    *_rows(
        "weight_bandwidth",
        ("weights_explained_frac", +3, 0.50, inf),
        ("dram_active_frac", +1, 0.70, inf),
        ("mem_busy_frac", +1, 0.70, inf),
        ("weights_most_frac", -3, -inf, 0.25),
        ("unexplained_least_frac", -3, 0.50, inf),
        ("dram_active_frac", -2, -inf, 0.30),
        ("mem_busy_frac", -2, -inf, 0.20),
        ("gemm_share_frac", +1, 0.60, inf),
        ("gemm_share_frac", -2, -inf, 0.15),
    ),
    *_rows(
        "kv_bandwidth",
        ("kv_explained_frac", +3, 0.40, inf),
        ("context_cost_over_kv", +2, 0.7, 1.6),
        ("context_cost_over_kv", -1, 3.0, inf),
        ("attention_share_frac", +2, 0.40, inf),
        ("dram_active_frac", +1, 0.70, inf),
        ("mem_busy_frac", +1, 0.70, inf),
        ("kv_most_frac", -3, -inf, 0.15),
        ("unexplained_least_frac", -3, 0.50, inf),
        ("dram_active_frac", -2, -inf, 0.30),
        ("attention_share_frac", -3, -inf, 0.10),
    ),
    *_rows(
        "state_bandwidth",
        ("state_explained_frac", +3, 0.30, inf),
        ("state_share_frac", +2, 0.30, inf),
        ("dram_active_frac", +1, 0.70, inf),
        ("mem_busy_frac", +1, 0.70, inf),
        ("state_most_frac", -3, -inf, 0.10),
        ("state_share_frac", -3, -inf, 0.05),
        ("unexplained_least_frac", -3, 0.50, inf),
    ),
    *_rows(
        "tensor_compute",
        ("compute_explained_frac", +3, 0.50, inf),
        ("tensor_active_frac", +2, 0.40, inf),
        ("mfu_most_frac", -3, -inf, 0.20),
        ("tensor_active_frac", -3, -inf, 0.10),
        ("power_over_limit", -1, -inf, 0.40),
    ),
    *_rows(
        "latency_or_occupancy",
        ("excess_fixed_frac", +1, 0.20, inf),
        ("kernels_fill_step_frac", +1, 0.90, inf),
        ("busy_without_traffic", +1, *YES),
        ("few_blocks_frac", +2, 0.50, inf),
        ("sm_active_low", +1, *YES),
        ("other_share_most_frac", -3, -inf, 0.20),
        ("dram_active_frac", -3, 0.70, inf),
        ("mem_busy_frac", -2, 0.70, inf),
        ("kernels_fill_step_frac", -3, -inf, 0.60),
        ("gap_frac", -2, 0.40, inf),
        ("communication_share_frac", -2, 0.40, inf),
        ("excess_slope_frac", -2, 0.80, inf),
    ),
    *_rows(
        "max_context_work",
        ("size_fingerprint", +2, 0.95, inf, "physics.md 4.3"),
        ("shape_fingerprint", +3, 0.95, inf, "physics.md 4.3"),
        ("excess_beyond_own_context", +2, *YES),
        ("step_follows_context_limit", +3, *YES),
        ("step_follows_context_limit", -3, *NO),
        ("excess_slope_frac", -3, -inf, 0.10),
        ("context_limit_over_context", -3, -inf, 2.0),
        ("context_cost_share_frac", -2, 0.30, inf),
        ("dram_active_frac", -1, -inf, 0.35),
        ("mem_busy_frac", -1, -inf, 0.35),
    ),
    *_rows(
        "context_growth",
        ("context_cost_beyond_kv", +3, *YES),
        ("context_growth_frac", +1, 0.08, inf),
        ("context_growth_with_resets", +3, 0.15, inf),
        ("context_growth_with_resets", +2, 0.08, 0.15),
        ("context_growth_frac", -3, -inf, 0.03),
        ("context_cost_over_kv", -2, -inf, 1.6),
    ),
    *_rows(
        "serialised_requests",
        ("kernels_grow_with_requests", +3, *YES),
        ("kernels_grow_with_requests", -3, *NO),
        ("excess_slope_frac", +1, 0.60, inf),
        ("excess_slope_frac", -3, -inf, 0.10),
        ("few_blocks_frac", +1, 0.50, inf),
        ("busy_without_traffic", +1, *YES),
        ("sm_active_low", +1, *YES),
    ),
    *_rows(
        "communication",
        ("communication_share_frac", +3, 0.25, inf),
        ("communication_share_frac", -3, -inf, 0.05),
        ("excess_fits_collectives", +2, *YES),
        ("excess_fits_collectives", +1, 0.5, 0.5),
        ("busy_without_traffic", +1, *YES),
        ("sm_active_low", +1, *YES),
        ("excess_fits_collectives", -2, *NO),
        ("collectives_explained_frac", +3, 0.40, inf),
        ("collectives_most_frac", -3, -inf, 0.20),
        ("n_ranks", -3, -inf, 1.0),
        ("rank_spread", -2, 1.5, inf),
        ("has_no_nvlink", +1, *YES),
        ("link_is_reduced", +2, *YES),
        ("same_build_elsewhere_over_here", +1, 1.3, inf),
        ("collective_slope_is_absurd", -3, *YES),
    ),
    *_rows(
        "host_or_scheduler",
        ("kernels_fill_step_frac", +3, -inf, 0.80),
        ("kernels_fill_step_frac", -3, 0.95, inf),
        ("gap_frac", +3, 0.20, inf),
        ("gap_frac", -3, -inf, 0.05),
        ("busy_frac", +2, -inf, 0.90),
        ("busy_frac", -1, 0.98, inf),
        ("overlap_is_off", +1, *YES),
        ("graph_is_off", +1, *YES),
        ("excess_fixed_frac", +1, 0.20, inf),
        ("other_share_most_frac", -3, -inf, 0.20),
    ),
    *_rows(
        "graph_fallback",
        ("fallback_time_frac", +3, 0.20, inf),
        ("fallback_time_frac", +1, 0.05, 0.20),
        ("graph_is_off", +2, *YES),
        ("beyond_captured_frac", +1, 0.20, inf),
        ("jump_beyond_captured", +3, 1.25, inf),
        ("jump_beyond_captured", -2, -inf, 1.05),
        ("graph_always", -3, *YES),
    ),
    *_rows(
        "graph_padding",
        ("staircase_levels", +3, 3.0, inf),
        ("staircase_levels", +2, 2.0, 2.0),
        ("padding_frac", +1, 0.25, inf),
        ("padding_frac", -3, -inf, 0.05),
        ("step_is_explained", -2, *YES),
    ),
    *_rows(
        "prefill_interference",
        ("prefill_time_frac", +3, 0.50, inf),
        ("prefill_time_frac", +2, 0.25, 0.50),
        ("prefill_time_frac", +1, 0.10, 0.25),
        ("prefill_time_frac", -3, -inf, 0.05),
        ("tpot_over_step", +1, 1.5, inf),
    ),
    *_rows(
        "kv_capacity",
        ("pool_full_time_frac", +3, 0.20, inf),
        ("pool_full_time_frac", +1, 0.05, 0.20),
        ("retracted_events", +2, 3.0, inf, FORMATS),
        ("smaller_after_out_of_memory", +1, *YES),
        ("demand_over_pool", +1, 1.1, inf),
        ("pool_use_most_frac", -3, -inf, 0.80),
    ),
    *_rows(
        "admission_limit",
        ("pinned_at_limit_frac", +3, 0.50, inf),
        ("pinned_with_queue_frac", +2, 0.50, inf),
        ("queue_time_frac", -3, -inf, 0.02),
        ("pool_full_time_frac", -2, 0.20, inf),
        ("queue_beside_idle_ranks_frac", -3, 0.30, inf),
    ),
    *_rows(
        "rank_imbalance",
        ("queue_beside_idle_ranks_frac", +3, 0.30, inf),
        ("rank_spread", +3, 1.5, inf),
        ("rank_spread", +1, 1.3, 1.5),
        ("rank_spread", -3, -inf, 1.1),
        ("n_data_ranks", -2, -inf, 1.0),
        ("is_one_rank", -3, *YES),
        ("gauge_rank_spread", +2, 2.0, inf),
        ("boards_differ", +2, *YES),
    ),
    *_rows(
        "low_acceptance",
        ("slower_than_without_drafts", +3, *YES),
        ("slower_than_without_drafts", -3, *NO),
        ("accepted_frac", +2, -inf, 0.25),
        ("accepted_frac", +1, 0.25, 0.35),
        ("accepted_frac", -3, 0.50, inf),
        ("acceptance_falls_with_load", +1, *YES),
        ("uses_drafts", -3, *NO),
    ),
    *_rows(
        "power_or_thermal",
        ("clock_held_frac", +2, 0.50, inf),
        ("clock_below_max_frac", +1, 0.08, inf),
        ("clock_below_boost_frac", +1, 0.10, inf),
        ("power_over_limit", +1, 0.95, inf),
        ("clock_below_baseline_frac", +1, 0.05, inf),
        ("slower_than_baseline_at_lower_clock", +2, *YES),
        ("same_speed_at_other_limit", -3, *YES),
        ("far_from_power_limit", -3, *YES),
        ("step_drift_frac", +1, 0.05, inf),
    ),
    *_rows(
        "measurement_artifact",
        ("frozen_count", +3, *YES, FORMATS),
        ("padded_count_frac", +3, 0.10, inf, FORMATS),
        ("first_line_error_frac", +3, 0.15, inf, FORMATS),
    ),
)
"""Every test. `tests/diagnose/test_rules.py` holds that each cause can be supported and refuted."""
