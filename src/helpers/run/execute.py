"""One run: check everything first, execute, record, publish."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import file_digest
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from helpers import __version__, paths, scorecard
from helpers.facts import read_context
from helpers.ingest.sources import find_inputs
from helpers.parameters import NotebookParameter, ParameterError, absolute, check_parameters, read_parameters
from helpers.report import CARD_FILES
from helpers.run.folder import make_workspace, publish
from helpers.run.kernel import Say, input_error_names, load, run_cells
from helpers.run.signals import ended_as_interrupted
from helpers.schema import METHOD_VERSION, SCHEMA_VERSION, LogFormatError, RooflogError

RESERVED = {"log_path": "LOG", "more_log_paths": "LOG", "context": "--context", "out_dir": "--out"}
VERSIONS_OF = ("numpy", "pandas", "polars", "scipy", "plotly", "papermill", "ipykernel")
RECORD_KEYS = (
    "schema_version", "status", "exit_code", "message", "notebook", "command", "parameters", "log_sha256", "versions",
    "started_utc", "wall_s",
)
STATUS = {0: "good", 1: "check_failed", 2: "cannot_tell", 3: "failed"}


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes
    ----------
    folder : Path
        Executed notebook, run.json, report.html, and scorecard.json unless the notebook failed.
    exit_code : int
        0 good, 1 a check failed, 2 cannot tell (law refused), 3 the notebook failed.
    status : str
        The same in a word.
    scorecard : dict or None
        None when the notebook failed before it wrote one.
    message : str
        What failed, in one line; empty when nothing did.
    """

    folder: Path
    exit_code: int
    status: str
    scorecard: dict[str, Any] | None
    message: str = ""


def run(
    logs: str | Path | Sequence[str | Path],
    notebook: str = "00",
    parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    out: str | Path | None = None,
    context: str | Path | Mapping[str, Any] | None = None,
    *,
    command: str = "",
    progress: Say | None = None,
    name: str = "",
    record: Mapping[str, Any] | None = None,
    warm: bool = False,
) -> RunResult:
    """Execute a notebook on logs into a new run folder.

    Parameters
    ----------
    logs : path or sequence of paths
        Files, folders, globs; none = the notebook's own default.
    notebook : str
        Number, start of the name, or path of a notebook.
    parameters : mapping, or pairs of name and value
        Checked by name and type before anything runs; text is read as the declared type.
    out : path, optional
        Folder that gets the run folder ``<utc>-<nn>``; ``runs`` in the caller's folder by default.
    context : path, text or mapping, optional
        Facts about the deployment, as `facts.read_context` takes them.
    command : str
        Command line to record.
    progress : callable, optional
        Called with a line of text at every cell.
    name : str
        Exact name of the run folder; ``<utc>-<nn>`` by default, with ``-2`` and so on where that is taken.
    record : mapping, optional
        Further keys of run.json, beside its own.
    warm : bool
        Execute in a kernel that has its imports loaded already: for many runs of one process. Results are the same.

    Returns
    -------
    RunResult
        Also when a check failed, the law was refused, or the notebook raised: the folder is kept and says so.

    Raises
    ------
    RooflogError
        Input that cannot be used, found before or while the notebook ran, or a folder of that name: nothing is written.
    ValueError
        A name that is no single folder, or a key of `record` that run.json has already.
    SystemExit
        SIGTERM (143) or SIGHUP (129) ended the run: nothing is written.
    """
    path = find_notebook(notebook)
    source = load(path)
    declared = declared_parameters(source, path.stem)
    values = check_parameters(declared, parameters, path.stem, reserved=RESERVED)
    given = [logs] if isinstance(logs, str | Path) else list(logs)
    values |= _log_values([str(log) for log in given], declared, path.stem)
    facts = with_absolute_files(read_context(context))
    if facts:
        values |= _if_declared(declared, path.stem, "context", json.dumps(facts, default=scorecard.to_plain))
    destination = Path("runs" if out is None else out).expanduser().absolute()
    _check_request(destination, name, record or {})
    with ended_as_interrupted(), make_workspace(destination) as workspace:
        values |= _if_declared(declared, path.stem, "out_dir", str(workspace))
        request = _Request(destination, command, progress or (lambda text: None), name, record or {}, warm)
        return _execute(path, source, values, workspace, request)


@dataclass(frozen=True)
class _Request:
    """What was asked for beside the notebook and its parameters."""

    destination: Path
    command: str
    progress: Say
    name: str
    record: Mapping[str, Any]
    warm: bool


def _check_request(destination: Path, name: str, record: Mapping[str, Any]) -> None:
    if name and (Path(name).name != name or name.startswith(".")):
        raise ValueError(f"name {name!r}: expected the plain name of a folder")
    if name and (destination / name).exists():
        raise RooflogError(f"{destination / name}: expected a free name for the run folder, found it taken")
    taken = sorted(set(record) & set(RECORD_KEYS))
    if taken:
        raise ValueError(f"record: run.json has keys of its own named {', '.join(taken)}")


def with_absolute_files(facts: dict[str, Any]) -> dict[str, Any]:
    """Take a file that the facts name from the caller's folder: the notebook runs in another one."""
    config = facts.get("model_config")
    if isinstance(config, str) and Path(config).expanduser().exists():
        return {**facts, "model_config": absolute(config)}
    return facts


def find_notebook(name: str) -> Path:
    """Find a notebook by number ("00", "3"), by the start of its name, or by path.

    Raises
    ------
    RooflogError
        None or several fit; the message lists what there is.
    """
    if name.endswith(".ipynb"):
        if Path(name).is_file():
            return Path(name).absolute()
        name = Path(name).stem
    every = sorted(paths.notebooks_dir().glob("*.ipynb"))
    number = name.zfill(2) + "_" if name.isdigit() else name
    fitting = [path for path in every if path.stem == name]
    fitting = fitting or [path for path in every if number and path.stem.startswith(number)]
    if len(fitting) != 1:
        found = "several fit" if fitting else "none fits"
        names = ", ".join(path.stem for path in fitting or every) or "no notebook at all"
        raise RooflogError(f"notebook {name!r}: {found}; choose from: {names}")
    return fitting[0]


def declared_parameters(notebook: NotebookNode, stem: str) -> dict[str, NotebookParameter]:
    """Read the parameters cell; ParameterError where there is not one, or it holds something else."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ParameterError(f"{stem}: expected one cell tagged parameters, found {len(cells)}")
    return read_parameters(cells[0].source, stem)


def require_declared(declared: Mapping[str, Any], stem: str, name: str) -> None:
    """Raise ParameterError where a notebook has no parameter for what is passed to every one."""
    if name not in declared:
        raise ParameterError(f"{stem}: has no parameter {name}, so {RESERVED[name]} cannot be passed on")


def _if_declared(declared: Mapping[str, Any], stem: str, name: str, value: Any) -> dict[str, Any]:
    require_declared(declared, stem, name)
    return {name: value}


def _log_values(logs: list[str], declared: Mapping[str, Any], stem: str) -> dict[str, Any]:
    """Turn the logs into the notebook's parameters, absolute, after a look whether they are there."""
    if "-" in logs:
        raise LogFormatError("-: a notebook cannot read standard input; save it to a file, or use rooflog fit -")
    if not logs:
        return {}
    find_inputs([absolute(log) for log in logs], takes_urls=True)
    values = _if_declared(declared, stem, "log_path", absolute(logs[0]))
    if len(logs) > 1:
        values |= _if_declared(declared, stem, "more_log_paths", [absolute(log) for log in logs[1:]])
    return values


def _execute(
    path: Path,
    source: NotebookNode,
    values: dict[str, Any],
    workspace: Path,
    request: _Request,
) -> RunResult:
    """Run the notebook in the hidden folder, complete the folder there, and move it into place in one step."""
    started = datetime.now(UTC)
    clock_s = time.monotonic()
    error = run_cells(path, source, values, workspace / path.name, request.progress, warm=request.warm)
    if error is not None and error[0] in input_error_names():
        raise RooflogError(error[1])
    card_file = next((workspace / file for file in CARD_FILES if (workspace / file).is_file()),
                     workspace / scorecard.FILE_NAME)
    checks_failed = error is not None and error[0] == scorecard.CheckFailed.__name__
    message = "" if error is None else error[1] if checks_failed else f"{path.stem}: {error[0]}: {error[1]}"
    if error is None and not card_file.is_file():
        message = f"{path.stem}: the notebook ended without writing {scorecard.FILE_NAME} to out_dir"
    card = None
    if message and not checks_failed:
        code = 3
        card_file.unlink(missing_ok=True)
    else:
        if card_file.is_file():
            card = scorecard.read(card_file)
            card["run"]["command"] = request.command or card["run"]["command"]
            scorecard.write(card, card_file)
        code = 1 if checks_failed or card is None else _exit_code(card)
    record = dict(request.record) | {
        "schema_version": SCHEMA_VERSION,
        "status": STATUS[code],
        "exit_code": code,
        "message": message,
        "notebook": path.stem,
        "command": request.command,
        "parameters": values | ({"out_dir": ""} if "out_dir" in values else {}),
        "log_sha256": card["run"]["log_sha256"] if card else _hash_logs(values),
        "versions": {"rooflog": __version__, "method": METHOD_VERSION, "python": platform.python_version()}
        | {name: version(name) for name in VERSIONS_OF},
        "started_utc": started.isoformat(timespec="seconds"),
        "wall_s": time.monotonic() - clock_s,
    }
    (workspace / "run.json").write_text(json.dumps(scorecard.to_plain(record), indent=1) + "\n", encoding="utf-8")
    stamp = f"{started:%Y%m%dT%H%M%SZ}-{path.stem.split('_')[0]}"
    folder = publish(workspace, request.destination, request.name or stamp, path.name, exact=bool(request.name))
    return RunResult(folder, code, STATUS[code], card, message)


def _exit_code(card: Mapping[str, Any]) -> int:
    """Return that of a scorecard, or the one that a comparison states."""
    return int(card["exit_code"]) if card.get("kind") == "comparison" else scorecard.exit_code(card)


def _hash_logs(values: Mapping[str, Any]) -> list[str]:
    """Hash the logs that are plain files, for a run that failed before ingest told."""
    logs = [values.get("log_path", ""), *values.get("more_log_paths", [])]
    return [hash_file(log) for log in logs if log and Path(log).is_file()]


def hash_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes; other threads go on meanwhile."""
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()
