"""What makes a run the same run: contents, notebook, parameters, context and versions, as one SHA-256."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from helpers import __version__, scorecard
from helpers.ingest.sources import find_inputs
from helpers.parameters import NotebookParameter, check_parameters
from helpers.run import find_notebook
from helpers.run.execute import RESERVED, declared_parameters, hash_file, require_declared
from helpers.run.kernel import load
from helpers.schema import METHOD_VERSION, SCHEMA_VERSION

KEY_DIGITS = 12
"""Hexadecimal digits of the key in a name: 48 bits, two of a million runs share them with a chance of 0.2 %."""


@dataclass(frozen=True)
class Settings:
    """What is the same for every dump of a batch.

    Attributes
    ----------
    out : str
        Absolute path, or URL, of the folder that gets the run folders.
    notebook : str
        Name, or absolute path of a notebook that is not rooflog's own.
    parameters : tuple of (name, value)
        For the notebook, as given.
    context : mapping
        Facts that hold for every dump; they win over a dump's own.
    retry_failed : bool
        Run again what failed for a reason that will not change.
    limit_s : float or None
        Longest time for one dump [s].
    command : str
        Command line to record.
    """

    out: str
    notebook: str = "00"
    parameters: tuple[tuple[str, Any], ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False
    limit_s: float | None = None
    command: str = ""


@dataclass(frozen=True)
class Notebook:
    """A notebook as far as a key needs it.

    Attributes
    ----------
    path : Path
    sha256 : str
        Of the file's bytes.
    values : mapping
        The given parameters in their types.
    declared : mapping
        Name -> parameter.
    """

    path: Path
    sha256: str
    values: Mapping[str, Any]
    declared: Mapping[str, NotebookParameter]


def read_notebook(name: str, parameters: Iterable[tuple[str, Any]]) -> Notebook:
    """Find a notebook and check the parameters that it shall get.

    Raises
    ------
    RooflogError
        No such notebook, one that takes no log, or a parameter of a wrong name or type.
    """
    path = find_notebook(name)
    declared = declared_parameters(load(path), path.stem)
    for name in ("log_path", "out_dir"):
        require_declared(declared, path.stem, name)
    values = check_parameters(declared, parameters, path.stem, reserved=RESERVED)
    return Notebook(path, hash_file(path), values, declared)


def hash_logs(logs: Sequence[str]) -> list[str]:
    """Return the SHA-256 of every file that will be read of a dump, in reading order.

    Raises
    ------
    LogFormatError
        A file that is not there.
    OSError
        A file that cannot be read.
    """
    return [hash_file(path) for path in find_inputs(list(logs)).paths]


def key_of(hashes: Sequence[str], notebook: Notebook, context: Mapping[str, Any]) -> str:
    """Return the key of a run.

    Parameters
    ----------
    hashes : sequence of str
        Of the dump's files.
    notebook : Notebook
        Files that its parameters name count by their contents: where they lie changes nothing.
    context : mapping
        The facts that the run gets.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    values = {
        name: _hashes_of(value) if notebook.declared[name].is_path else value
        for name, value in sorted(notebook.values.items())
    }
    config = context.get("model_config")
    facts = dict(context) | ({"model_config": _hashes_of(config)} if isinstance(config, str) else {})
    parts = [list(hashes), notebook.sha256, values, facts, METHOD_VERSION, SCHEMA_VERSION, __version__]
    return sha256(json.dumps(scorecard.to_plain(parts), sort_keys=True, default=str).encode()).hexdigest()


def _hashes_of(value: Any) -> Any:
    """Replace paths by the hashes of what they hold; what is no local file stays as it is."""
    if isinstance(value, list):
        return [_hashes_of(item) for item in value]
    path = Path(str(value)).expanduser()
    if value and path.is_dir():
        return [hash_file(file) for file in sorted(path.rglob("*")) if file.is_file()]
    return hash_file(path) if value and path.is_file() else value


def run_name(name: str, key: str) -> str:
    """Return the name of a dump's run folder."""
    return f"{name}-{key[:KEY_DIGITS]}"
