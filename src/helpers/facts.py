"""What is known about a deployment: what its log says, overlaid with what the user says.

The user wins; where both speak and differ, the difference is said. Facts that cannot be used are listed with
the reason, never fatal; only a FACTS argument that cannot be read at all is an error.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from helpers.schema import LogFormatError

KNOWN: dict[str, tuple[str, str]] = {
    "hardware": ("text", "catalogue name of the accelerator"),
    "gpus": ("whole", "accelerators of the deployment"),
    "model": ("text", "name of the model"),
    "model_config": ("any", "the model's config.json: a path or an object"),
    "tp": ("degree", "tensor-parallel degree"),
    "dp": ("degree", "data-parallel degree"),
    "pp": ("degree", "pipeline stages"),
    "ep": ("degree", "expert-parallel degree"),
    "nnodes": ("whole", "machines of one server"),
    "node_rank": ("whole", "which of them wrote the log"),
    "disaggregation_mode": ("text", "prefill or decode worker"),
    "dp_attention": ("flag", "data-parallel ranks share one step"),
    "context_length_max": ("whole", "configured context limit [tok]"),
    "captured_batch_sizes": ("wholes", "batch sizes with a captured graph [req]"),
    "cuda_graph_enabled": ("flag", "decode replays captured graphs"),
    "max_running_requests": ("whole", "admission limit [req]"),
    "slots": ("whole", "concurrent sequences the server can hold [req]"),
    "num_draft_tokens": ("whole", "draft tokens per round as the engine counts: SGLang with the root [tok]"),
    "num_draft_steps": ("whole", "forwards of the draft layers per round"),
    "n_experts": ("whole", "routed experts of the model"),
    "n_experts_active": ("whole", "routed experts that one token chooses"),
    "speculative_algorithm": ("text", "speculation method"),
    "power_limit_w": ("number", "board power limit [W]"),
    "context_tok": ("positive", "mean context of a running request [tok]"),
    "prompt_tokens": ("number", "mean prompt length [tok]"),
    "output_tokens": ("number", "mean output length [tok]"),
    "client_concurrency": ("whole", "requests the client keeps open [req]"),
    "client_output_tok_per_s": ("number", "output rate the client reported over its whole run [tok/s]"),
    "decode_log_interval": ("whole", "decode steps between two log lines"),
    "page_size": ("whole", "KV tokens per page [tok]"),
    "kv_block_size": ("whole", "KV tokens per block [tok]"),
    "kv_pool_tokens": ("whole", "KV slots of the server [tok]"),
    "chunked_prefill_size": ("whole", "prompt tokens per prefill forward [tok]"),
    "achievable_frac": ("positive", "share of the peak bandwidth that kernels reach [1]"),
    "what_if": ("any", "changes whose effect is computed: weights, kv, hardware, tp, context_tok, accept_len, "
                       "running_req, step_budget_s, each a list"),
    "n_threads": ("whole", "threads of a server on processors"),
    "interconnect": ("text", "link between accelerators"),
    "no_speculation_total_tok_per_s": ("positive", "output rate of the same server and load without drafts [tok/s]"),
    "same_build_elsewhere_tok_per_s": ("positive", "rate of the same build and load on another machine [tok/s]"),
    "disable_overlap_schedule": ("flag", "the next step is prepared only after the last one is read"),
    "dtype": ("text", "compute type"),
    "kv_cache_dtype": ("text", "type of the KV cache"),
    "quantization": ("text", "quantisation as the server's argument names it"),
    "weight_format": ("text", "format of the projections, whatever the checkpoint says: fp8, nvfp4, ..."),
    "engine": ("text", "engine, as rooflog engines names it"),
    "engine_version": ("text", "version of the server"),
    "n_params": ("positive", "parameters of the model"),
    "n_active_params": ("positive", "parameters that one token uses, embedding left out"),
    "weight_bytes_per_param": ("positive", "bytes per parameter, where n_params is given [bytes]"),
    "expert_bytes": ("number", "bytes of all routed experts, whole model, beside weight_bytes_per_step [bytes]"),
    "weight_bytes_per_step": ("number", "weight bytes the whole deployment reads per step [bytes]"),
    "kv_bytes_per_tok": ("number", "KV bytes of one token of context, whole model [bytes/tok]"),
    "kv_is_replicated": ("flag", "every tensor-parallel rank holds all keys and values"),
    "state_bytes_per_req": ("number", "state bytes of one request read per step, whole model [bytes/req]"),
}
"""Name -> (kind, meaning with unit) of every fact; `parallel: {tp, dp, pp, ep}` is spread into tp, dp, pp, ep."""

PARALLEL = ("tp", "dp", "pp", "ep")


@dataclass(frozen=True)
class Facts:
    """Facts about one deployment, each with its source.

    Attributes
    ----------
    values : mapping
        Fact -> value, units as in `KNOWN`.
    source : mapping
        Fact -> "log" or "user".
    contradictions : tuple of str
        A sentence for each fact on which log and user differ.
    unused : mapping
        Key of the user's that cannot be used -> why.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    unused: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a fact or the default."""
        return self.values.get(name, default)


def read_context(context: str | Path | Mapping[str, Any] | None, option: str = "--context") -> dict[str, Any]:
    """Read the user's facts.

    Parameters
    ----------
    context : str, Path, mapping or None
        The text of a JSON object, the path of a YAML or JSON file, the object itself, or nothing.
    option : str
        Name for messages.

    Returns
    -------
    dict
        The facts as given, not yet checked.

    Raises
    ------
    LogFormatError
        The text is no JSON, the file cannot be read, or it holds no object.
    """
    if context is None or context == "":
        return {}
    if isinstance(context, Mapping):
        return dict(context)
    text, where = str(context), option
    if text.lstrip().startswith(("{", "[")):
        found = _parse(json.loads, text, where)
    else:
        where = f"{option} {text}"
        try:
            content = Path(text).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a text file"
            raise LogFormatError(
                f"{where}: expected a JSON object or a readable YAML/JSON file, found: {reason}; "
                'give for example \'{"hardware": "h100-sxm"}\''
            ) from error
        found = _parse(json.loads if text.lower().endswith(".json") else yaml.safe_load, content, where)
    if not isinstance(found, dict):
        raise LogFormatError(f"{where}: expected an object of facts (name: value), found {type(found).__name__}")
    return {str(key): value for key, value in found.items()}


def _parse(parser: Any, text: str, where: str) -> Any:
    """Parse, with the position of the first mistake in the message."""
    try:
        return parser(text)
    except json.JSONDecodeError as error:
        raise LogFormatError(f"{where}: not JSON at line {error.lineno} column {error.colno}: {error.msg}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise LogFormatError(f"{where}: not YAML{at}: {getattr(error, 'problem', None) or 'cannot be read'}") from error


def merge_facts(from_log: Mapping[str, Any] | None, from_user: str | Path | Mapping[str, Any] | None = None) -> Facts:
    """Overlay what the log says with what the user says.

    Parameters
    ----------
    from_log : mapping or None
        Facts of one server life (``Log.facts[life]``).
    from_user : str, Path, mapping or None
        As for `read_context`.

    Returns
    -------
    Facts
        The user's value wins; ``contradictions`` and ``unused`` say what a reader must know.

    Raises
    ------
    LogFormatError
        ``from_user`` cannot be read.

    Examples
    --------
    >>> facts = merge_facts({"tp": 4}, {"tp": 8, "colour": "blue"})
    >>> facts.values["tp"], facts.contradictions[0], list(facts.unused)
    (8, 'tp: the log says 4, --context says 8; 8 is used', ['colour'])
    """
    values = {key: value for key, value in (from_log or {}).items() if value is not None}
    source = dict.fromkeys(values, "log")
    contradictions: list[str] = []
    unused: dict[str, str] = {}
    for key, given in _spread(read_context(from_user), unused).items():
        if key not in KNOWN:
            near = difflib.get_close_matches(key, KNOWN, n=1)
            unused[key] = "not a fact rooflog knows" + (f"; did you mean {near[0]}?" if near else "")
            continue
        if given is None:
            continue
        value, complaint = _convert(KNOWN[key][0], given)
        if complaint:
            unused[key] = f"expected {complaint}, found {given!r}"
            continue
        if key in values and not _agree(key, values[key], value):
            contradictions.append(f"{key}: the log says {values[key]}, --context says {value}; {value} is used")
        values[key], source[key] = value, "user"
    return Facts(values, source, tuple(contradictions), unused)


def _spread(given: Mapping[str, Any], unused: dict[str, str]) -> dict[str, Any]:
    """Turn ``parallel: {tp: 4}`` and ``parallel.tp: 4`` into ``tp: 4``."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        if key == "parallel" and isinstance(value, Mapping):
            for name, degree in value.items():
                if name in PARALLEL:
                    flat[name] = degree
                else:
                    unused[f"parallel.{name}"] = f"expected one of {', '.join(PARALLEL)}"
        elif key == "parallel":
            unused[key] = f"expected an object of {', '.join(PARALLEL)}, found {value!r}"
        else:
            flat[key.removeprefix("parallel.")] = value
    return flat


def _convert(kind: str, value: Any) -> tuple[Any, str]:
    """Return (value in its kind, ""), or (None, what was expected)."""
    if kind in ("number", "positive"):
        number = as_number(value)
        if kind == "positive":
            return (number, "") if number is not None and number > 0 else (None, "a number above zero")
        return (number, "") if number is not None and number >= 0 else (None, "a number not below zero")
    if kind == "whole":
        number = as_number(value)
        is_whole = number is not None and number >= 0 and number.is_integer()
        return (int(number or 0), "") if is_whole else (None, "a whole number")
    if kind == "degree":
        degree, complaint = _convert("whole", value)
        return (degree, "") if degree else (None, complaint or "a whole number from 1")
    if kind == "wholes":
        converted = [_convert("whole", item) for item in value] if isinstance(value, list) else [(None, "list")]
        bad = not converted or any(complaint for _, complaint in converted)
        return (None, "a list of whole numbers") if bad else ([item for item, _ in converted], "")
    if kind == "flag":
        return (value, "") if isinstance(value, bool) else (None, "true or false")
    if kind == "text":
        return (str(value), "") if isinstance(value, str | int | float) and value != "" else (None, "text")
    return value, ""


def as_number(value: Any) -> float | None:
    """Return a finite number, also of a text that is one (YAML 1.1 reads 16e9 as text); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _agree(key: str, logged: Any, given: Any) -> bool:
    """Compare two statements of one fact; model paths by their last part, texts without case."""
    if key == "hardware":
        said, told = (frozenset("".join(c if c.isalnum() else " " for c in str(text).lower()).split())
                      for text in (logged, given))
        return said <= told or told <= said  # a driver's name holds the catalogue's words and more
    if isinstance(logged, str) and isinstance(given, str):
        a, b = (text.strip().lower().rstrip("/") for text in (logged, given))
        return a.rsplit("/", 1)[-1] == b.rsplit("/", 1)[-1] if key == "model" else a == b
    if isinstance(logged, list) and isinstance(given, list):
        return sorted(logged) == sorted(given)
    return bool(logged == given)
