"""How large the loads of an experiment are, and the numbers that its predictions need."""

from __future__ import annotations

import math

from helpers.display import level_key, show
from helpers.plan.duration import Load
from helpers.plan.known import ASSUMED_PROMPT_TOK, ASSUMED_STEP_S, Known, positive
from helpers.plan.outcomes import Outcome, step_to

MIN_LINES = 8
"""Decode lines that a load must give at a level: the first and last fall away, six make an interval (style.md 1)."""

LOG_INTERVAL = 40
"""Decode steps between two lines where the log does not say [steps]: SGLang's default (log-formats.md 1.2)."""

WINDOW_S = 10.0
"""Window of a vLLM statistics line [s] (log-formats.md 2.2)."""

CONTEXT_CAP_TOK = 8192
"""Context limit of field case A's remedy [tok]; lower limits would cut what servers are used for."""

CAP_DIVISOR, MIN_CAP_DIVISOR = 8, 4
"""How much lower a capped limit is, and how much it must be to decide (physics.md 4.2: restart with 1/8, refuted by
1/4)."""

SWEEP_REQ = (1, 4, 16, 64)
"""Levels of a sweep [req]: four give a line two degrees of freedom, a factor of four apart shows a bend."""

LONG_FACTOR = 4
"""How much longer outputs, or prompts, are in an experiment on them."""

POOL_STEP_FRAC = 0.05
"""Memory that is moved to the KV pool, as a share of the device's."""

KERNELS_PER_STEP = 1000
"""Kernels of a step where no trace counted them: 10 to 50 a layer (physics.md 1.11)."""

LAUNCH_S = 20e-6
"""Host time of one eager launch [s]: 4 to 6 us in the driver, 10 to 30 us in PyTorch (physics.md 1.11)."""

MIN_PROFILE_S = 60.0
"""Decode that a profile needs [s]: lines until three intervals are clean, then the profiled steps, which are slower."""

MAX_MEMORY_FRAC = 0.95
"""Share of the device's memory above which servers run out of it (vLLM's advice: 0.95 at most)."""


def prompt_tok(known: Known) -> int:
    """Return the prompt of a test load [tok]: the measured one, at most a quarter of the context limit."""
    limit = known.number("context_length_max")
    wanted = known.whole("prompt_tokens", ASSUMED_PROMPT_TOK)
    return max(1, min(wanted, int(limit // 4)) if limit else wanted)


def output_tok(known: Known, running_req: int) -> int:
    """Return output tokens that give MIN_LINES lines at a level [tok], within half of the context limit."""
    step_s = known.step_s(running_req) or ASSUMED_STEP_S
    steps = MIN_LINES * known.whole("decode_log_interval", LOG_INTERVAL)
    if known.engine == "vllm":
        steps = math.ceil(MIN_LINES * WINDOW_S / step_s)
    wanted = math.ceil(steps * max(1.0, known.number("accept_len") or 1.0))
    limit = known.number("context_length_max")
    return max(1, min(wanted, int(limit // 2)) if limit else wanted)


def load(known: Known, running_req: int, *, prompt: int | None = None, phase: int = 1) -> Load:
    """Return one wave of requests at a level: all start together, decode together, end together."""
    running_req = max(1, running_req)
    return Load(running_req, prompt or prompt_tok(known), output_tok(known, running_req), running_req, phase)


def one(known: Known) -> tuple[Load, ...]:
    """Return one load at the test level."""
    return (load(known, known.test_req()),)


def twice(known: Known) -> tuple[Load, ...]:
    """Return the same load before and after a change of the device."""
    return (load(known, known.test_req()), load(known, known.test_req(), phase=2))


def top_req(known: Known) -> int:
    """Return the highest measured level [req]; the test level without one."""
    return int(max(known.levels, default=known.test_req()))


def at_top(known: Known) -> tuple[Load, ...]:
    """Return one load at the highest level."""
    return (load(known, top_req(known)),)


def at_half(known: Known) -> tuple[Load, ...]:
    """Return one load at half the highest level."""
    return (load(known, top_req(known) // 2),)


def at_three_quarters(known: Known) -> tuple[Load, ...]:
    """Return one load at three quarters of the highest level."""
    return (load(known, 3 * top_req(known) // 4),)


def at_twice_limit(known: Known) -> tuple[Load, ...]:
    """Return one load of twice the admission limit."""
    return (load(known, 2 * known.limit_req),)


def sweep(known: Known) -> tuple[Load, ...]:
    """Return the loads of a sweep, within the admission limit."""
    return tuple(load(known, n) for n in SWEEP_REQ if n <= known.limit_req)


# context ------------------------------------------------------------------------------------------------------------

def context_cap_tok(known: Known) -> int:
    """Return the capped context limit [tok]: low enough to decide, high enough for the load."""
    limit = known.whole("context_length_max")
    needed = 2 ** math.ceil(math.log2(prompt_tok(known) + output_tok(known, known.test_req()) + 1))
    return max(needed, min(limit // CAP_DIVISOR, CONTEXT_CAP_TOK))


def no_context_cap(known: Known) -> str:
    """Say why the context limit cannot be capped."""
    if not known.number("context_length_max"):
        return "the context limit is not known"
    if context_cap_tok(known) * MIN_CAP_DIVISOR > known.whole("context_length_max"):
        return "the load needs more than a quarter of the context limit"
    return ""


def prompts(known: Known) -> tuple[int, int]:
    """Return a short and a long prompt [tok]."""
    short, limit = prompt_tok(known), known.number("context_length_max")
    long = LONG_FACTOR * (short + output_tok(known, known.test_req()))  # so that the mean context grows by it
    room = int(limit) - output_tok(known, known.test_req()) - 1 if limit else long
    return short, max(short, min(long, room))


def two_prompts(known: Known) -> tuple[Load, ...]:
    """Return a load with the short and one with the long prompt."""
    short, long = prompts(known)
    return (load(known, known.test_req(), prompt=short), load(known, known.test_req(), prompt=long, phase=2))


def context_ratio(known: Known) -> float:
    """Return the mean context of the long load over that of the short one."""
    short, long = prompts(known)
    half = output_tok(known, known.test_req()) / 2
    return (long + half) / (short + half)


def no_longer_prompt(known: Known) -> str:
    """Say why a longer prompt does not fit."""
    return "" if context_ratio(known) >= 2 else "a prompt twice as long does not fit in the context limit"


def long_output_tok(known: Known) -> int:
    """Return a long output [tok]."""
    limit = known.number("context_length_max")
    wanted = LONG_FACTOR * output_tok(known, known.test_req())
    return max(1, min(wanted, int(limit) - prompt_tok(known) - 1) if limit else wanted)


def long_one(known: Known) -> tuple[Load, ...]:
    """Return one wave with long outputs."""
    n = known.test_req()
    return (Load(n, prompt_tok(known), long_output_tok(known), n),)


def growth_ratio(known: Known) -> float:
    """Return the mean context with long outputs over that of the measured requests."""
    before = prompt_tok(known) + known.whole("output_tokens", output_tok(known, known.test_req())) / 2
    return (prompt_tok(known) + long_output_tok(known) / 2) / before


def without_prefill(known: Known, n: int) -> Outcome:
    """Predict the step without the prefill that was in its intervals."""
    share = positive(known.get("prefill_frac"))
    ratio = 1 - share if share is not None and share < 1 else 0.8  # physics.md 6.2: 20 % is where a log must warn
    return step_to(known, n, ratio, "no prompt is computed between the steps", or_less=share is None)


# ranks, graphs, pools -----------------------------------------------------------------------------------------------

def tp_after(known: Known) -> int:
    """Return the other TP degree: twice where devices are left over, else half."""
    tp = known.whole("tp", 1)
    return 2 * tp if known.whole("gpus", tp) >= 2 * tp else max(1, tp // 2)


def no_tp_change(known: Known) -> str:
    """Say why TP cannot be changed."""
    if tp_after(known) == known.whole("tp", 1):
        return "one device: TP cannot be changed"
    weight_bytes, mem_bytes = known.number("weight_bytes"), known.number("mem_bytes")
    fits = weight_bytes is None or mem_bytes is None or weight_bytes / tp_after(known) < MAX_MEMORY_FRAC * mem_bytes
    return "" if fits else "the weights do not fit on fewer devices"


def not_sixteen_bits(known: Known) -> str:
    """Say why the weights cannot be quantised on the fly."""
    name = f"{known.text('model')} {known.text('weight_format')}".lower()
    words = ("fp8", "fp4", "int4", "int8", "awq", "gptq", "w4", "w8", "gguf")
    small = next((word for word in words if word in name), "")
    return f"the weights seem to be {small} already" if small else ""


def graphs_on(known: Known) -> bool:
    """Tell whether graphs are on; both engines have them on by default."""
    return known.flag("cuda_graph_enabled") is not False


def eager(known: Known, n: int, *, is_added: bool) -> Outcome:
    """Predict the step without graphs: launches add to it where the host is the cause, else the longer counts."""
    launches_s = KERNELS_PER_STEP * LAUNCH_S
    step_s = known.step_s(n) or ASSUMED_STEP_S
    after_s = step_s + launches_s if is_added else max(step_s, launches_s)
    how = "added to what it does already" if is_added else "hidden behind the device where that takes longer"
    why = f"about {KERNELS_PER_STEP} launches of {show(LAUNCH_S, 's')} each, {how}"
    return step_to(known, n, after_s / step_s, why)


def overlap_on(known: Known) -> bool:
    """Tell whether the scheduler overlaps the device; SGLang does by default since 0.4, vLLM since 0.14."""
    if known.flag("disable_overlap_schedule") is not None:
        return not known.flag("disable_overlap_schedule")
    return known.flag("enable_overlap_schedule") is not False


def nothing_to_capture(known: Known) -> str:
    """Say why no more graphs help."""
    captured = known.sizes()
    if not captured:
        return "the captured sizes are not known"
    return "" if top_req(known) > max(captured) else "all measured levels are within the captured sizes"


def captured_step_ratio(known: Known) -> float:
    """Return the step that the captured levels predict at the highest level over the measured one; 0.8 if unknown."""
    inside = sorted(n for n in known.levels if n <= max(known.sizes(), default=0))
    top = max(known.levels, default=0.0)
    if len(inside) < 2 or not top:
        return 0.8  # what a fallback costs at least to be worth naming: launches of a fifth of the step
    lo, hi = inside[0], inside[-1]
    slope_s = max(0.0, (known.levels[hi] - known.levels[lo]) / (hi - lo))
    return min(1.0, (known.levels[hi] + slope_s * (top - hi)) / known.levels[top])


def pair(known: Known) -> tuple[int, int, int]:
    """Return a captured size, one request more, and the size that it is padded to, where the gap is largest [req]."""
    captured = [size for size in known.sizes() if size <= known.limit_req]
    gaps = [(hi / lo, lo, hi) for lo, hi in zip(captured, captured[1:], strict=False) if hi > lo + 1]
    _, lo, hi = max(gaps, default=(0.0, 0, 0))
    return lo, lo + 1, hi


def no_pair(known: Known) -> str:
    """Say why padding cannot be tested."""
    return "" if pair(known)[0] else "no captured sizes with a gap between them are known"


def at_pair(known: Known) -> tuple[Load, ...]:
    """Return a load at a captured size and one just above it."""
    lo, above, _ = pair(known)
    return (load(known, lo), load(known, above))


def padded_step(known: Known, n: int) -> Outcome:
    """Predict the step just above a captured size as that of the next size."""
    lo, above, hi = pair(known)
    return _next(known, lo, above, hi, f"padded to {hi}")


def next_step(known: Known, n: int) -> Outcome:
    """Predict the step just above a captured size from the law."""
    lo, above, _ = pair(known)
    return _next(known, lo, above, above, "it follows the requests that run")


def _next(known: Known, lo: int, above: int, follows: int, why: str) -> Outcome:
    before_s, after_s = known.step_s(lo), known.step_s(follows)
    if before_s is None or after_s is None:
        return Outcome(f"step at N={level_key(above)} is that of N={level_key(follows)}: {why}", None, why)
    return Outcome(f"step at N={level_key(above)} is {show(after_s, 's')} (N={level_key(lo)}: {show(before_s, 's')}): "
                   f"{why}", after_s / before_s)


def memory_frac(known: Known) -> float | None:
    """Return the share of memory for the server with a larger pool; None where the present one is not known."""
    name = "gpu_memory_utilization" if known.engine == "vllm" else "mem_fraction_static"
    now = positive(known.args.get(name))
    return None if now is None else round(now + POOL_STEP_FRAC, 4)


def no_larger_pool(known: Known) -> str:
    """Say why the pool cannot grow."""
    wanted = memory_frac(known)
    if wanted is None:
        return "the share of memory that the server takes is not known"
    most = MAX_MEMORY_FRAC - POOL_STEP_FRAC
    return "" if wanted <= MAX_MEMORY_FRAC else f"the server takes more than {most:.0%} of the memory already"


def even_req(known: Known) -> int:
    """Return the level at which every data-parallel rank has as many requests [req]."""
    dp = known.whole("dp", 1)
    return max(dp, known.test_req() // dp * dp)


def even(known: Known) -> tuple[Load, ...]:
    """Return one load that divides evenly over the ranks."""
    return (load(known, even_req(known)),)


def balance_ratio(known: Known) -> float:
    """Return mean over most requests of a rank; 0.8 where the imbalance is not known."""
    worst = known.number("max_over_mean_req")
    return 1 / worst if worst is not None and worst > 1 else 0.8  # below a fifth imbalance is not worth naming


def two_profiles(known: Known) -> tuple[Load, ...]:
    """Return loads at a level and its double (physics.md 4.2: N = 4 and 8)."""
    n = 4 if known.limit_req >= 8 else max(1, known.limit_req // 2)
    return tuple(_profiled(known, level) for level in (n, 2 * n))


def one_profile(known: Known) -> tuple[Load, ...]:
    """Return one load at the test level, long enough for a profile."""
    return (_profiled(known, known.test_req()),)


def _profiled(known: Known, n: int) -> Load:
    """Return a load that runs long enough to prove that it is steady and to profile it."""
    per_step_tok = max(1.0, known.number("accept_len") or 1.0)
    wanted = math.ceil(MIN_PROFILE_S / (known.step_s(n) or ASSUMED_STEP_S) * per_step_tok)
    limit = known.number("context_length_max")
    room = int(limit // 2) if limit else wanted
    return Load(n, prompt_tok(known), max(1, output_tok(known, n), min(wanted, room)), n)
