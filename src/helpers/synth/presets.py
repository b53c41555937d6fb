"""Named servers and clients: the samples of data/samples, and one trap each for an analysis to fall into."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from helpers.synth.config import Client, ConfigError, Lengths, Noise, Server, Speculation, StepLaw
from helpers.synth.simulation import Simulation, simulate

TICK_NOISE = Noise(sigma_frac=0.015, ar1=0.6, block_steps=40)
"""Noise of field logs: constant relative scatter of the log lines, correlated from line to line."""

STEP_NOISE = Noise(sigma_frac=0.05, ar1=0.3, spike_prob=0.01, spike_factor=3.0)
"""Noise of single steps: skewed, so that their median lies below their mean."""


@dataclass(frozen=True)
class Preset:
    """A named simulation.

    Attributes
    ----------
    name, about : str
        What it is, and for a trap what a naive reading of its log concludes.
    server, client : Server, Client
        What is simulated.
    """

    name: str
    about: str
    server: Server
    client: Client

    def simulate(self, *, seed: int = 0) -> Simulation:
        """Run it."""
        return simulate(self.server, self.client, seed=seed)


_BUILDERS: dict[str, Callable[[], Preset]] = {}


def _preset(builder: Callable[[], tuple[Server, Client]]) -> Callable[[], tuple[Server, Client]]:
    """Register a builder under its name; its docstring says what it is about."""
    name = builder.__name__
    about = " ".join((builder.__doc__ or "").split())
    _BUILDERS[name] = lambda: Preset(name, about, *builder())
    return builder


def names() -> list[str]:
    """Return the names of all presets."""
    return list(_BUILDERS)


def get(name: str, **overrides: Any) -> Preset:
    """Return a preset, with fields of its server or client replaced.

    Parameters
    ----------
    name : str
        One of `names`.
    **overrides
        Fields of Server or Client; mappings and lists stand for nested parts and tuples, as in `Server.from_mapping`.

    Raises
    ------
    ConfigError
        No such preset or field.

    Examples
    --------
    >>> get("healthy_moe", version="0.5.4", levels_req=[1, 8]).client.levels_req
    (1, 8)
    """
    if name not in _BUILDERS:
        near = difflib.get_close_matches(name, _BUILDERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(f"no preset {name!r}{hint} There are {names()}")
    preset = _BUILDERS[name]()
    of_client = {f.name for f in fields(Client)}
    client = {key: value for key, value in overrides.items() if key in of_client}
    server = {key: value for key, value in overrides.items() if key not in of_client}
    return Preset(
        name, preset.about, Server.from_mapping({**preset.server.as_dict(), **_plain(server)}),
        Client.from_mapping({**preset.client.as_dict(), **_plain(client)}),
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value.as_dict() if hasattr(value, "as_dict") else value for key, value in values.items()}


@_preset
def field_case_a() -> tuple[Server, Client]:
    """Sweep of field case A, config 2: a slow MoE server whose client average lies below the steady rate.

    The law is the one fitted there; the three levels deviate from it as the field's did. The context limit is about a
    million tokens, the argument dump holds the words of every alarm, and the first lines of each level are depressed
    by the idle gap and the prefill of all prompts.
    """
    law = StepLaw(intercept_s=0.0519, slope_s_per_req=0.0303)
    measured_s = {1: 1 / 12.2, 16: 16 / 29.0, 64: 64 / 32.85}  # field: 12.2, ~29 and 32.85 tok/s
    server = Server(
        version="0.5.12", law=law, model="synthetic-moe-284b", tp_size=4, weight_bytes=40e9, startup_s=180.0,
        level_factors={n: step_s / law.step_s(n) for n, step_s in measured_s.items()},
        noise=Noise(sigma_frac=0.004, ar1=0.6, block_steps=20), decode_log_interval=20,
        prefill_fixed_s=0.35, prefill_s_per_tok=1.22e-3, chunked_prefill_tok=2048, page_size=256,
        kv_pool_tok=1_048_576, max_running_req=64, context_length_tok=1_048_576, access_lines=True,
        captured_batch_sizes=(1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64),
        extra_args={"crash_dump_folder": "/var/dumps/out of memory",
                    "watchdog_note": "restart on SIGQUIT or when the Scheduler hit an exception"},
    )
    client = Client(levels_req=(1, 16, 64), n_prompts=(8, 48, 96), prompt=Lengths(mean_tok=256),
                    output=Lengths(mean_tok=128), lead_s=20.0, gap_s=20.0)
    return server, client


@_preset
def healthy_moe() -> tuple[Server, Client]:
    """Show a healthy MoE server: concave at few requests, where each one touches new experts, then nearly flat."""
    server = Server(
        version="0.5.10", model="synthetic-moe-30b", tp_size=2, ep_size=2,
        law=StepLaw(kind="moe", intercept_s=0.0060, expert_s=0.0090, n_experts=128, n_experts_active=8,
                    slope_s_per_req=0.00005),
        level_deviation_frac=0.005, noise=TICK_NOISE, prefill_fixed_s=0.012, prefill_s_per_tok=1.5e-5,
        kv_pool_tok=2_000_000, access_lines=True, startup_s=90.0, weight_bytes=31e9,
    )
    client = Client(levels_req=(1, 2, 4, 8, 16, 32, 64, 128), prompts_per_req=3.0, prompt=Lengths(mean_tok=512),
                    output=Lengths(mean_tok=1024), gap_s=4.0)
    return server, client


@_preset
def dense_sweep() -> tuple[Server, Client]:
    """Show a clean linear sweep: nothing to fall into."""
    server = Server(law=StepLaw(intercept_s=0.020, slope_s_per_req=0.0004), noise=TICK_NOISE)
    return server, Client(levels_req=(1, 2, 4, 8, 16, 32, 64))


@_preset
def one_line_per_step() -> tuple[Server, Client]:
    """Trap: one line per step, each prefill printed after the decode line that it delayed.

    One request below each level the naive step is about twice the true one, because the batch falls by one exactly
    while the replacement is being prefilled.
    """
    server = Server(
        version="0.5.12", tp_size=8, decode_log_interval=1, law=StepLaw(intercept_s=0.012, slope_s_per_req=0.00022),
        prefill_fixed_s=0.022, prefill_s_per_tok=8e-6, noise=STEP_NOISE, level_deviation_frac=0.0,
    )
    client = Client(levels_req=(4, 16, 64), prompts_per_req=5.0, prompt=Lengths("uniform", 1024, 0.2),
                    output=Lengths("uniform", 400, 0.5))
    return server, client


@_preset
def below_cap() -> tuple[Server, Client]:
    """Trap: levels just below the cap exist only while prompts come in, and look several times too slow.

    The client holds as many requests as the server admits and replies late, so that the batch runs a few steps below
    its cap before each prefill of long prompts.
    """
    server = Server(
        version="0.5.23", decode_log_interval=1, max_running_req=32,
        law=StepLaw(intercept_s=0.015, slope_s_per_req=0.0003), prefill_fixed_s=0.020, prefill_s_per_tok=2e-5,
        noise=STEP_NOISE,
    )
    client = Client(levels_req=(2, 8, 32), prompts_per_req=6.0, prompt=Lengths("uniform", 4096, 0.2),
                    output=Lengths("uniform", 300, 0.6), reply_delay_s=0.010)
    return server, client


@_preset
def identical_warmup() -> tuple[Server, Client]:
    """Trap: a warm-up of identical prompts at a measured level, cached and faster because it touches few experts."""
    server = Server(law=StepLaw(kind="moe", intercept_s=0.008, expert_s=0.012, slope_s_per_req=0.0002),
                    identical_step_factor=0.6, noise=TICK_NOISE)
    client = Client(levels_req=(1, 4, 8, 16, 32), warmup_req=16, warmup_prompts=48, warmup_identical=True)
    return server, client


@_preset
def lockstep_ranks() -> tuple[Server, Client]:
    """Trap: four DP ranks in lockstep with unequal load; the step follows the largest, padded to a captured size."""
    server = Server(
        version="0.5.10", tp_size=4, dp_size=4, ep_size=4, model="synthetic-moe-dp",
        law=StepLaw(intercept_s=0.018, slope_s_per_req=0.0006), pad_to_captured=True,
        captured_batch_sizes=(1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64), dp_weights=(0.4, 0.3, 0.2, 0.1),
        noise=TICK_NOISE, prefill_fixed_s=0.030, prefill_s_per_tok=2e-5,
    )
    client = Client(levels_req=(10, 20, 40, 80, 120), prompts_per_req=4.0, output=Lengths("uniform", 512, 0.3))
    return server, client


@_preset
def micro_batches() -> tuple[Server, Client]:
    """Trap: two pipeline stages print copies of one line; #running-req is one micro-batch, the rate counts both."""
    server = Server(
        version="0.5.6", tp_size=4, pp_size=2, law=StepLaw(intercept_s=0.030, slope_s_per_req=0.0008),
        micro_batch_skew_req=4, noise=TICK_NOISE,
    )
    return server, Client(levels_req=(8, 16, 32, 64, 128), output=Lengths(mean_tok=640))


@_preset
def idle_gaps() -> tuple[Server, Client]:
    """Trap: long idle gaps between short levels; the 40 steps of a line straddle them, and its rate is near zero."""
    server = Server(law=StepLaw(intercept_s=0.025, slope_s_per_req=0.0005), noise=TICK_NOISE)
    client = Client(levels_req=(1, 2, 4, 8, 16, 32, 1, 2, 4, 8, 16, 32), prompts_per_req=1.0,
                    output=Lengths(mean_tok=300), gap_s=45.0)
    return server, client


@_preset
def quantised_windows() -> tuple[Server, Client]:
    """Trap: vLLM prints every 10 s with 0.1 tok/s; at one slow request the rate takes only a few values."""
    server = Server(
        engine="vllm", version="0.20.2", law=StepLaw(intercept_s=0.45, slope_s_per_req=0.012),
        noise=Noise(sigma_frac=0.02, ar1=0.5), prefill_fixed_s=0.2, prefill_s_per_tok=5e-4,
    )
    client = Client(levels_req=(1, 2, 4, 8, 16), prompts_per_req=1.0, output=Lengths(mean_tok=600), gap_s=30.0)
    return server, client


@_preset
def vllm_sweep() -> tuple[Server, Client]:
    """Show a vLLM sweep with one-second windows and long outputs: many windows without any prompt."""
    server = Server(engine="vllm", version="0.33.0", stat_interval_s=1.0, noise=Noise(sigma_frac=0.02, ar1=0.5),
                    law=StepLaw(intercept_s=0.020, slope_s_per_req=0.0008))
    return server, Client(levels_req=(1, 2, 4, 8, 16, 32, 64), output=Lengths(mean_tok=512))


@_preset
def vllm_closed_loop() -> tuple[Server, Client]:
    """Trap: a saturated closed loop with short outputs; every 10 s window holds prompts, hardly one is clean."""
    server = Server(
        engine="vllm", version="0.20.2", law=StepLaw(intercept_s=0.008, slope_s_per_req=0.00012),
        prefill_fixed_s=0.002, prefill_s_per_tok=1.2e-5, noise=STEP_NOISE,
    )
    client = Client(levels_req=(4, 16, 64), n_prompts=(300, 1000, 3000), prompt=Lengths("uniform", 1024, 0.2),
                    output=Lengths("uniform", 256, 0.5))
    return server, client


@_preset
def speculation() -> tuple[Server, Client]:
    """Show speculative decoding: the rate holds the accept length, the law is that of a round."""
    server = Server(law=StepLaw(intercept_s=0.030, slope_s_per_req=0.0010),
                    speculation=Speculation(num_draft_tokens=4, accept_len=2.9), noise=TICK_NOISE, tp_size=2)
    return server, Client(levels_req=(1, 2, 4, 8, 16), output=Lengths(mean_tok=1500))


@_preset
def graph_limit() -> tuple[Server, Client]:
    """Trap: batches above the largest captured size run without a graph and slower."""
    server = Server(law=StepLaw(intercept_s=0.015, slope_s_per_req=0.0004), eager_factor=1.5, noise=TICK_NOISE,
                    captured_batch_sizes=(1, 2, 4, 8, 16, 24, 32))
    return server, Client(levels_req=(1, 4, 16, 32, 48, 64))


@_preset
def pool_full() -> tuple[Server, Client]:
    """Trap: the KV pool fills up, requests are retracted and computed again."""
    server = Server(law=StepLaw(intercept_s=0.020, slope_s_per_req=0.0004), kv_pool_tok=20_000, kv_reserve_frac=0.0,
                    noise=TICK_NOISE)
    return server, Client(levels_req=(4, 16, 32), output=Lengths(mean_tok=800))


@_preset
def restarts() -> tuple[Server, Client]:
    """Trap: three lives of the server in one file; counters, stamps and first lines start anew."""
    server = Server(law=StepLaw(intercept_s=0.020, slope_s_per_req=0.0005), noise=TICK_NOISE)
    return server, Client(levels_req=(1, 4, 16, 4, 16, 64), restart_before=(2, 4))


@_preset
def noisy_neighbour() -> tuple[Server, Client]:
    """Trap: other programs slow the machine tenfold for some seconds in two of the levels."""
    server = Server(law=StepLaw(intercept_s=0.020, slope_s_per_req=0.0005), noise=TICK_NOISE,
                    neighbour_bursts=((110.0, 6.0, 10.0), (190.0, 8.0, 10.0)))
    return server, Client(levels_req=(1, 2, 4, 8, 16, 32))
