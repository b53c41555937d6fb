"""From printed cells to TELEMETRY: rows under one header are collected, and turned into columns block by block.

The readers of single formats only split lines; what a column means, which of two sources of a column is taken, what
becomes of unknown ones and where the time comes from is decided here, once for all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from helpers.evidence.reading import Tally
from helpers.evidence.telemetry.names import Meaning, in_base, is_missing, key_of, meanings, read_values
from helpers.evidence.telemetry.times import ELAPSED_KEYS, STAMP_KEYS, Times, read_times

BLOCK_ROWS = 50_000
"""Rows held as text before they become numbers: bounds memory, large enough for the vector operations to pay."""

DEVICE_KEYS = ("index", "gpu", "gpu_index", "gpu_id", "device", "device_id", "card", "gpu_uuid", "uuid", "pci_bus_id",
               "gpu_bus_id", "gpu_serial", "serial")
"""Columns that tell devices apart, the best first."""

HOST_KEYS = ("hostname", "host", "node")
NAME_KEYS = ("name", "gpu_name", "device_name", "product_name")
RANK_KEYS = {"dp_rank": "DP{}", "engine": "DP{}", "rank": "{}", "worker": "{}", "tp_rank": "TP{}"}

SHARE_SLACK = 1.05
"""A share above this is none: clocks of counters and of the sample differ by a few per cent, not by more."""


@dataclass(frozen=True)
class _Source:
    """A printed column that can fill a column of the table."""

    index: int
    meaning: Meaning


@dataclass
class Layout:
    """Rows under one header: which printed column is what.

    Attributes
    ----------
    names : list of str
        Columns as printed, without units.
    sources : dict
        Column of TELEMETRY -> printed columns that can fill it, the best first.
    used : set of int
        Columns that say when, which device and which rank.
    kept : set of int
        Columns that stay in `extra` as well: they say more than the switch made of them.
    unfit : list of str
        Columns of known name whose unit is none of that quantity.
    """

    names: list[str]
    sources: dict[str, list[_Source]] = field(default_factory=dict)
    time: list[int] = field(default_factory=list)
    time_unit: str = ""
    device: int | None = None
    host: int | None = None
    device_name: int | None = None
    rank: int | None = None
    rank_form: str = "{}"
    used: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    unfit: list[str] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """At least one column of values has a meaning."""
        return bool(self.sources)


def layout(names: Sequence[str], units: Sequence[str], special: Mapping[str, Meaning | None] | None = None) -> Layout:
    """Decide what the columns of a header are.

    Parameters
    ----------
    names, units : sequences of str of equal length
        As printed; unit "" if there is none.
    special : mapping, optional
        Key -> meaning in this tool's files, where it differs from the usual one.
    """
    made = Layout([name.strip() for name in names])
    keys = [key_of(name) for name in names]
    bare = [key if not unit else "" for key, unit in zip(keys, units, strict=True)]
    made.device = next((bare.index(key) for key in DEVICE_KEYS if key in bare), None)
    made.host = next((bare.index(key) for key in HOST_KEYS if key in bare), None)
    made.device_name = next((bare.index(key) for key in NAME_KEYS if key in bare), None)
    for key, form in RANK_KEYS.items():
        if key in bare:
            made.rank, made.rank_form = bare.index(key), form
            break
    if "date" in keys and "time" in keys:
        made.time = [keys.index("date"), keys.index("time")]
    else:
        for at, key in enumerate(keys):
            if key in STAMP_KEYS or key in ELAPSED_KEYS:
                made.time = [at]
                made.time_unit = ELAPSED_KEYS.get(key, "") or units[at]
                break
    roles = {made.device, made.host, made.device_name, made.rank, *made.time} - {None}
    made.used = {at for at in roles if at is not None}
    for at, (name, unit) in enumerate(zip(names, units, strict=True)):
        if at in made.used:
            continue
        found = meanings(name, unit, special)
        if not found and unit and meanings(name, "", special):
            made.unfit.append(f"{name} [{unit}]")
        for meaning in found:
            made.sources.setdefault(meaning.column, []).append(_Source(at, meaning))
            if meaning.bits or key_of(name).endswith("viol"):
                made.kept.add(at)
    for sources in made.sources.values():
        sources.sort(key=lambda one: one.meaning.choice)
    return made


class Sheet:
    """Rows of one file, under one or several headers.

    Parameters
    ----------
    tally : Tally
        Of the file; rows are counted when their block is turned into columns.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.layout: Layout | None = None
        self.n_layouts = 0
        self.times = Times()
        self._rows: list[tuple[int, Sequence[str]]] = []
        self._blocks: list[pd.DataFrame] = []
        self._unread: Counter[str] = Counter()
        self._unread_example: dict[str, str] = {}
        self._counters: set[str] = set()
        self._open: set[str] = set()
        self._open_names: set[str] = set()

    def begin(self, new: Layout) -> None:
        """Start rows under another header."""
        self.flush()
        self.layout = new
        self.n_layouts += 1
        for name in new.unfit:
            self._note(f"{name}: its unit is none of this quantity; kept in `extra` as printed")
        for sources in new.sources.values():
            if sources[0].meaning.kind == "size" and sources[0].meaning.unit.lower() in ("mb", "gb"):
                self._note(f"{new.names[sources[0].index]}: read as 10^6 (MB) or 10^9 (GB) bytes as it says; if powers "
                           "of two are meant, 5 to 7 % more")

    def add(self, line_no: int, cells: Sequence[str]) -> None:
        """Take one row; it has as many cells as the header has names (fewer: the last ones are missing)."""
        self._rows.append((line_no, cells))
        if len(self._rows) >= BLOCK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Turn the rows held into columns."""
        if self._rows and self.layout is not None:
            self._blocks.append(self._columns(self.layout, self._rows))
        self._rows = []

    def drop_last_cell(self) -> None:
        """Take the last cell of the last row away: it may be cut."""
        if self._rows:
            line_no, cells = self._rows[-1]
            self._rows[-1] = (line_no, [*cells[:-1], ""])

    def last_row(self) -> tuple[int, Sequence[str]] | None:
        """Return the last row that is still held as text."""
        return self._rows[-1] if self._rows else None

    def _note(self, text: str) -> None:
        if text not in self.tally.notes:
            self.tally.notes.append(text)

    def _columns(self, made: Layout, rows: list[tuple[int, Sequence[str]]]) -> pd.DataFrame:
        """Turn rows into columns; those whose time cannot be read are counted as malformed."""
        n_names = len(made.names)
        if any(len(cells) < n_names for _, cells in rows):
            rows = [(line_no, [*cells, *[""] * (n_names - len(cells))]) for line_no, cells in rows]
        printed = list(zip(*(cells for _, cells in rows), strict=True))
        line_no = np.array([at for at, _ in rows], dtype=np.int64)
        columns: dict[str, object] = {"line_no": line_no}
        keep = np.ones(len(rows), dtype=bool)
        if made.time:
            stamps, keep = read_times([printed[at] for at in made.time], made.time_unit, self.times)
            columns |= stamps
            for bad in np.flatnonzero(~keep):
                self.tally.reject(int(line_no[bad]), ", ".join(rows[bad][1]), "its time cannot be read")
        self.tally.count("row", int(keep.sum()))
        for name, at in (("device", made.device), ("host", made.host), ("device_name", made.device_name)):
            if at is not None:
                columns[name] = [None if is_missing(cell) else cell.strip() for cell in printed[at]]
        if made.rank is not None:
            columns["rank"] = [None if is_missing(cell) else made.rank_form.format(cell.strip())
                               for cell in printed[made.rank]]
        taken = set(made.used)
        for column, sources in made.sources.items():
            values, index = self._best(made, column, sources, printed)
            if values is not None:
                columns[column] = values
                taken |= index - made.kept
        extra = [at for at in range(n_names) if at not in taken]
        if extra:
            columns["extra"] = _as_json([(made.names[at], printed[at]) for at in extra])
        columns["_layout"] = self.n_layouts
        return pd.DataFrame(columns).loc[keep]

    def _best(
        self, made: Layout, column: str, sources: list[_Source], printed: list[tuple[str, ...]]
    ) -> tuple[np.ndarray | None, set[int]]:
        """Return the values of the best source that has any, and the printed columns they come from."""
        is_switch = column.startswith("is_")
        found: np.ndarray | None = None
        index: set[int] = set()
        for source in sources:
            name = made.names[source.index]
            if name in self._counters:
                continue
            values = self._numbers(name, printed[source.index], source.meaning)
            largest = np.nanmax(values, initial=0.0)
            limit = SHARE_SLACK * (100 if source.meaning.unit == "?" else 1)
            if source.meaning.kind == "share" and largest > limit:
                self._counters.add(name)
                self._note(f"{name}: its values exceed 100 %: no share, maybe a counter; kept in `extra` as printed")
                continue
            if is_switch:
                found = values if found is None else np.fmax(found, values)
                index.add(source.index)
            elif found is None or np.isnan(found).all():
                found, index = values, {source.index}
                if source.meaning.unit == "?":
                    self._open.add(column)
                    self._open_names.add(name)
        return found, index

    def _numbers(self, name: str, cells: tuple[str, ...], meaning: Meaning) -> np.ndarray:
        """Read the cells of a column; each distinct text once."""
        codes, distinct = pd.factorize(np.array(cells, dtype=object))
        values, is_bad = read_values([str(text) for text in distinct], meaning)
        if is_bad.any():
            self._unread[name] += int(is_bad[codes].sum())
            self._unread_example.setdefault(name, str(distinct[is_bad][0])[:40])
        return values[codes]

    def finish(self) -> pd.DataFrame:
        """Return all rows: TELEMETRY's columns as far as the file has them, ts or t_s, and _layout.

        Shares without a unit are judged by all their values; rows keep the order of the file.
        """
        self.flush()
        table = pd.concat(self._blocks, ignore_index=True) if self._blocks else pd.DataFrame({"line_no": []})
        for name, n_cells in self._unread.most_common():
            self._note(f"{name}: {n_cells} values cannot be read, for example '{self._unread_example[name]}'; "
                       "they are missing in the table")
        for column in sorted(self._open & set(table.columns)):
            scale, why = _share_scale(table[column])
            table[column] = in_base(table[column].to_numpy(), scale)
            if why:
                self._note(f"{', '.join(sorted(self._open_names))}: {why}")
        if "host" in table.columns:
            if table["host"].nunique() > 1:
                table["device"] = table["host"].str.cat(table["device"], sep="/")
            table = table.drop(columns="host")
        return table


def _share_scale(values: pd.Series) -> tuple[float, str]:
    """Return the factor that makes shares of values without a unit, and why, in words ("" where it cannot matter)."""
    known = values.dropna()
    if known.empty or (known == 0).all():
        return 1.0, ""
    if known.max() > 1.0:
        return 0.01, "no unit is printed; read as percent, as values exceed 1"
    if known.between(0, 1, inclusive="neither").any():
        return 1.0, "no unit is printed; read as shares, as no value exceeds 1"
    return 1.0, "no unit is printed and only 0 and 1 occur; read as shares, though percent is possible"


def _as_json(columns: list[tuple[str, tuple[str, ...]]]) -> list[str | None]:
    """Return for every row the JSON object of the columns that have a value there, None if none has."""
    pieces = []
    for name, cells in columns:
        codes, distinct = pd.factorize(np.array(cells, dtype=object))
        texts = np.array(["" if is_missing(str(cell)) else f"{json.dumps(name)}: {json.dumps(str(cell).strip())}"
                          for cell in distinct], dtype=object)
        pieces.append(texts[codes])
    if len(pieces) == 1:
        return ["{" + piece + "}" if piece else None for piece in pieces[0]]
    join = partial(filter, None)
    rows = (", ".join(join(row)) for row in zip(*pieces, strict=True))
    return ["{" + row + "}" if row else None for row in rows]
