"""What the commands print and write: tables, JSON, files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from helpers import scorecard
from helpers.display import show
from helpers.schema import RooflogError, printable


def shown_path(path: Path) -> str:
    """Return a path as the user would write it."""
    here = Path.cwd()
    return printable(str(path.relative_to(here) if path.is_relative_to(here) else path))


def print_json(value: Mapping[str, Any]) -> None:
    """Print JSON; a NaN is an error here, not in the reader."""
    print(printable(json.dumps(value, allow_nan=False, indent=1, ensure_ascii=False)))


def new_table(title: str, *headers: str) -> Table:
    """Return a plain table; brackets in its words are units, not markup."""
    return Table(*(escape(header) for header in headers), box=None, title=escape(title), title_justify="left")


def print_table(table: Table) -> None:
    """Print as wide as the table needs where nobody looks on."""
    console = Console()
    console = console if console.is_terminal else Console(width=200)
    console.print(table)


def print_levels(levels: Sequence[Mapping[str, Any]], confidence: float) -> None:
    """Print the levels that have a step time, and name the others."""
    lives = len({level["server_life"] for level in levels}) > 1
    groups = len({level["rank_group"] for level in levels}) > 1
    table = new_table(
        "Levels", *(["life"] if lives else []), *(["ranks"] if groups else []), "N [req]", "clean", "step [ms]",
        f"{confidence * 100:g} % interval [ms]", "decode [tok/s]", "accept length", "fitted", "note",
    )
    for level in (level for level in levels if level["step_s"] is not None):
        ends = [show(level[name], "s").removesuffix(" ms") for name in ("step_s_lo", "step_s_hi")]
        table.add_row(
            *([str(level["server_life"])] if lives else []), *([escape(level["rank_group"])] if groups else []),
            f"{level['running_req']:g}", str(level["n_clean"]), show(level["step_s"], "s").removesuffix(" ms"),
            "unknown" if "unknown" in ends else " to ".join(ends), show(level["decode_tok_per_s"]),
            "" if level["accept_len"] is None else show(level["accept_len"]), "yes" if level["is_fitted"] else "no",
            escape(level["note"] or ""),
        )
    if table.row_count:
        print_table(table)
    others = sorted({level["running_req"] for level in levels if level["step_s"] is None})
    if others:
        print(f"Seen without a clean interval: N = {', '.join(f'{level:g}' for level in others)}")


def describe_lives(log: Any) -> list[dict[str, Any]]:
    """Say when each server life began and what it holds."""
    lives = []
    numbers = sorted({*log.samples["server_life"], *log.events["server_life"], *range(len(log.facts))})
    for life in numbers:
        samples, events = (table[table["server_life"] == life] for table in (log.samples, log.events))
        stamps = pd.concat([samples["ts"], events["ts"]]).dropna()
        lives.append({
            "server_life": int(life), "n_samples": len(samples), "n_events": len(events),
            "first": str(stamps.min()) if len(stamps) else None, "last": str(stamps.max()) if len(stamps) else None,
        })
    return lives


def show_stamp(stamp: str | None) -> str:
    """Return a stamp as its log prints it: without the year, or the date, that stands in for a missing one."""
    return (stamp or "no stamp").removeprefix("1904-01-01 ").removeprefix("1904-")


def print_accounting(
    log: Any, accounting: Mapping[str, Any], lives: Sequence[Mapping[str, Any]], events: Mapping[str, int]
) -> None:
    """Print where every line of a log went; text of the log cannot reach the terminal as control codes."""
    print(f"{log.engine or 'unknown engine'} {log.engine_version or '(version not in the log)'}")
    lines = accounting["lines"]
    print(f"{accounting['lines_total']} lines = " + " + ".join(f"{n} {name}" for name, n in lines.items()))
    for title, counts in (("samples by kind", accounting["by_kind"]), ("events", events)):
        print(f"{title}: " + (", ".join(f"{n} {name}" for name, n in counts.items()) or "none"))
    for life in lives:
        print(f"server life {life['server_life']}: {life['n_samples']} samples, {life['n_events']} events, "
              f"{show_stamp(life['first'])} to {show_stamp(life['last'])}")
    oddities = {name: n for name, n in (accounting.get("oddities") or {}).items() if n}
    if oddities:
        print("odd: " + ", ".join(f"{n} {name}" for name, n in oddities.items()))
    for example in accounting.get("malformed") or []:
        text = str(example["text"]).encode("unicode_escape").decode()
        print(f"malformed: {printable(example['file'])}:{example['line_no']}: {text[:160]}")
    for note in accounting.get("notes") or []:
        print(f"note: {printable(note)}")


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table as its file name says."""
    if file.name.endswith(".csv"):
        table.to_csv(file, index=False)
    else:
        table.to_parquet(file, index=False)


def write_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Write beside the target and rename, so that a file is there whole or not at all."""
    partial = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        write(partial)
        os.replace(partial, target)
    except OSError as error:
        found = error.strerror or error
        raise RooflogError(f"{target}: expected a file that can be written, found: {found}") from error
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a text as UTF-8."""
    file.write_text(text, encoding="utf-8")


def print_estimate(rows: pd.DataFrame, preset: str, as_json: bool) -> None:
    """Show each level of the sweep to come, and how long all of it takes."""
    total_s = float((rows["start_s"] + rows["duration_s"]).max())
    levels = scorecard.to_plain(rows.to_dict("records"))
    if as_json:
        print_json({"preset": preset, "total_s": total_s, "levels": levels})
        return
    table = new_table(f"{preset}: what the sweep would look like", "level", "N [req]", "starts", "takes", "steady",
                   "step [ms]", "steady rate [tok/s]", "client average [tok/s]")
    for level in levels:
        table.add_row(
            str(level["name"]), str(level["running_req"]), show(level["start_s"], "duration"),
            show(level["duration_s"], "duration"), show(level["steady_s"], "duration"),
            show(level["step_s"], "s").removesuffix(" ms"), show(level["decode_tok_per_s"]),
            show(level["client_tok_per_s"]),
        )
    print_table(table)
    print(f"In all: {show(total_s, 'duration')} (simulated without noise; start-up included)")
