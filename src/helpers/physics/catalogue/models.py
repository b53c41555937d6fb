"""The model catalogue: data/catalog/models/*.json as `ModelSpec`, and the look-up by name.

Each file holds the keys of a config.json that a decode step depends on, and where they come from: ``_source``,
``_confidence``, ``_aliases``, ``_assumptions``; ``_formats`` and ``_kv_format`` where the original says the number
formats in another way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from helpers import paths
from helpers.physics.catalogue.lookup import Match, find_name, path_tails
from helpers.physics.model.formats import KvFormat
from helpers.physics.model.spec import ModelSpec
from helpers.physics.reading.config import read_config
from helpers.schema import LogFormatError, RooflogError

CONFIDENCES = ("high", "medium", "low")
MIN_SHOWN_SHARE = 0.005
"""Share of a model's bytes from which `formats_in_short` names a format."""
_NOISE_WORDS = frozenset("instruct chat base it thinking hf meta nvidia".split())


def find(name: str) -> ModelSpec:
    """Look a model up by the name or path that a person or a log writes.

    A path that exists here and holds a config.json is read. Everything else is looked for in the catalogue: by name
    or alias, case and punctuation aside; by the last part of a path, the name in a hub's cache folder; and without
    the words that name a tuning or a publisher, which is then said among the assumptions. Another size, generation
    or number format never fits.

    Parameters
    ----------
    name : str
        For example ``"qwen3-8b"``, ``"meta-llama/Llama-3.1-8B-Instruct"``, ``"/data/models/gpt-oss-120b/"``.

    Returns
    -------
    ModelSpec
        ``notes["catalogue"]`` is the entry's name, ``notes["asked"]`` the request.

    Raises
    ------
    RooflogError
        No entry or several fit; the message lists those to choose from, and the ways without the catalogue.

    Examples
    --------
    >>> find("meta-llama/Llama-3.1-8B-Instruct").n_layers
    32
    """
    if name.endswith(".json") or _holds_config(name):
        return read_config(name)
    entries = _files()
    try:
        match = find_name(
            name, {entry: _aliases(file) for entry, file in entries.items()}, what="model",
            where="rooflog models", noise=_NOISE_WORDS,
        )
    except RooflogError as error:
        raise RooflogError(
            f"{error}; or give the path of the model's config.json, or weight_bytes_per_step and kv_bytes_per_tok"
        ) from None
    spec = _spec(match.name)
    notes = {**spec.notes, "catalogue": match.name, "asked": name}
    return replace(spec, notes=notes, assumptions=(*_doubts(name, match, entries[match.name]), *spec.assumptions))


def names() -> tuple[str, ...]:
    """Return the names of the catalogue's models."""
    return tuple(_files())


def catalogue() -> pd.DataFrame:
    """Return the catalogue, one row per model, in base units.

    Returns
    -------
    DataFrame
        name; n_params, n_active_params; n_layers; weight_bytes (all weights, one copy); kv_bytes_per_tok (what one
        more token of a long context takes, one copy); state_bytes_per_req (recurrent state of a request, one copy);
        formats (in short); context_length_max [tok], NaN where unknown; source, confidence, aliases.

    Raises
    ------
    LogFormatError
        A file is not JSON or lacks its source or confidence; the message names it.
    """
    return pd.DataFrame([_row(name) for name in _files()])


def weight_bytes(spec: ModelSpec) -> dict[str, float]:
    """Return the bytes of one copy of a model by role, embedding included, draft layers left out.

    Returns
    -------
    dict
        Role -> bytes, largest first; roles that the model has only.
    """
    found: dict[str, float] = {}
    for role, n_params in n_params_by_role(spec).items():
        found[role] = n_params * spec.formats[role].bytes_per_param
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def n_params_by_role(spec: ModelSpec) -> dict[str, float]:
    """Return the parameters of a model by role, embedding included, draft layers left out."""
    found: dict[str, float] = {}
    for weights, count in spec.stack():
        found[weights.role] = found.get(weights.role, 0.0) + weights.n_params * count
    found["head"] = spec.head.n_params
    if not spec.is_tied:
        found["embed"] = float(spec.hidden * spec.vocab)
    return {role: n_params for role, n_params in found.items() if n_params}


def draft_params(spec: ModelSpec) -> float:
    """Return the parameters of the built-in draft layers; 0 where there are none."""
    layers = sum(w.n_params * layer.count for layer in spec.draft for w in layer.weights(spec.hidden))
    return float(layers + sum(weights.n_params for weights in spec.draft_extra))


def kv_bytes_per_tok(spec: ModelSpec, kv: KvFormat | None = None) -> float:
    """Return the cache that one more token of a long context takes, one copy, all layers [bytes/tok]."""
    return float(sum(layer.mixer.cell_bytes(kv or spec.kv) * layer.count for layer in spec.layers if layer.mixer))


def state_bytes_per_req(spec: ModelSpec) -> float:
    """Return the recurrent state of one request, one copy, all layers [bytes]."""
    # A forward of no token would read the state and write none: the state itself.
    return float(sum(layer.mixer.state_bytes(0, 1) * layer.count for layer in spec.layers if layer.mixer))


def formats_in_short(spec: ModelSpec) -> str:
    """Name the formats of a model's weights by their share of the bytes, the largest first: "mxfp4 + bf16"."""
    shares: dict[str, float] = {}
    for role, n_bytes in weight_bytes(spec).items():
        shares[spec.formats[role].name] = shares.get(spec.formats[role].name, 0.0) + n_bytes
    total = sum(shares.values())
    named = [name for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] >= MIN_SHOWN_SHARE * total]
    return " + ".join(named)


def _row(name: str) -> dict[str, Any]:
    spec, file = _spec(name), _files()[name]
    limit = spec.context_length_max
    return {
        "name": name, "n_params": spec.n_params, "n_active_params": spec.n_active_params, "n_layers": spec.n_layers,
        "weight_bytes": sum(weight_bytes(spec).values()), "kv_bytes_per_tok": kv_bytes_per_tok(spec),
        "state_bytes_per_req": state_bytes_per_req(spec), "formats": formats_in_short(spec), "kv_format": spec.kv.name,
        "context_length_max": float("nan") if limit is None else float(limit),
        "source": spec.source, "confidence": spec.confidence, "aliases": ", ".join(_aliases(file)),
    }


def _doubts(asked: str, match: Match, file: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what of a request the entry does not answer: words left out, a publisher that is not the entry's."""
    doubts = []
    known = {name.lower() for name in (match.name, *_aliases(file))}
    hub = next((form for form in path_tails(asked) if _is_hub_name(form)), "")
    if match.ignored:
        words = ", ".join(match.ignored)
        doubts.append(f"model {asked!r} is read as {match.name} of the catalogue (words that only one has: {words})")
    if hub and hub.lower() not in known:
        doubts.append(f"model {asked!r} is read as {match.name} of the catalogue ({_aliases(file)[0]}); "
                      "another publisher's number formats may differ")
    return tuple(doubts)


def _is_hub_name(form: str) -> bool:
    """Tell a name with its publisher (``org/name``) from a path."""
    org, _, rest = form.partition("/")
    return bool(org.strip(".~")) and bool(rest) and "/" not in rest


def _holds_config(name: str) -> bool:
    """Tell whether a name is that of a folder with a model's configuration."""
    try:
        return (Path(name) / "config.json").is_file()
    except (OSError, ValueError):  # no path: too long, or with characters that none can have
        return False


def _aliases(file: Mapping[str, Any]) -> list[str]:
    return list(file.get("_aliases", ()))


@cache
def _spec(name: str) -> ModelSpec:
    file = _files()[name]
    spec = read_config(file, name=name)
    return replace(
        spec, source=file["_source"], confidence=file["_confidence"],
        assumptions=(*file.get("_assumptions", ()), *spec.assumptions),
    )


@cache
def _files() -> dict[str, Mapping[str, Any]]:
    """Return name -> content of every file of the catalogue, in the order of the names."""
    folder = paths.data_dir() / "catalog" / "models"
    return {path.stem: _read(path) for path in sorted(folder.glob("*.json"), key=lambda path: path.stem.lower())}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LogFormatError(f"{path}: expected a model as JSON, found: {error}; install rooflog again") from error
    if not content.get("_source") or content.get("_confidence") not in CONFIDENCES:
        raise LogFormatError(
            f"{path}: expected _source and _confidence ({', '.join(CONFIDENCES)}), found {content.get('_source')!r} "
            f"and {content.get('_confidence')!r}; write down where the numbers come from"
        )
    return content
