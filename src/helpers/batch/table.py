"""One row per run: what a folder of runs says, as a table of scorecards and a table of their levels.

Rows are made of ``run.json`` and ``scorecard.json`` alone, so that a table can be written again from any folder of
runs. Null is "not known", never zero.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from helpers import report, scorecard
from helpers.answer import fitted_levels
from helpers.batch.columns import LEVEL_NAMES, RUN_LEVELS, SCORECARDS, as_arrow, as_frame, require_types
from helpers.batch.curve import law_curve
from helpers.batch.store import FAILURES, RECORD
from helpers.display import level_key
from helpers.run.folder import make_workspace
from helpers.schema import RooflogError

STATUS_WITHOUT_CARD = ("failed", "check_failed")
"""Statuses of whole runs that may lack a scorecard."""


def flatten(card: Mapping[str, Any] | None, run: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Make one row of a run.

    Parameters
    ----------
    card : mapping or None
        Its scorecard; None where the run failed before there was one.
    run : mapping
        Its run.json; ``dump`` and ``key`` are taken if a batch has put them there.
    folder : str
        The run folder, relative to the folder of the table, with "/".

    Returns
    -------
    dict
        A value for every column of `SCORECARDS`, None = not known; ``levels``, a list of mappings with the columns of
        `RUN_LEVELS`; ``law_levels``, those of them behind the law, by running_req; and ``curve``, the law as
        (running_req [req], step_s [s]); ``files``, the names of the page, notebook and scorecard that there are.

    Raises
    ------
    KeyError, TypeError, ValueError
        ``card`` is no scorecard.
    """
    row: dict[str, Any] = dict.fromkeys(SCORECARDS.names) | {"levels": [], "law_levels": [], "curve": []}
    row["files"] = [report.FILE_NAME, *([f"{run['notebook']}.ipynb"] if run.get("notebook") else []),
                    *([scorecard.FILE_NAME] if card is not None else [])]
    row |= {name: run.get(name) for name in ("status", "exit_code", "key", "notebook", "wall_s")}
    versions = run.get("versions") or {}
    row |= {
        "dump": str(run.get("dump") or _log_name(run) or folder), "folder": folder,
        "message": run.get("message") or None, "started_utc": run.get("started_utc"),
        "log_sha256": " ".join(run.get("log_sha256") or []) or None,
        "rooflog_version": versions.get("rooflog"), "schema_version": run.get("schema_version"),
        "method_version": versions.get("method"),
    }
    if card is None:
        return row
    known, fit, phases = card["run"], card["fit"], card["phases"]
    row |= {name: card[name] for name in ("schema_version", "method_version")}
    row |= {name: known[name] for name in ("engine", "engine_version", "model", "hardware")} | known["parallel"]
    row |= {
        "lines_total": card["ingest"]["lines_total"],
        "lines_malformed": (card["ingest"]["lines"] or {}).get("malformed"),
        "n_clean": phases["n_clean"], "law": None if fit["refused"] else fit["law"], "refused": fit["refused"],
        "n_warnings": len(fit["warnings"]) + len(known["notes"]),
        **{name: phases[name] for name in scorecard.PHASES},
        **{name: fit[name] for name in SCORECARDS.names if name in fit and name not in ("law", "refused")},
    }
    levels = [{name: level[name] for name in LEVEL_NAMES} for level in card["levels"]]
    used = sorted(fitted_levels(card), key=lambda level: (level["running_req"], level["n_clean"] or 0))
    row |= {"levels": levels, "law_levels": [{name: level[name] for name in LEVEL_NAMES} for level in used],
            "curve": law_curve(card), "n_levels": len({level["running_req"] for level in used})}
    if used:
        row |= _top(used[-1], card["roofline"] or {})
    if card["diagnosis"]:
        row |= {"cause": card["diagnosis"][0]["cause"], "cause_status": card["diagnosis"][0]["status"]}
    return row


def _log_name(run: Mapping[str, Any]) -> str:
    """Name a run that no batch has named after its log."""
    return Path(str((run.get("parameters") or {}).get("log_path") or "")).name


def _top(level: Mapping[str, Any], roofline: Mapping[str, Any]) -> dict[str, Any]:
    names = ("running_req", "step_s", "step_s_lo", "step_s_hi", "decode_tok_per_s", "accept_len")
    ratios = (roofline.get("ratios") or {}).get("target") or {}
    return {f"top_{name}": level[name] for name in names} | {
        "top_step_over_target": ratios.get(level_key(level["running_req"]))}


def read_rows(out: str | Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read what a folder of runs holds.

    Parameters
    ----------
    out : path
        Folder with run folders, and ``failures`` where a batch has left some.

    Returns
    -------
    rows : list of dict
        From `flatten`, by dump and folder; also of runs whose notebook failed.
    failures : list of dict
        ``dump``, ``message``, ``key``, ``file`` (relative to ``out``) of dumps that could not be run, and of folders
        that are not whole or cannot be read. A failure whose key has a whole run is settled and left out.
    """
    where = Path(out)
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for folder in sorted(where.iterdir()) if where.is_dir() else []:
        if folder.name.startswith(".") or folder.name == FAILURES or not folder.is_dir():
            continue
        try:
            row = _read_row(folder)
        except (RooflogError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            failures.append({"dump": folder.name, "key": None, "file": folder.name,
                             "message": f"the run folder cannot be read: {_words(error)}"})
        else:
            rows += [row] if row is not None else []
    settled = {row["key"] for row in rows if row["key"]}
    failures += [failure for failure in _read_failures(where) if failure["key"] not in settled or not failure["key"]]
    by_name = sorted(failures, key=lambda failure: (failure["dump"], failure["file"]))
    return sorted(rows, key=lambda row: (row["dump"], row["folder"])), by_name


def _words(error: Exception) -> str:
    return f"no {error} in it" if isinstance(error, KeyError) else str(error)


def _read_row(folder: Path) -> dict[str, Any] | None:
    """Read a run folder; None where it is another folder."""
    file = folder / RECORD
    if not file.is_file():
        if (folder / scorecard.FILE_NAME).is_file() or any(folder.glob("*.ipynb")):
            raise RooflogError(f"it is not whole, {RECORD} is missing")
        return None
    run = json.loads(file.read_text(encoding="utf-8"))
    has_card = (folder / scorecard.FILE_NAME).is_file()
    if not has_card and run.get("status") not in STATUS_WITHOUT_CARD:
        raise RooflogError(f"it is not whole, {scorecard.FILE_NAME} is missing")
    row = flatten(scorecard.read(folder) if has_card else None, run, folder.name)
    require_types([row], SCORECARDS)  # here, where it costs one row, and not where it would cost the whole table
    require_types(_level_rows([row]), RUN_LEVELS)
    return row


def _read_failures(where: Path) -> Iterable[dict[str, Any]]:
    for file in sorted((where / FAILURES).glob("*.json")):
        name = f"{FAILURES}/{file.name}"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            if found.get("is_overtaken"):  # the dump ran since; an object store keeps the record
                continue
            yield {"dump": str(found.get("dump") or found.get("name") or file.stem),
                   "message": str(found.get("message") or "no reason was recorded"), "key": found.get("key"),
                   "file": name}
        except (OSError, ValueError, AttributeError) as error:
            yield {"dump": file.stem, "message": f"the record of the failure cannot be read: {error}", "key": None,
                   "file": name}


def write_table(rows: Sequence[Mapping[str, Any]], out: str | Path) -> list[Path]:
    """Write ``scorecards.parquet``, ``scorecards.csv`` and ``levels.parquet``, each whole or not at all.

    Parameters
    ----------
    rows : sequence of mapping
        From `flatten` or `read_rows`.
    out : path
        Folder that gets them; two writers may write there at once, the last one stays.

    Returns
    -------
    list of Path
        The three files. Columns, order and types are those of `SCORECARDS` and `RUN_LEVELS`, without rows too; the
        fields of the Parquet files hold their units and meanings.

    Raises
    ------
    SchemaError
        A value does not fit its column.
    RooflogError
        The folder cannot be written.
    """
    where = Path(out)
    runs, levels = as_frame(rows, SCORECARDS), as_frame(_level_rows(rows), RUN_LEVELS)
    files = [where / "scorecards.parquet", where / "scorecards.csv", where / "levels.parquet"]
    with make_workspace(where) as workspace:
        try:
            pq.write_table(as_arrow(runs, SCORECARDS), workspace / files[0].name)
            runs.to_csv(workspace / files[1].name, index=False)
            pq.write_table(as_arrow(levels, RUN_LEVELS), workspace / files[2].name)
            for file in files:
                os.replace(workspace / file.name, file)
        except OSError as error:
            raise RooflogError(f"{where}: the table of scorecards cannot be written: {error.strerror or error}"
                               ) from error
    return files


def _level_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ("dump", "folder", "key")} | dict(level)
            for row in rows for level in row["levels"]]
