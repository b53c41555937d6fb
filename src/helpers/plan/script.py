"""An experiment as a bash script: server, load, telemetry, profile, clean-up, and the command that reads the result."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from helpers.display import show
from helpers.errors import RooflogError, printable
from helpers.plan import bash
from helpers.plan.changes import ENGINES, graph_words, server_words
from helpers.plan.choose import Plan
from helpers.plan.known import Known
from helpers.plan.sizes import graphs_on

PORTS = {"sglang": 30000, "vllm": 8000}
"""Default port of each engine's server (docs.sglang.io, docs.vllm.ai)."""

PROFILER_CONFIG_SINCE = (0, 13)
"""vLLM version that brought --profiler-config; earlier ones read VLLM_TORCH_PROFILER_DIR (docs.vllm.ai v0.32, Profiling
vLLM)."""

FACTS = ("hardware", "gpus", "model", "model_config", "tp", "dp", "pp", "ep", "dp_attention", "captured_batch_sizes",
         "max_running_requests", "num_draft_tokens", "speculative_algorithm", "power_limit_w", "interconnect",
         "kv_cache_dtype", "quantization", "weight_format", "engine_version", "decode_log_interval")
"""Facts that still hold for the new run, unless the experiment changes them; the new log adds its own."""


def script(plan: Plan, known: Mapping[str, Any]) -> str:
    """Write the bash script of an experiment.

    Parameters
    ----------
    plan : Plan
        From `choose`.
    known : mapping
        The same facts; ``args`` are the arguments of the server of the log, of which only those that shape a step are
        repeated (never a key or a host).

    Returns
    -------
    str
        Text of the script. It stops at the first error, keeps every file it wrote, and on interrupt or error stops the
        server and whatever else it started. Names from the log are quoted as data.

    Raises
    ------
    RooflogError
        The engine is neither SGLang nor vLLM.
    """
    facts = Known(known)
    engine = facts.engine
    if engine not in ENGINES:
        raise RooflogError(f"plan: expected engine sglang or vllm to write a script for, found {engine or 'none'!r}; "
                           f"name it with --context, or do by hand: {plan.what}")
    args = facts.args
    parts = [
        _head(plan, facts, engine, args),
        _settings(plan, facts, engine, args),
        _server(plan, facts, engine, args),
        bash.COMMON,
        bash.CLIENT[engine],
        bash.TELEMETRY,
        bash.NEXT_PHASE if len({load.phase for load in plan.loads}) > 1 else "",
        bash.PROFILE[engine] if "profile" in plan.extra else bash.RUN_LEVEL,
        bash.DEVICE[_device(plan)] if _device(plan) else "",
        _body(plan, facts, engine),
        _end(plan, known),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _device(plan: Plan) -> str:
    return next((name for name in ("lock_clock", "power_limit") if name in plan.extra), "")


def _comment(text: str) -> str:
    """Return a text of any origin as one line that a shell takes for a comment."""
    return "# " + " ".join(printable(text).split())


def _quoted(value: object) -> str:
    """Return a value as one word of the shell; control codes cannot come in by a log."""
    return shlex.quote("".join(c for c in str(value) if c.isprintable()))


def _head(plan: Plan, known: Known, engine: str, args: Mapping[str, Any]) -> str:
    """Say what the script does and every assumption, one a line."""
    lines = ["#!/usr/bin/env bash", _comment(f"rooflog plan: {plan.what}."), _comment(f"Why: {plan.why}."),
             _comment(f"Takes about {show(plan.duration_s, 'duration')}."), "#", "# Predicted outcomes:"]
    lines += [_comment(f"- {cause}: {outcome.text}") for cause, outcome in plan.predicts.items()]
    notes = [*plan.assumptions, *_assumptions(plan, known, engine, args)]
    return "\n".join([*lines, "#", "# Assumptions (the settings below can be edited, or set in the environment):",
                      *(_comment(f"- {note}") for note in notes)])


def _assumptions(plan: Plan, known: Known, engine: str, args: Mapping[str, Any]) -> list[str]:
    """Return what the script itself takes for granted."""
    tool = "python3 -m sglang" if engine == "sglang" else "vllm"
    notes = [f"{tool}, curl, nvidia-smi and rooflog are installed on this machine, its accelerators are free",
             "the server has one node and needs no API key",
             "requests are random tokens of fixed length, all sent at once: one wave a level"]
    if not known.text("model"):
        notes.append("the model is not known from the log: set MODEL")
    if not server_words(engine, args):
        notes.append("the server's other arguments are not known from the log: they are left at their defaults, add "
                     "them to SERVER")
    else:
        notes.append("the server's arguments are those of the log that shape a step; keys, hosts and paths of "
                     "certificates are left out")
    if engine == "vllm" and "profile" in plan.extra and not known.text("engine_version"):
        notes.append("vLLM is 0.13 or newer (older ones take VLLM_TORCH_PROFILER_DIR instead of --profiler-config)")
    if _device(plan):
        notes.append("sudo may set the clock or power limit without a password (SUDO); it is set back at the end")
    if "profile" in plan.extra:
        notes.append("a profile is taken only once rooflog watch has said that decode is steady")
    return notes


def _settings(plan: Plan, known: Known, engine: str, args: Mapping[str, Any]) -> str:
    """Return the strict mode and the variables that a reader may edit."""
    model = known.text("model_served") or known.text("model")
    named = args.get("served_model_name")
    named = named[0] if isinstance(named, list) and named else named
    lines = [
        "set -euo pipefail",
        "",
        "# Settings",
        f"DEFAULT_MODEL={_quoted(model)}",
        'MODEL="${MODEL:-$DEFAULT_MODEL}"  # name or path',
        f'PORT="${{PORT:-{PORTS[engine]}}}"',
        f'OUT="${{OUT:-rooflog-{plan.name}-$(date +%Y%m%dT%H%M%S)}}"  # folder for all files',
        'READY_TIMEOUT_S="${READY_TIMEOUT_S:-1800}"  # start-up of the server [s]',
        'STOP_TIMEOUT_S="${STOP_TIMEOUT_S:-30}"  # until a process that does not stop is killed [s]',
        'POLL_S="${POLL_S:-1}"  # between two looks at whether it is there [s]',
        'SAMPLE_MS="${SAMPLE_MS:-500}"  # between two telemetry samples [ms]',
    ]
    if engine == "vllm":
        lines.append(f"SERVED_MODEL={_quoted(named)}  # as clients call it" if named
                     else 'SERVED_MODEL="$MODEL"  # as clients call it')
    if "profile" in plan.extra:
        lines += ['STEADY_TIMEOUT_S="${STEADY_TIMEOUT_S:-600}"  # until decode must be steady [s]',
                  'PROFILE_STEPS="${PROFILE_STEPS:-12}"  # steps of a profile, SGLang',
                  'PROFILE_S="${PROFILE_S:-2}"  # length of a profile, vLLM [s]',
                  'TRACE_TIMEOUT_S="${TRACE_TIMEOUT_S:-300}"  # until a trace must be written [s]']
    if _device(plan):
        lines.append('if ((EUID == 0)); then SUDO="${SUDO-}"; else SUDO="${SUDO-sudo -n}"; fi  # how to become root')
    # a profile goes into an absolute folder: workers may run elsewhere
    return "\n".join([*lines, '[[ "$OUT" == /* ]] || OUT="$PWD/$OUT"'])


def _server(plan: Plan, known: Known, engine: str, args: Mapping[str, Any]) -> str:
    """Return the server's command line as a bash array: as in the log, then what the experiment changes."""
    start = 'python3 -m sglang.launch_server --model-path "$MODEL"' if engine == "sglang" else 'vllm serve "$MODEL"'
    added, removed = plan.changes.words(engine, args)
    base = [words for words in server_words(engine, args) if words[0] not in removed]
    present = {words[0] for words in base}
    tp_flag = "--tp-size" if engine == "sglang" else "--tensor-parallel-size"
    if tp_flag not in present and tp_flag not in removed and known.whole("tp", 1) > 1:
        base.append([tp_flag, str(known.whole("tp"))])
    if captured := graph_words(engine, args, known.sizes() if graphs_on(known) else [], plan.changes.settings):
        base.append(captured)
    lines = ["SERVER=(", f"  {start}", '  --host 127.0.0.1 --port "$PORT"',
             *("  " + " ".join(map(_quoted, words)) for words in base)]
    if added or removed:
        lines.append(_comment(f"changed by this experiment: {plan.changes.shown(engine, args)}").replace("#", "  #", 1))
    if added:
        lines.append("  " + " ".join(map(_quoted, added)))
    env = dict(plan.changes.env.get(engine, {}))
    if "profile" in plan.extra:
        if engine == "sglang":
            env["SGLANG_TORCH_PROFILER_DIR"] = "$OUT/profile"
        elif _has_profiler_config(known.text("engine_version")):
            lines.append('  --profiler-config "{\\"profiler\\": \\"torch\\", \\"torch_profiler_dir\\": '
                         '\\"$OUT/profile\\", \\"torch_profiler_record_shapes\\": true}"')
        else:
            env["VLLM_TORCH_PROFILER_DIR"] = "$OUT/profile"
    exports = [f'export {name}="{value}"' for name, value in env.items()]
    return "\n".join([*exports, *lines, ")"])


def _has_profiler_config(version: str) -> bool:
    """Tell whether a vLLM version has --profiler-config; the newest is assumed where it is unknown."""
    numbers = []
    for part in version.removeprefix("v").split(".")[:2]:
        if not part.isdigit():
            return True
        numbers.append(int(part))
    return not numbers or tuple(numbers) >= PROFILER_CONFIG_SINCE


def _body(plan: Plan, known: Known, engine: str) -> str:
    """Return the steps of the experiment."""
    tools = ["curl", "setsid", "python3" if engine == "sglang" else "vllm", "rooflog"]
    lines = ["# The experiment", f"need {' '.join(tools)}"]
    if plan.deciding == "profile":
        lines.append("need_watch")
    if plan.deciding == "telemetry" or _device(plan):
        lines.append("need nvidia-smi")
    if _device(plan):
        lines.append("need_root")
    lines += ["need_model_and_port", 'mkdir -p "$OUT"', "start_server", "start_telemetry"]
    phase = 1
    for number, load in enumerate(plan.loads, start=1):
        if load.phase != phase:
            phase = load.phase
            lines += ["next_phase", *(["change_device"] if _device(plan) else [])]
        run = "run_level_with_profile" if "profile" in plan.extra else "run_level"
        # seed: the same prompts twice would come from the prefix cache
        lines.append(f"{run} {load.running_req} {load.prompt_tok} {load.output_tok} {load.n_prompts} {number}")
    return "\n".join([*lines, "stop_all"])


def _end(plan: Plan, known: Mapping[str, Any]) -> str:
    """Return what reads the files: facts that the new log cannot know, and the command."""
    facts = {name: known[name] for name in FACTS if _is_plain(known.get(name))}
    facts.update({name: value for name, value in plan.changes.settings.items()
                  if name in ("context_length_max", "kv_cache_dtype", "quantization", "tp", "max_running_requests")})
    if "graph_req_max" in plan.changes.settings:
        facts.pop("captured_batch_sizes", None)
    text = json.dumps(facts, ensure_ascii=True, allow_nan=False)
    return bash.END.replace("@FACTS@", text)


def _is_plain(value: object) -> bool:
    """Tell whether a fact is known and can be written as JSON."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | bool) or (isinstance(value, int | float) and math.isfinite(value))
