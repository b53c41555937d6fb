"""How devices are connected: `nvidia-smi topo -m`, `nvidia-smi -q`, `lspci -vv`, also one after another in a file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from helpers.evidence.links.prints import LspciReader, SmiReader
from helpers.evidence.links.state import device_notes, link_rows
from helpers.evidence.reading import Tally, lines
from helpers.schema import LINKS, LogFormatError, conform

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU[0-9]+|NIC[0-9]+|[a-z]+[a-z0-9]*_[0-9]+")
_KIND = re.compile(r"NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC")
_PEER_ACCESS = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Cells of `nvidia-smi topo -p2p`: peer access and why there is none."""

_LEGEND = re.compile(r"\s*(?:NIC )?Legend:|\s+(?:X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV#)\s+= ")
_NIC_NAME = re.compile(r"\s+(NIC[0-9]+): (\S+)\s*$")
_OLD_KINDS = {"SOC": "SYS"}
"""Names that drivers before 396 print -> today's."""


@dataclass(frozen=True)
class Topology:
    """How the devices of a machine are connected.

    Attributes
    ----------
    links : DataFrame, schema LINKS
        A row per pair, then a row per link state.
    tally : Tally
        Where every line of the file went.
    devices : tuple of str
        Accelerators as named: 'GPU0' by a matrix, a bus address by a link state.
    notes : tuple of str
        Power limits, reasons that held clocks down, what was doubtful.
    """

    links: pd.DataFrame
    tally: Tally
    devices: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Matrix:
    """The matrix being read, and the pairs of all that were read."""

    columns: list[str] = field(default_factory=list)
    pairs: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    peer_access: Counter[str] = field(default_factory=Counter)
    nics: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    n: int = 0

    def read(self, line_no: int, line: str) -> str | None:
        """Return the class of a line, "malformed: ..." included, or None where it is not of a matrix."""
        tokens = line.split()
        if not tokens:
            return None
        names = tokens[: tokens.index("CPU")] if "CPU" in tokens else tokens
        # A header is shifted to the right by its empty first cell.
        if names and line[:1] in (" ", "\t") and names[0].startswith("GPU") and all(map(_DEVICE.fullmatch, names)):
            self.n += 1
            self.columns = names
            self.devices += [name for name in names if name.startswith("GPU") and name not in self.devices]
            return "header"
        if self.columns and tokens[0] in self.columns:
            return self._row(line_no, tokens[0], tokens[1 : 1 + len(self.columns)])
        nic = _NIC_NAME.match(line)
        if nic and self.n:
            self.nics[nic[1]] = nic[2]
            return "other"
        return "other" if self.n and _LEGEND.match(line) else None

    def _row(self, line_no: int, name: str, cells: list[str]) -> str:
        if len(cells) < len(self.columns):
            return f"malformed: expected {len(self.columns)} cells, found {len(cells)}"
        others = [(peer, cell) for peer, cell in zip(self.columns, cells, strict=True) if peer != name]
        if any(cell in _PEER_ACCESS for _, cell in others):
            own = self.columns.index(name)
            self.peer_access.update(cell for peer, cell in others if self.columns.index(peer) > own)
            return "other"
        wrong = [cell for _, cell in others if not _KIND.fullmatch(cell)]
        if wrong or cells[self.columns.index(name)] != "X":
            return f"malformed: expected X and NVn, PIX, PXB, PHB, NODE or SYS, found {(wrong or cells)[0]!r}"
        for peer, cell in others:
            self._keep(line_no, name, peer, _OLD_KINDS.get(cell, cell))
        return "row"

    def _keep(self, line_no: int, name: str, peer: str, kind: str) -> None:
        first, second = sorted((name, peer), key=self.columns.index)
        known = self.pairs.setdefault((first, second), (line_no, kind))
        if known[1] != kind:
            self.notes.append(f"{first} and {second}: {known[1]} in line {known[0]}, {kind} in line {line_no}; "
                              "the first is used")

    def all_notes(self) -> list[str]:
        notes = list(self.notes)
        if len(self.devices) == 1:
            notes.append("one device: there is no pair to connect")
        if self.nics:
            notes.append("network cards: " + ", ".join(f"{nic} is {name}" for nic, name in self.nics.items()))
        if self.peer_access:
            counts = ", ".join(f"{cell} for {n}" for cell, n in sorted(self.peer_access.items()))
            notes.append(f"peer access (topo -p2p): {counts} of {self.peer_access.total()} pairs")
        return notes


def read_topology(path: str | Path) -> Topology:
    """Read how devices are connected and what state their links were in.

    Parameters
    ----------
    path : path
        Output of `nvidia-smi topo -m`, `nvidia-smi -q`, `lspci -vv`, or several of them in one file, in any order;
        plain, .gz or .zst.

    Returns
    -------
    Topology
        Pairs are named once, in the order of the matrix. ``is_under_load`` of a link state is true only if the same
        print shows work (`link_state.told_load`).

    Raises
    ------
    LogFormatError
        The file cannot be read, or holds none of the three.
    """
    tally = Tally(str(path))
    matrix, smi, lspci = _Matrix(), SmiReader(), LspciReader()
    for line_no, raw in lines(path):
        line = _ESCAPES.sub("", raw)
        found = smi.read(line_no, line) or matrix.read(line_no, line) or lspci.read(line_no, line) or "other"
        if found.startswith("malformed: "):
            tally.reject(line_no, line, found.removeprefix("malformed: "))
        else:
            tally.count(found)
    if not (matrix.n or smi.prints or lspci.prints):
        raise LogFormatError(
            f"{path}: expected the output of `nvidia-smi topo -m`, `nvidia-smi -q` or `lspci -vv`, found none of them "
            f"in {tally.lines_total} lines; save one of them as it is printed"
        )
    ports = lspci.with_ports()
    rows: list[dict[str, object]] = [
        {"file": str(path), "line_no": line_no, "device": first, "peer": second, "kind": kind, "is_under_load": None,
         "why": "how devices are connected does not depend on load"}
        for (first, second), (line_no, kind) in matrix.pairs.items()
    ]
    rows += link_rows([*smi.prints, *ports], str(path))
    notes = [*matrix.all_notes(), *device_notes(smi.prints)]
    if lspci.is_denied and not ports:
        notes.append("lspci was not allowed to read link states: run it as root")
    if tally.malformed:
        notes.append(f"{tally.lines['malformed']} lines cannot be read, the first is line {tally.malformed[0][0]}: "
                     f"{tally.malformed[0][2]}")
    tally.notes += notes
    devices = [*matrix.devices, *(p.device for p in smi.prints), *(p.device for p in ports if not p.is_bridge)]
    table = conform(pd.DataFrame(rows), LINKS) if rows else LINKS.empty()
    return Topology(table, tally, tuple(dict.fromkeys(devices)), tuple(notes))
