"""The experiments that can decide between causes: one row each, adding one is adding a row.

Predictions follow physics.md 4.2: what each cause says about the part of step = a + b N that a change reaches.
"""

from __future__ import annotations

from collections.abc import Callable

from helpers.plan import rates, sizes
from helpers.plan.changes import Changes
from helpers.plan.known import Known
from helpers.plan.outcomes import (
    Outcome,
    Predict,
    constant,
    excess_times,
    intercept_times,
    seen,
    silent,
    slope_times,
    split_at_target,
    step_to,
    unchanged,
    whole_times,
)
from helpers.plan.row import LABEL_ERROR, PROFILE_ERROR, Experiment

COMMUNICATION_FRAC = 0.25
"""Share of a step that collectives have at least where they are the cause (physics.md 4.2: AR share > 0.25)."""

GAP_FRAC = 0.2
"""Share of gaps between kernels where the host is the cause (physics.md 4.2)."""

CLOCK_FRAC = 0.8
"""Locked clock over the clock seen before (physics.md 4.2: lock clocks -20 %)."""

POWER_FRAC = 0.7
"""Lowered power limit over the limit in force: physics.md 4.2 says 0.8, but the clock falls by 7 % only then."""

POWER_EXPONENT = 1 / 3
"""Power grows about as the cube of the clock (frequency times voltage squared), so clock = power^(1/3)."""


def _req(n: int) -> str:
    """Write how many requests are sent."""
    return f"{n} request{'' if n == 1 else 's'}"


def _set(**settings: Callable[[Known], object]) -> Callable[[Known], Changes]:
    return lambda known: Changes({name: value(known) for name, value in settings.items()})


def _cap(known: Known, n: int) -> Outcome:
    """Predict the step when the slope alone follows the limit; all of it following gives the lower end."""
    ratio = sizes.context_cap_tok(known) / (known.number("context_length_max") or float("inf"))
    share = known.slope_frac(n)
    share = 0.5 if share is None else share
    return step_to(known, n, 1 - share * (1 - ratio), "work that scales with the context limit, the slope at least",
                   or_less=True)


def _tp_hops(known: Known) -> float:
    """Return the growth of the latency part of a ring all-reduce, 2 (p - 1) hops (physics.md 1.10)."""
    before, after = known.whole("tp", 1), sizes.tp_after(known)
    return (after - 1) / (before - 1) if before > 1 else 2.0


def _tp_share(known: Known) -> float:
    """Return what is left of sharded work per device."""
    return known.whole("tp", 1) / sizes.tp_after(known)


def _resharded(
    factor: Callable[[Known], float], why: str, of_line: Callable[[Callable[[Known], float], str], Predict]
) -> Predict:
    """Scale the whole step, whose bytes and operations are all split; one part of the line without a roofline."""
    return split_at_target(factor, factor, why, of_line(factor, why))


TABLE: tuple[Experiment, ...] = (
    Experiment(
        "context_cap",
        lambda k: f"Restart with a context limit of {sizes.context_cap_tok(k)} tokens instead of "
                  f"{k.whole('context_length_max')} and run {_req(k.test_req())}",
        {"max_context_work": _cap},
        unchanged("it does not depend on the context limit"),
        sizes.one, _set(context_length_max=sizes.context_cap_tok), sizes.no_context_cap,
    ),
    Experiment(
        "two_prompt_lengths",
        lambda k: f"Run {_req(k.test_req())} with prompts of {sizes.prompts(k)[0]} and then "
                  f"{sizes.prompts(k)[1]} tokens",
        {
            "kv_bandwidth": slope_times(sizes.context_ratio, "KV bytes grow with the context"),
            "context_growth": slope_times(sizes.context_ratio, "the step grows with the context"),
            "kv_capacity": seen("fewer run", "fewer requests run at once, or some are retracted"),
            "prefill_interference": silent,
            "measurement_artifact": silent,
        },
        unchanged("it does not depend on the context in use"),
        sizes.two_prompts, blocked=sizes.no_longer_prompt,
    ),
    Experiment(
        "fp8_kv",
        lambda k: f"Restart with the KV cache in FP8 and run {_req(k.test_req())}",
        {
            "kv_bandwidth": slope_times(constant(0.5), "half the KV bytes"),
            "context_growth": slope_times(constant(0.5), "half the KV bytes"),
            "kv_capacity": seen("more run", "about twice as many requests run before the pool is full"),
            "latency_or_occupancy": silent,
        },
        unchanged("it does not read the KV cache"),
        sizes.one, _set(kv_cache_dtype=lambda k: "fp8"),
        lambda k: "the KV cache is in 8 bits or less already"
        if any(word in k.text("kv_cache_dtype") for word in ("fp8", "fp4", "int8")) else "",
    ),
    Experiment(
        "fp8_weights",
        lambda k: f"Restart with the weights quantised to FP8 and run {_req(k.test_req())}",
        {"weight_bandwidth": intercept_times(constant(0.5), "half the weight bytes"), "tensor_compute": silent,
         "kv_capacity": silent, "latency_or_occupancy": silent},
        unchanged("it does not read weights"),
        sizes.one, _set(quantization=lambda k: "fp8"),
        lambda k: "the weights are quantised already" if k.text("quantization") else sizes.not_sixteen_bits(k),
    ),
    Experiment(
        "tp_change",
        lambda k: f"Restart with TP={sizes.tp_after(k)} instead of {k.whole('tp', 1)} and run {_req(k.test_req())}",
        {
            "weight_bandwidth": _resharded(_tp_share, "weight bytes per device are split by TP", intercept_times),
            "kv_bandwidth": _resharded(_tp_share, "KV bytes per device are split by TP (not for MLA)", slope_times),
            "state_bandwidth": _resharded(_tp_share, "states are split by TP", slope_times),
            "tensor_compute": _resharded(_tp_share, "operations are split by TP", slope_times),
            "communication": split_at_target(
                _tp_share, _tp_hops, "bytes per device are split by TP, hops of a collective are 2 (TP - 1)",
                excess_times(_tp_hops, "hops of a collective: 2 (TP - 1)", COMMUNICATION_FRAC)),
            "kv_capacity": silent, "power_or_thermal": silent, "context_growth": silent,
        },
        split_at_target(_tp_share, constant(1.0), "bytes per device are split by TP, the rest is not",
                        unchanged("TP does not share it out")),
        sizes.one, _set(tp=sizes.tp_after), sizes.no_tp_change,
    ),
    Experiment(
        "graph_switch",
        lambda k: f"Restart with CUDA graphs {'off' if sizes.graphs_on(k) else 'on'} and run {sizes.top_req(k)} "
                  "requests",
        {
            "host_or_scheduler": lambda k, n: (
                sizes.eager(k, n, is_added=True) if sizes.graphs_on(k)
                else intercept_times(constant(0.5), "launches leave the host")(k, n)),
            "graph_fallback": lambda k, n: step_to(
                k, n, 1.0 if sizes.graphs_on(k) else 0.5,
                "above the captured sizes no graph is used already" if sizes.graphs_on(k) else "graphs are used again"),
            "latency_or_occupancy": silent, "graph_padding": silent, "serialised_requests": silent,
        },
        lambda k, n: (sizes.eager(k, n, is_added=False) if sizes.graphs_on(k)
                      else step_to(k, n, 1.0, "the device, not the host, sets the pace")),
        sizes.at_top, _set(graphs_off=sizes.graphs_on), error_prob=LABEL_ERROR,
    ),
    Experiment(
        "capture_more",
        lambda k: f"Restart with graphs captured up to {sizes.top_req(k)} requests (now {max(k.sizes())}) and run "
                  f"{sizes.top_req(k)} requests",
        {"graph_fallback": whole_times(sizes.captured_step_ratio, "the step follows the captured levels"),
         "host_or_scheduler": silent},
        unchanged("a graph does not change the kernels"),
        sizes.at_top, _set(graph_req_max=sizes.top_req), sizes.nothing_to_capture,
    ),
    Experiment(
        "captured_sizes",
        lambda k: "Run {} requests, a captured size, and then {}, which is padded to {}".format(*sizes.pair(k)),
        {"graph_padding": sizes.padded_step},
        sizes.next_step,
        sizes.at_pair, blocked=sizes.no_pair,
    ),
    Experiment(
        "halve_n",
        lambda k: f"Run {max(1, sizes.top_req(k) // 2)} requests instead of {sizes.top_req(k)}",
        {
            "tensor_compute": whole_times(constant(0.5), "above the ridge operations set the pace"),
            "serialised_requests": whole_times(constant(0.55), "each request has its own kernels"),
            "kv_bandwidth": whole_times(constant(0.75), "half the KV bytes, the same weights"),
            "max_context_work": whole_times(constant(0.55), "each request pays for the whole limit"),
            "context_growth": silent, "measurement_artifact": silent, "communication": silent,
            "state_bandwidth": silent,
        },
        unchanged("it does not depend on the number of requests"),
        sizes.at_half, blocked=lambda k: "" if len(k.levels) == 1 and sizes.top_req(k) > 1
        else "more than one level was measured, or none above 1", error_prob=LABEL_ERROR,
    ),
    Experiment(
        "sweep",
        lambda k: "Run a sweep of levels with one shape of request: N = "
                  + ", ".join(str(load.running_req) for load in sizes.sweep(k)),
        {
            **{cause: seen("flat", "the step is flat in N: one read of the weights, or the host, pays for all requests")
               for cause in ("weight_bandwidth", "host_or_scheduler")},
            **{cause: seen("line", "the step is a straight line in N with a steep slope")
               for cause in ("kv_bandwidth", "state_bandwidth", "max_context_work", "serialised_requests")},
            "tensor_compute": seen("ridge", "the step is flat, then proportional to N"),
            "latency_or_occupancy": seen("waves", "the step is high at N=1 and grows in stairs"),
            "graph_fallback": seen("jump", "the step jumps above the largest captured size"),
            "graph_padding": seen("stairs", "the step climbs at the captured sizes"),
            "admission_limit": seen("pinned", "#running-req stops below the requests sent, others wait in the queue"),
            "kv_capacity": seen("pinned", "#running-req stops below the requests sent, others wait in the queue"),
        },
        silent,
        sizes.sweep, blocked=lambda k: "" if len(k.levels) < 3 or k.get("law_refused") else "a law is fitted already",
        error_prob=LABEL_ERROR,
    ),
    Experiment(
        "clock_lock",
        lambda k: f"Run {_req(k.test_req())}, lock the SM clock 20 % lower and run them again",
        {
            "latency_or_occupancy": whole_times(constant(1 / CLOCK_FRAC), "latency counts in clock cycles"),
            "tensor_compute": slope_times(constant(1 / CLOCK_FRAC), "operations count in clock cycles", 1.0),
            "serialised_requests": slope_times(constant(1 / CLOCK_FRAC), "short kernels count in clock cycles", 1.0),
            "max_context_work": silent, "power_or_thermal": silent, "measurement_artifact": silent,
        },
        unchanged("memory, links and host do not follow the SM clock"),
        sizes.twice, extra=frozenset({"lock_clock", "telemetry"}),
    ),
    Experiment(
        "power_limit",
        lambda k: f"Run {_req(k.test_req())}, lower the power limit by 30 % and run them again",
        {
            "power_or_thermal": whole_times(constant(POWER_FRAC**-POWER_EXPONENT),
                                            "clock goes as the cube root of power"),
            "tensor_compute": silent, "measurement_artifact": silent,
        },
        unchanged("power does not hold the clock down"),
        sizes.twice, extra=frozenset({"power_limit", "telemetry"}), error_prob=LABEL_ERROR,
    ),
    Experiment(
        "profile_two_levels",
        lambda k: "Profile a few steps at N = {} and {} in steady decode and compare kernel counts and roles".format(
            *(load.running_req for load in sizes.two_profiles(k))),
        {
            "serialised_requests": seen("counts double", "kernels per step double when N doubles"),
            "communication": seen("collectives", f"collectives take more than {COMMUNICATION_FRAC:.0%} of kernel time"),
            "host_or_scheduler": seen("gaps", f"gaps between kernels take more than {GAP_FRAC:.0%} of the step"),
            "graph_fallback": seen("gaps", f"gaps between kernels take more than {GAP_FRAC:.0%} of the step"),
            "kv_bandwidth": seen("attention", "attention has the largest share, and it doubles when N doubles"),
            "state_bandwidth": seen("state", "kernels of recurrent layers have the largest share and double with N"),
            "weight_bandwidth": seen("gemm", "matrix products take more than 60% of kernel time, the same at both N"),
            "tensor_compute": seen("gemm grows", "matrix products have the largest share and double with N"),
            "latency_or_occupancy": seen("small grid", "one kernel leads with fewer blocks than the device has SMs"),
            "max_context_work": seen("limit in shapes", "bmm, copy, topk or elementwise kernels lead; a dimension of "
                                                        "their tensors follows the context limit"),
            "low_acceptance": seen("draft", "draft and verify kernels lead, few tokens accepted"),
        },
        silent,
        sizes.two_profiles, extra=frozenset({"profile", "telemetry"}), deciding="profile", error_prob=PROFILE_ERROR,
    ),
    Experiment(
        "profile_collectives",
        lambda k: f"Profile all ranks in steady decode at N={k.test_req()} and compare their collectives",
        {
            "communication": seen("collectives", f"the shortest collective over ranks still adds up to more than "
                                                 f"{COMMUNICATION_FRAC:.0%} of the step"),
            "rank_imbalance": seen("waiting", "collectives are long on all ranks but the slowest: they wait"),
        },
        seen("small", "collectives take less than 5 % of the step on every rank"),
        sizes.one_profile, blocked=lambda k: "" if max(k.whole(name, 1) for name in ("tp", "dp", "ep")) > 1
        else "there is one rank",
        extra=frozenset({"profile"}), deciding="profile", error_prob=LABEL_ERROR,
    ),
    Experiment(
        "custom_all_reduce_off",
        lambda k: f"Restart without the custom all-reduce and run {_req(k.test_req())}",
        {"communication": excess_times(constant(1.5), "NCCL costs half as much again for small messages",
                                       COMMUNICATION_FRAC)},
        unchanged("it does not wait for collectives"),
        sizes.one, _set(custom_all_reduce_off=lambda k: True),
        lambda k: "" if k.whole("tp", 1) > 1 else "there is one rank", error_prob=LABEL_ERROR,
    ),
    Experiment(
        "overlap_switch",
        lambda k: f"Restart with overlap scheduling {'off' if sizes.overlap_on(k) else 'on'} and run "
                  f"{_req(k.test_req())}",
        {"host_or_scheduler": lambda k, n: intercept_times(
            constant(1.5 if sizes.overlap_on(k) else 0.67),
            "host work is no longer hidden" if sizes.overlap_on(k) else "host work hides behind the device")(k, n)},
        unchanged("the device sets the pace"),
        sizes.one, _set(overlap_off=sizes.overlap_on), error_prob=LABEL_ERROR,
    ),
    Experiment(
        "long_outputs",
        lambda k: f"Run {_req(k.test_req())} at once with {sizes.long_output_tok(k)} output tokens, no arrivals "
                  "after the first",
        {
            "prefill_interference": sizes.without_prefill,
            "context_growth": slope_times(sizes.growth_ratio, "the context grows while they run"),
            "kv_bandwidth": slope_times(sizes.growth_ratio, "the context grows while they run"),
            "measurement_artifact": silent, "kv_capacity": silent,
        },
        unchanged("no prompt was in the way before"),
        sizes.long_one,
    ),
    Experiment(
        "fewer_requests",
        lambda k: f"Run {max(1, 3 * sizes.top_req(k) // 4)} requests instead of {sizes.top_req(k)}",
        {"kv_capacity": seen("no retraction", "retractions stop and the output rate does not fall"),
         "admission_limit": silent},
        lambda k, n: rates.rate_at(k, max(1, 3 * sizes.top_req(k) // 4)),
        sizes.at_three_quarters, blocked=lambda k: "" if sizes.top_req(k) > 1 else "one request at most was seen",
    ),
    Experiment(
        "more_admitted",
        lambda k: f"Restart with an admission limit of {2 * k.limit_req} requests instead of {k.limit_req}",
        {"admission_limit": seen("more run", "#running-req follows the requests sent, up to twice the limit"),
         "kv_capacity": seen("retractions", "the KV pool fills and requests are retracted")},
        seen("same rate", "the same or more run, the step follows its law"),
        sizes.at_twice_limit, _set(max_running_requests=lambda k: 2 * k.limit_req),
        lambda k: "" if k.number("max_running_requests") else "the admission limit is not known",
    ),
    Experiment(
        "larger_pool",
        lambda k: f"Restart with more memory for the KV pool and run {sizes.top_req(k)} requests",
        {"kv_capacity": seen("more run", "more requests run before the pool is full, fewer are retracted")},
        seen("same", "as many requests run as before"),
        sizes.at_top, _set(memory_frac=sizes.memory_frac), sizes.no_larger_pool, error_prob=LABEL_ERROR,
    ),
    Experiment(
        "speculation_off",
        lambda k: f"Restart without speculation and run {_req(k.test_req())}",
        {"low_acceptance": lambda k, n: rates.plain_rate(k, n, paid=False),
         "state_bandwidth": slope_times(rates.state_ratio, "one state written instead of one per draft token")},
        lambda k, n: rates.plain_rate(k, n, paid=True),
        sizes.one, _set(speculation=lambda k: False), rates.no_speculation, error_prob=LABEL_ERROR,
    ),
    Experiment(
        "fewer_draft_tokens",
        lambda k: f"Restart with {rates.draft_after(k)} draft tokens instead of {k.whole('num_draft_tokens')} and run "
                  f"{_req(k.test_req())}",
        {"low_acceptance": whole_times(rates.shorter_round, "fewer drafts, as many tokens are accepted"),
         "state_bandwidth": slope_times(rates.state_ratio_fewer, "fewer states are written")},
        silent,
        sizes.one, _set(draft_tok=rates.draft_after, draft_steps=lambda k: max(1, rates.draft_after(k) - 1)),
        lambda k: rates.no_speculation(k) or ("" if k.whole("num_draft_tokens") > 2 else "few draft tokens already"),
        error_prob=LABEL_ERROR,
    ),
    Experiment(
        "even_ranks",
        lambda k: f"Restart with requests dealt in turn and experts balanced, run {sizes.even_req(k)} requests",
        {"rank_imbalance": whole_times(sizes.balance_ratio, "the step waits for mean, not most, requests of a rank")},
        unchanged("ranks were even already"),
        sizes.even, lambda k: Changes({"spread": "round_robin"} | ({"balanced": True} if k.whole("ep", 1) > 1 else {})),
        lambda k: "" if max(k.whole("dp", 1), k.whole("ep", 1)) > 1 else "there is one data-parallel rank",
    ),
    Experiment(
        "log_every_step",
        lambda k: f"Restart with a log line for every step, stamps in ms, and run {_req(k.test_req())}",
        {"measurement_artifact": seen("other step", "steps between lines differ from the step of the log by more than "
                                                    "10 %"),
         "context_growth": seen("grows", "the step grows from line to line at the same N"),
         "prefill_interference": seen("bimodal", "steps with a prefill beside them are longer, the others not")},
        unchanged("the log measured the step rightly"),
        sizes.one, lambda k: Changes({"decode_log_interval": 1},
                                {"sglang": {"SGLANG_LOG_MS": "1"}, "vllm": {"VLLM_LOG_STATS_INTERVAL": "1"}}),
        lambda k: "every step has its line already" if k.whole("decode_log_interval") == 1 else "",
        LABEL_ERROR,
    ),
    Experiment(
        "add_telemetry",
        lambda k: f"Run {_req(k.test_req())} and record power, clocks and utilisation beside them",
        {
            "power_or_thermal": seen("capped", "the clock is held down: power at its limit or a throttle reason"),
            "tensor_compute": seen("hot", "power above 80 % of its limit"),
            "host_or_scheduler": seen("idle", "utilisation below 90 %"),
            "graph_fallback": seen("idle", "utilisation below 90 %"),
        },
        seen("busy and cool", "utilisation near 100 %, power well below its limit, no throttle reason"),
        sizes.one, blocked=lambda k: "there is telemetry already" if k.flag("has_telemetry") else "",
        extra=frozenset({"telemetry"}), deciding="telemetry", error_prob=LABEL_ERROR,
    ),
)
"""All experiments: physics.md 4.2's last column, and those that its cautions ask for."""
