"""What a comparison holds against each other of the facts of two sides: settings, not results, addresses or secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helpers.compare.validity import LOAD
from helpers.facts import as_number
from helpers.levels.configuration import VOLATILE_ARGUMENTS

RESULTS = ("startup_s", "prefill_tok_per_s", "mem_bytes", "model_served")
"""Facts of a scorecard that a run measured or that repeat another fact."""

MODEL_ARGUMENTS = ("model", "model_path", "model_tag", "tokenizer", "tokenizer_path")

SECRET_PARTS = ("api_key", "apikey", "secret", "passw", "credential", "auth", "cookie", "ssl")
SECRET_ENDS = ("token", "key", "pwd")
"""Words in the name of an argument whose value is never shown."""

WEIGHTS_FRAC = 0.02
"""Weights that were loaded in two starts of one server differ by less: they are read off a device's free memory [1]."""

DERIVED = ("compilation_config", "kernel_config", "observability_config", "structured_outputs_config")
"""What vLLM prints as worked out from its other arguments: where one of these differs, so do they, and are no variable
of their own. Where nothing else differs, they are compared."""

REPEATED = ("max_seq_len",)
"""vLLM's second name of max_model_len."""

AT_DEFAULT = "(default)"

SHOWN_CHARS = 80
"""Of a value in a list of differences; of a longer text the place where the sides part is shown."""


def settings_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that describe a server and its load, models by the last part of their path.

    Parameters
    ----------
    facts : mapping
        As in ``scorecard["run"]["facts"]``.
    """
    kept = {name: value for name, value in facts.items() if name not in RESULTS and name != "args"}
    if isinstance(kept.get("model"), str):
        kept["model"] = _last_part(kept["model"])
    args = facts.get("args")
    if isinstance(args, Mapping):
        kept["args"] = {
            name: _last_part(value) if name in MODEL_ARGUMENTS and isinstance(value, str) else value
            for name, value in args.items()
            if name not in (*VOLATILE_ARGUMENTS, *REPEATED) and not _is_secret(str(name))
        }
    return kept


def joined(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a side: of the first run that states each, means of the numbers that describe the load."""
    side: dict[str, Any] = {}
    for facts in of_runs:
        for name, value in facts.items():
            if side.get(name) is None:
                side[name] = value
    for name in LOAD:
        known = [number for facts in of_runs if (number := as_number(facts.get(name))) is not None]
        if known:
            side[name] = sum(known) / len(known)
    return side


def comparable(base: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both sides' settings with what can be said about an argument that one side does not state.

    Of one version of one engine the arguments of both sides are known whole: one that a side does not print, or prints
    as None, is at its default there. Weights that agree within `WEIGHTS_FRAC` are made equal.
    """
    old, young = dict(base), dict(new)
    weights = [as_number(side.get("weight_bytes")) for side in (old, young)]
    if weights[0] and weights[1] and abs(weights[1] / weights[0] - 1) <= WEIGHTS_FRAC:
        young["weight_bytes"] = old["weight_bytes"]
    is_one_version = all(old.get(name) and old.get(name) == young.get(name) for name in ("engine", "engine_version"))
    first, second = old.get("args"), young.get("args")
    if is_one_version and isinstance(first, Mapping) and isinstance(second, Mapping) and first and second:
        names = {name for args in (first, second) for name, value in args.items() if not _is_unset(value)}
        old["args"], young["args"] = ({name: AT_DEFAULT if _is_unset(args.get(name)) else args[name] for name in names}
                                      for args in (first, second))
        if any(old["args"][name] != young["args"][name] for name in names if name not in DERIVED):
            for args in (old["args"], young["args"]):
                for name in names & set(DERIVED):
                    del args[name]
    return old, young


def shortened(base: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both sides' settings with long differing texts cut to the place where they part; what differs stays so."""
    old, young = dict(base), dict(new)
    for name in old.keys() & young.keys():
        first, second = old[name], young[name]
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            old[name], young[name] = shortened(first, second)
        elif isinstance(first, str | list | tuple) and isinstance(second, str | list | tuple) and first != second:
            old[name], young[name] = _around(first, second)
    return old, young


def _around(base: Any, new: Any) -> tuple[Any, Any]:
    first, second = str(base), str(new)
    if max(len(first), len(second)) <= SHOWN_CHARS or sorted(first) == sorted(second):  # of lists the order is nothing
        return base, new
    same = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
                min(len(first), len(second)))
    start = max(0, same - SHOWN_CHARS // 4)
    return _cut(first, start), _cut(second, start)


def _cut(text: str, start: int) -> str:
    end = start + SHOWN_CHARS
    return ("…" if start else "") + text[start:end] + ("…" if len(text) > end else "")


def _is_unset(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | Mapping) and len(value) == 0)


def _is_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(part in plain for part in SECRET_PARTS) or plain.rsplit("_", 1)[-1] in SECRET_ENDS


def _last_part(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1]
