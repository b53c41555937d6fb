"""Simulated servers whose limit is known: one scenario per cause and seed, with everything a user might hand in.

The healthy step is our physics' (`causes_step`); a cause changes it, the load or the limits the way its mechanism
does. `causes_recipes` says how, cause by cause; here the parts are put together.

    scenario("max_context_work", 3).write(folder)  -> {"log": path, "telemetry": path, ...}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import causes_files as files
import causes_step as physics
import numpy as np
from causes_step import Planted, Setup, Tuning

from helpers.physics.steps.demand import MATRICES
from helpers.synth import Client, Lengths, Noise, Server, Simulation, simulate
from helpers.synth.trace import DECODE, PREFILL

CAUSES = (
    "healthy", "weight_bandwidth", "kv_bandwidth", "state_bandwidth", "tensor_compute", "latency_or_occupancy",
    "max_context_work", "serialised_requests", "communication", "host_or_scheduler", "graph_fallback", "graph_padding",
    "prefill_interference", "kv_capacity", "admission_limit", "rank_imbalance", "power_or_thermal", "low_acceptance",
    "context_growth", "measurement_artifact", "unknown",
)
"""The vocabulary of design.md section 6."""

SGLANG_VERSIONS = ("0.4.9", "0.5.4", "0.5.6", "0.5.9", "0.5.10", "0.5.12", "0.5.14", "0.5.18", "0.5.23")
VLLM_VERSIONS = ("0.9.2", "0.11.0", "0.14.1", "0.20.2", "0.26.0", "0.33.0")
OCCUPANCY_SINCE = (0, 5, 12)
"""SGLang version whose decode line can end with the share of time in which forward kernels ran."""

LOG_CHANNELS = ("occupancy", "crash")
"""Channels inside the log: the occupancy on decode lines, the lines of an out-of-memory error."""

FILE_NAMES = {"client": "client.json", "baseline_log": "baseline.log", "baseline_telemetry": "baseline_gpu.csv"}


@dataclass(frozen=True)
class Scenario:
    """A simulated server with a known limit, and what its user hands in.

    Attributes
    ----------
    cause, seed : str, int
        What limits it.
    also_right : tuple of str
        Causes that are honestly the same thing here.
    log_text : str
    facts : mapping
        For --context.
    files : mapping of str to str
        Parameter (telemetry, profile, client, baseline_log, baseline_telemetry) -> text.
    truth : mapping
        ``step_s`` and ``healthy_s`` (level -> s, as planted), ``clean_levels`` (levels at which the log should show
        the planted step), ``look_alike`` (causes with the same log, told apart by side files only), and more.
    """

    cause: str
    seed: int
    also_right: tuple[str, ...]
    log_text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    truth: Mapping[str, Any] = field(default_factory=dict)

    @property
    def channels(self) -> tuple[str, ...]:
        """What can be taken away with `without`; a baseline is one channel."""
        found = [name for name in self.files if not name.startswith("baseline")]
        found += ["baseline"] if "baseline_log" in self.files else []
        found += ["facts"] if self.facts else []
        found += ["occupancy"] if "fwd occupancy" in self.log_text else []
        return tuple([*found, *(["crash"] if "Tried to allocate" in self.log_text else [])])

    def without(self, channel: str) -> Scenario:
        """Return the same scenario without one channel."""
        if channel not in self.channels:
            raise KeyError(f"{self.cause} {self.seed}: no channel {channel!r}; it has {self.channels}")
        if channel == "facts":
            return replace(self, facts={})
        if channel == "occupancy":
            return replace(self, log_text=re.sub(r", fwd occupancy: [^\n]*", "", self.log_text))
        if channel == "crash":
            kept = [line for line in self.log_text.splitlines() if not _is_of_crash(line)]
            return replace(self, log_text="\n".join(kept) + "\n")
        return replace(self, files={name: text for name, text in self.files.items() if not name.startswith(channel)})

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Write the log and the side files; return parameter -> path, the log under ``log``."""
        paths = {"log": Path(folder, "server.log")}
        paths["log"].write_text(self.log_text, encoding="utf-8")
        for name, text in self.files.items():
            is_json, is_scrape = text.startswith("{"), text.startswith("# HELP")
            default = f"{name}.{'json' if is_json else 'prom' if is_scrape else 'csv'}"
            paths[name] = Path(folder, FILE_NAMES.get(name, default))
            paths[name].write_text(text, encoding="utf-8")
        return paths


def _is_of_crash(line: str) -> bool:
    return any(word in line for word in (
        "hit an exception", "OutOfMemoryError", "SIGQUIT", "encountered a fatal error", 'File "scheduler.py"',
        "scheduler.event_loop()"))


Extra = Callable[[np.ndarray, Planted], np.ndarray]


@dataclass
class Build:
    """A scenario under construction: a recipe changes what is special, `finish` makes the rest.

    ``extra_s`` adds time to the healthy step, ``memory_frac`` of it busy with memory; ``forward_s`` is the part of a
    step in which the device works (all of it by default).
    """

    cause: str
    seed: int
    rng: np.random.Generator
    setup: Setup
    engine: str
    version: str
    levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    prompt_tok: int = 256
    output_tok: int = 0  # 0 = long enough for clean intervals
    waves: float = 0.0
    spread_frac: float = 0.1
    tuning: Tuning = field(default_factory=Tuning)
    extra_s: Extra | None = None
    memory_frac: float = 0.0
    forward_s: Extra | None = None
    kv_factor: float = 1.0
    scale: float = 1.0  # of the whole step
    server: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    captured: tuple[int, ...] = (1, 2, 4, *range(8, 129, 8), *range(144, 513, 16))
    pads: bool = False
    board: dict[str, Any] = field(default_factory=dict)
    kernels: Callable[[int, Planted], list[files.Kernel]] | None = None
    profile_req: tuple[int, ...] = ()
    trace: bool | None = None  # a torch trace instead of nsys sums; None = by chance
    facts: dict[str, Any] = field(default_factory=dict)
    also_right: tuple[str, ...] = ()
    look_alike: tuple[str, ...] = ()
    clean: bool = True
    p_channel: dict[str, float] = field(default_factory=dict)
    has_baseline: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    edit_log: Callable[[str, Simulation], str] | None = None

    def chance(self, probability: float) -> bool:
        """Draw yes or no."""
        return bool(self.rng.random() < probability)

    def draw(self, low: float, high: float) -> float:
        """Draw a number."""
        return float(self.rng.uniform(low, high))

    def log_draw(self, low: float, high: float) -> float:
        """Draw a number whose logarithm is uniform."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def pick(self, *options: Any) -> Any:
        """Draw one of several."""
        return options[int(self.rng.integers(len(options)))]

    @property
    def context_tok(self) -> float:
        """Mean context of a running request [tok]."""
        return self.prompt_tok + self.output_tok / 2

    def healthy(self, running_req: float, context_tok: float | None = None) -> float:
        """Return the healthy step [s]."""
        context = self.context_tok if context_tok is None else context_tok
        return float(physics.total(physics.parts(self.setup, self.tuning, np.array([running_req]), context))[0])

    def fit_load(self) -> None:
        """Choose what is left open, for clean intervals at every level: SGLang prints by steps, vLLM by time."""
        pool = int(self.server.get("kv_pool_tok", physics.pool_tok(self.setup)))
        if not self.output_tok:
            enough = int(13 / self.healthy(self.levels[0], self.prompt_tok)) if self.engine == "vllm" else 0
            self.output_tok = int(np.clip(enough, self.rng.integers(320, 440), 1500))
        per_req = int(1.15 * (self.prompt_tok + self.output_tok))
        if "kv_pool_tok" not in self.server:
            self.levels = tuple(n for n in self.levels if n / self.setup.dp * per_req <= pool) or self.levels[:1]
            self.server["kv_pool_tok"] = pool
        self.waves = self.waves or (2.0 if self.engine == "vllm" else 3.0)

    def plant(self, scale: float | None = None) -> Planted:
        """Return the planted law; the added time may depend on the healthy step."""
        n_max = max(self.levels) + 8
        if self.pads:  # a padded step is that of a larger batch
            n_max = min((size for size in self.captured if size >= n_max), default=n_max)
        n = np.arange(1, n_max + 1, dtype="float64")
        at = (self.setup, self.tuning, n_max, self.context_tok)
        captured = tuple(size for size in self.captured if size <= n_max) if self.pads else ()
        plain = physics.plant(*at, np.zeros(n_max), kv_factor=self.kv_factor, captured=captured)
        added = np.zeros(n_max) if self.extra_s is None else self.extra_s(n, plain)
        added = added + ((self.scale if scale is None else scale) - 1) * (plain.step_s + added)
        return physics.plant(*at, added, kv_factor=self.kv_factor, captured=captured) if added.any() else plain

    def simulate(self, planted: Planted, seed: int, **changes: Any) -> Simulation:
        """Run the server."""
        steps_s = planted.step_s[np.minimum(np.array(self.levels) // self.setup.dp, len(planted.step_s)) - 1]
        wave_s = float(steps_s.min()) * self.output_tok
        period_s = max((p for p in (1.0, 2.0, 5.0, 10.0) if 6 * p <= wave_s), default=1.0)
        per_tok_s = physics.prefill_s_per_tok(self.setup)
        described: dict[str, Any] = {
            "engine": self.engine, "version": self.version, "law": planted.law, "level_factors": planted.factors,
            "model": self.setup.model, "tp_size": self.setup.tp, "dp_size": self.setup.dp,
            "ep_size": self.setup.tp if self.setup.dp > 1 else 1, "stat_interval_s": period_s,
            "decode_log_interval": self.pick(40, 40, 20, 10), "captured_batch_sizes": self.captured,
            "pad_to_captured": self.pads, "max_running_req": max(256, max(self.levels)),
            "weight_bytes": physics.weight_bytes(self.setup), "startup_s": 40.0, "prefill_s_per_tok": per_tok_s,
            "prefill_fixed_s": max(0.6 * self.healthy(1), 0.005), "has_ms_stamps": self.chance(0.3),
            "noise": Noise(sigma_frac=self.draw(0.004, 0.015), ar1=0.5, block_steps=self.pick(1, 20, 40),
                           spike_prob=self.pick(0.0, 0.002)),
            "start": f"2026-11-{1 + self.seed % 28:02d} 09:{self.seed % 60:02d}:00", **self.server, **changes,
        }
        n_waves = self.waves
        load = {"levels_req": self.levels, "prompts_per_req": n_waves,
                "prompt": Lengths("uniform", self.prompt_tok, 0.1),
                "output": Lengths("uniform", self.output_tok, self.spread_frac if n_waves > 1 else 0.0),
                "gap_s": 5.0, "lead_s": 10.0, "tail_s": 5.0, **self.client}
        return simulate(Server(**described), Client(**load), seed=seed)

    def finish(self) -> Scenario:
        """Put everything together."""
        self.fit_load()
        planted = self.plant()
        run = self.simulate(planted, self.seed)
        text = self._with_occupancy(run.text, planted, run)
        if self.edit_log is not None:
            text = self.edit_log(text, run)
        side: dict[str, str] = {}
        board = self._board(planted)
        if self.chance(self.p_channel.get("telemetry", 0.7)):
            side["telemetry"] = self._telemetry(run, board)
        if self.chance(self.p_channel.get("profile", 0.5)):
            side["profile"] = self._profile(planted)
        if self.chance(self.p_channel.get("client", 0.5)) and (result := files.client_json(run)).text:
            side["client"] = result.text
        if self.has_baseline:
            before = self.simulate(self.plant(scale=1.0), self.seed + 1_000_000, neighbour_bursts=(),
                                   start="2026-10-20 10:00:00")
            side["baseline_log"] = before.text
            free = replace(board, capped_from_s=np.inf, limit_w=float(self._hardware.tdp_w or 400))
            side["baseline_telemetry"] = files.smi_csv(before, free, self.setup.n_gpus, self.rng, 2.0)
        is_prompts = self.cause != "prefill_interference" and prompt_share(run) > PROMPTS_MATTER_FRAC
        prompts = ("prefill_interference",) if is_prompts else ()
        return Scenario(self.cause, self.seed, (*self.also_right, *prompts), text, self._facts(run), side,
                        self._truth(planted, run))

    @property
    def _hardware(self) -> Any:
        return physics.resolve(self.setup).hardware

    def _share(self, time_s: np.ndarray, planted: Planted) -> Callable[[np.ndarray], np.ndarray]:
        """Return a share of the step as a function of running requests."""
        frac = np.clip(time_s / planted.step_s, 0, 1)
        return lambda n: frac[np.minimum(np.asarray(n, dtype=int), len(frac)) - 1]

    def _forward(self, planted: Planted) -> np.ndarray:
        n = np.arange(1, len(planted.step_s) + 1, dtype="float64")
        return planted.step_s if self.forward_s is None else self.forward_s(n, planted)

    def _board(self, planted: Planted) -> files.Board:
        """Describe the board so that what it shows follows from the planted step."""
        n = np.arange(1, len(planted.step_s) + 1, dtype="float64")
        memory = physics.memory_s(self.setup, planted.parts)
        memory = memory + self.memory_frac * np.maximum(planted.step_s - planted.healthy_s, 0)
        hardware = self._hardware
        values: dict[str, Any] = {
            "limit_w": float(hardware.tdp_w or 400), "boost_mhz": int((hardware.boost_hz or 1.8e9) / 1e6),
            "mem_mhz": 2619, "name": f"NVIDIA {hardware.name}",
            "busy": self._share(self._forward(planted), planted), "mem": self._share(memory, planted),
            "tensor": self._share(physics.tensor_s(self.setup, n, self.context_tok), planted),
        }
        return files.Board(**{**values, **self.board})

    def _telemetry(self, run: Simulation, board: files.Board) -> str:
        if self.chance(self.p_channel.get("dcgm", 0.25)):
            self.notes["zone_s"] = zone_s = self.pick(0.0, 3600.0, -25200.0)
            return files.dcgm_pages(run, board, self.setup.n_gpus, self.rng, zone_s)
        return files.smi_csv(run, board, self.setup.n_gpus, self.rng, self.pick(1.0, 1.0, 2.0))

    def _profile(self, planted: Planted) -> str:
        levels = self.profile_req or (self.levels[-1],)
        forward = self._forward(planted)
        steps = []
        for level in levels:
            kernels = self.default_kernels(level, planted) if self.kernels is None else self.kernels(level, planted)
            spent_s = sum(k.step_s for k in kernels)
            gap_s = max(planted.step_s[level - 1] - max(forward[level - 1], spent_s), 0.0)
            if self.forward_s is None:
                gap_s = max(planted.step_s[level - 1] - spent_s, 0.0)
            steps.append(files.ProfiledStep(level, tuple(kernels), gap_s))
        self.notes["profile_req"] = list(levels)
        self.notes["profile_gap_frac"] = [float(s.gap_s / (s.gap_s + sum(k.step_s for k in s.kernels)))
                                          for s in steps]
        is_trace = self.chance(0.4) if self.trace is None else self.trace
        if not is_trace and len(steps) == 1:
            return files.nsys_csv(steps[0], 60, self.rng)
        has_graph = self.server.get("cuda_graph", True) and max(levels) <= max(self.captured)
        return files.torch_trace([s for s in steps for _ in range(3)], int(self._hardware.sm_count or 132),
                                 self._hardware.name, has_graph=has_graph)

    def default_kernels(self, level: int, planted: Planted) -> list[files.Kernel]:
        """Return the kernels of the healthy step at a level; a slow clock stretches all, a slow attention its own."""
        found = {name: self.scale * float(time_s[level - 1]) for name, time_s in planted.parts.items()}
        if self.kv_factor > 1:
            found["kv"] = found.get("kv", 0.0) + float(planted.step_s[level - 1] - planted.healthy_s[level - 1])
        return files.kernels_of(found, physics.n_layers(self.setup))

    def _with_occupancy(self, text: str, planted: Planted, run: Simulation) -> str:
        """Add the occupancy to SGLang's decode lines, where the version has it and the seed wants it."""
        can = self.engine == "sglang" and run.server.version_tuple >= OCCUPANCY_SINCE
        if not can or not self.chance(self.p_channel.get("occupancy", 0.4)):
            return text
        share = self._share(0.985 * self._forward(planted), planted)
        both = ", fwd+idle occupancy: 99.60%" if run.server.version_tuple >= (0, 5, 23) else ""
        is_first = True

        def line(match: re.Match[str]) -> str:
            nonlocal is_first
            frac = 100 * float(share(np.array([int(match[1])]))[0]) + self.rng.normal(0, 0.3)
            value, is_first = "nan" if is_first else f"{min(frac, 100):.2f}", False
            return f"{match[0]}, fwd occupancy: {value}%{both}"

        return re.sub(r"Decode batch.*?#running-req: (\d+).*", line, text)

    def _facts(self, run: Simulation) -> dict[str, Any]:
        """Return what the user says: everything, the bare machine, or (1 in 12) nothing."""
        machine = {"hardware": self._hardware.name, "gpus": self.setup.n_gpus, "model": self.setup.model,
                   "parallel": {"tp": self.setup.tp, "dp": self.setup.dp}}
        if self.setup.dp > 1:
            machine |= {"dp_attention": True, "parallel": {"tp": self.setup.tp, "dp": self.setup.dp,
                                                           "ep": self.setup.tp}}
        load = {"context_length_max": run.server.context_length_tok, "prompt_tokens": self.prompt_tok,
                "output_tokens": self.output_tok, "max_running_requests": run.server.max_running_req,
                "client_concurrency": max(self.levels)}
        if self.engine == "sglang":
            load["decode_log_interval"] = run.server.decode_log_interval
        kind = self.rng.random()
        if kind < 1 / 12 and "facts" not in self.p_channel:
            return {}
        return {**machine, **(load if kind > 0.35 else {}), **self.facts}

    def _truth(self, planted: Planted, run: Simulation) -> dict[str, Any]:
        levels = sorted({n // self.setup.dp for n in self.levels} - {0})
        return {
            "engine": self.engine, "version": self.version, "model": self.setup.model,
            "hardware": self.setup.hardware, "tp": self.setup.tp, "dp": self.setup.dp, "prompt_tok": self.prompt_tok,
            "output_tok": self.output_tok, "look_alike": self.look_alike,
            "step_s": {n: float(planted.step_s[n - 1]) for n in levels},
            "healthy_s": {n: float(planted.healthy_s[n - 1]) for n in levels},
            "clean_levels": [row["running_req"] for row in run.truth["levels"]
                             if row["n_steps"] >= 200 and row["running_req"] in self.levels] if self.clean else [],
            "simulated_s": {row["running_req"]: float(row["step_s"]) for row in run.truth["levels"]
                            if row["running_req"] in self.levels},
            "duration_s": float(run.trace.end_s), **self.notes,
        }


PROMPTS_MATTER_FRAC = 0.4
"""Share of the forwards' time that prompts take from which they limit decode too, whatever else does."""


def prompt_share(run: Simulation) -> float:
    """Return the share of the forwards' time that went into prompts, as it was simulated."""
    first = [forward for forward in run.trace.forwards if forward.group == 0]
    all_s = sum(forward.end_s - forward.start_s for forward in first)
    prompts_s = sum(forward.end_s - forward.start_s - (forward.expected_s if forward.kind != PREFILL else 0.0)
                    for forward in first if forward.kind != DECODE)
    return prompts_s / all_s if all_s > 0 else 0.0


def honest_rivals(build: Build) -> tuple[str, ...]:
    """Return what a careful engineer may also call a server without a fault: what dominates at one of its levels."""
    levels = np.array(sorted({max(n // build.setup.dp, 1) for n in build.levels}), dtype="float64")
    found = physics.parts(build.setup, build.tuning, levels, build.context_tok)
    zero = np.zeros(len(levels))
    groups = {
        "weight_bandwidth": np.sum([found.get(name, zero) for name in MATRICES], axis=0),
        "kv_bandwidth": found.get("kv", zero) + found.get("index", zero),
        "state_bandwidth": found.get("state", zero), "tensor_compute": found.get("compute", zero),
    }
    ranked = np.argmax(np.stack(list(groups.values())), axis=0)
    rivals = {list(groups)[i] for i in ranked}
    all_s = physics.total(found)
    rivals |= {"latency_or_occupancy"} if (found["kernels"] / all_s).max() > 0.35 else set()
    rivals |= {"communication"} if (found.get("all_reduce", zero) / all_s).max() > 0.3 else set()
    return tuple(sorted({"healthy", *rivals} - {build.cause}))


def scenario(cause: str, seed: int) -> Scenario:
    """Return the scenario of a cause; the seed draws model, hardware, engine, load, noise and what is handed in.

    Parameters
    ----------
    cause : str
        One of `CAUSES`.
    seed : int
        0 or more; same seed, same bytes.

    Returns
    -------
    Scenario
    """
    from causes_recipes import RECIPES  # recipes import the builder

    rng = np.random.default_rng([CAUSES.index(cause), seed])
    engine = "sglang" if rng.random() < 0.6 else "vllm"
    versions = SGLANG_VERSIONS if engine == "sglang" else VLLM_VERSIONS
    build = Build(cause, seed, rng, Setup("Meta-Llama-3.1-8B", "H100 SXM 80GB"), engine,
                  str(versions[int(rng.integers(len(versions)))]))
    build.tuning = Tuning(build.draw(0.9, 1.15), build.draw(0.4, 0.8), build.draw(0.15, 0.5))
    return RECIPES[cause](build)


def context_json(found: Scenario) -> str:
    """Return the facts as --context takes them."""
    return json.dumps(dict(found.facts))
