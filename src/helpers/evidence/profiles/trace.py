"""Read a PyTorch profiler trace (Chrome trace JSON) as a stream: memory for what is kept, not for the file."""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import ijson  # type: ignore[import-untyped]
import numpy as np

from helpers.evidence.profiles.annotations import Annotations
from helpers.evidence.profiles.kernel_roles import operator_role, role_of
from helpers.evidence.profiles.recording import Recording, Shape
from helpers.evidence.profiles.timeline import NO_NUMBER, Floats, Timeline
from helpers.evidence.profiles.trace_events import TraceEvents
from helpers.evidence.reading import Tally, pieces
from helpers.schema import LogFormatError

TOOL = "torch profiler"

US = 1e-6
"""Seconds per unit of ts and dur (Chrome trace event format; pytorch/kineto@114171d)."""

# Spelling of recent and of old (before 2022) PyTorch. gpu_user_annotation spans kernels: never added to their time.
_KERNEL = {"kernel"}
_COPY = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "xpu_runtime"}
_OPERATOR = {"cpu_op", "operator"}

TYPE_BYTES = {
    "c10::bfloat16": 2, "c10::half": 2, "float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1, "c10::float8_e4m3fn": 1, "c10::float8_e4m3fnuz": 1,
    "c10::float8_e5m2": 1, "c10::float8_e5m2fnuz": 1, "c10::float8_e8m0fnu": 1, "c10::float4_e2m1fn_x2": 1,
    "c10::complex<float>": 8, "unsigned int": 4, "unsigned short": 2, "unsigned long": 8,
}
"""Bytes of one element by the type as printed, in lower case (torch/csrc/profiler: names of C++ types)."""

VIEWS = {f"aten::{name}" for name in (
    "as_strided", "view", "slice", "select", "unbind", "split", "split_with_sizes", "chunk", "t", "transpose",
    "permute", "expand", "expand_as", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "narrow", "detach", "alias",
    "unflatten", "flatten", "view_as", "lift_fresh", "resolve_conj", "resolve_neg", "_unsafe_view")}
"""Operators that move no data: their shapes are those of others."""

MAX_SHAPES = 50_000
"""Different operators with their shapes kept; more are counted as dropped."""

MAX_SHAPES_SHOWN = 500
HEAD_BYTES = 2**22
"""Where the devices are looked for: they come before the events."""

_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_TAIL_BYTES = 4096


def read_trace(path: str | Path, progress: Callable[[int, int], None] | None = None) -> Recording:
    """Read a trace of the PyTorch profiler.

    Parameters
    ----------
    path : path
        .json, .json.gz or .json.zst; an object with ``traceEvents``, or the bare list of events.
    progress : function, optional
        Called with the bytes of the file read so far, and all of them.

    Returns
    -------
    Recording
        With a timeline. The tally counts events: "row" is a kernel or a copy, "other" any other.

    Raises
    ------
    LogFormatError
        The file is no JSON, is cut off, or holds no events of a trace.
    """
    reader = _Reader(str(path))
    for event in _events(path, reader, progress):
        reader.take(event)
    if not reader.n_phased:
        raise LogFormatError(f"{path}: expected a trace with events in \"traceEvents\", found none: is this a trace of "
                             "torch.profiler (export_chrome_trace)?")
    return reader.recording()


def _events(path: str | Path, reader: _Reader, progress: Callable[[int, int], None] | None) -> Iterator[object]:
    """Yield the events of a file, one at a time."""
    total, n_bytes, head, tail = os.path.getsize(path), 0, b"", b""
    devices = ijson.sendable_list()
    events: TraceEvents | None = None
    device_parser = None
    try:
        for piece, n_read in pieces(path):
            if events is None:
                head += piece
                if not (start := head.lstrip(b"\xef\xbb\xbf \t\r\n")):
                    continue
                is_list, piece = start[:1] == b"[", start
                events = TraceEvents(is_list=is_list)
                if not is_list:
                    device_parser = ijson.items_coro(devices, "deviceProperties.item", use_float=True)
            n_bytes += len(piece)
            if device_parser is not None and n_bytes <= HEAD_BYTES:
                device_parser.send(piece)
                device_parser = None if devices and reader.tally.lines_total else device_parser
            tail = tail[-_TAIL_BYTES:] + piece
            reader.set_base(tail)
            yield from events.take(piece)
            if progress:
                progress(n_read, total)
        if events is None:
            raise LogFormatError(f"{path}: expected a trace, found an empty file")
        yield from events.close()
    except (ijson.JSONError, UnicodeDecodeError) as error:
        raise LogFormatError(
            f"{path}: expected JSON to its end, found {_what_is_wrong(str(error))} within the first {n_bytes} "
            f"bytes (unpacked), after {reader.tally.lines_total} events; copy the file again, or wait until the "
            "profiler has written it") from error
    reader.devices = [device for device in devices if isinstance(device, dict)]


def _what_is_wrong(parser_says: str) -> str:
    """Put the parser's error into words; it draws an arrow under the place."""
    said = parser_says.strip().split("\n")[0].strip()
    is_cut = "premature EOF" in said or "ncomplete" in said
    return "the end of the file inside a value: it is cut off," if is_cut else f"no JSON ({said[:80]})"


def _number(value: object) -> float:
    """Return a number, or NaN: old exporters write numbers as text."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def _whole(value: object) -> int:
    found = _number(value)
    return int(found) if math.isfinite(found) and abs(found) < 2**62 else NO_NUMBER


def blocks_of(name: str, arguments: dict[str, object]) -> int:
    """Return the thread blocks of a launch, or NO_NUMBER.

    Tensile kernels (Cijk_...) are launched by hipExtModuleLaunchKernel, which counts threads, not blocks:
    tracelens/sglang_prefilldecode prints grid 491520 at block 256 for a tile of 256 x 192 over 15360 x 6144, which
    are 60 x 32 = 1920 = 491520 / 256 blocks.
    """
    grid, block = arguments.get("grid"), arguments.get("block")
    if not isinstance(grid, list) or not grid:
        return NO_NUMBER
    n = math.prod(_number(size) for size in grid)
    if name.startswith("Cijk_"):
        if not isinstance(block, list):
            return NO_NUMBER
        n = n / max(math.prod(_number(size) for size in block), 1.0)
    return int(n) if math.isfinite(n) and 0 < n < 2**62 else NO_NUMBER


class _Reader:
    """Takes events one by one and keeps what is needed of them, in compact columns."""

    def __init__(self, path: str) -> None:
        self.tally, self.timeline, self.annotations = Tally(path), Timeline(), Annotations()
        self.devices: list[dict[str, object]] = []
        self._zero_us, self._base_ns, self.n_phased = math.nan, 0, 0
        self._launch, self._launch_s = array("q"), array("d")
        self._operator, self._operator_shape = array("q"), array("i")
        self._shapes: dict[tuple[str, str, str], int] = {}
        self._dims: list[tuple[str, list[object], list[object]]] = []
        self._n_shapes_dropped = 0

    def set_base(self, text: bytes) -> None:
        """Look for the time that stamps count from."""
        if not self._base_ns and (found := _BASE.search(text)):
            self._base_ns = int(found[1])

    def take(self, event: object) -> None:
        """Take one event: count it, and keep what it tells."""
        if not isinstance(event, dict):
            self.tally.reject(self.tally.lines_total + 1, str(event), "an event that is no object")
            return
        self.n_phased += "ph" in event
        kind = str(event.get("cat", "")).lower()
        if event.get("ph") != "X" or kind not in _TAKEN:
            self.tally.count("other")
            return
        ts_us, dur_us = _number(event.get("ts")), _number(event.get("dur"))
        is_on_device = kind in _KERNEL or kind in _COPY
        if not (math.isfinite(ts_us) and dur_us >= 0 and math.isfinite(dur_us)):
            if is_on_device:
                self.tally.reject(self.tally.lines_total + 1, str(event), "ts or dur is no time")
            else:
                self.tally.count("other")
            return
        if math.isnan(self._zero_us):
            self._zero_us = ts_us
        # Relative before scaling: stamps of 1e15 us lose a quarter microsecond as it is.
        start_s, duration_s = (ts_us - self._zero_us) * US, dur_us * US
        name, arguments = str(event.get("name", "")), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if is_on_device:
            self._take_entry(event, name, arguments, kind in _COPY, start_s, duration_s)
            return
        self.tally.count("other")
        if kind in _RUNTIME:
            if (correlation := _whole(arguments.get("correlation"))) != NO_NUMBER:
                self._launch.append(correlation)
                self._launch_s.append(start_s)
        elif kind in _OPERATOR:
            self._take_operator(name, arguments)
        else:
            self.annotations.take(name, str(event.get("pid", "")), start_s, duration_s)

    def _take_entry(self, event: dict[str, object], name: str, arguments: dict[str, object], is_copy: bool,
                    start_s: float, duration_s: float) -> None:
        self.tally.count("row")
        device = arguments.get("device", event.get("pid"))
        operator = arguments.get("External id", arguments.get("external id"))
        self.timeline.add(name, "" if device is None else str(device),
                          NO_NUMBER if is_copy else blocks_of(name, arguments), is_copy, start_s, duration_s,
                          _whole(arguments.get("correlation")), _whole(operator))

    def _take_operator(self, name: str, arguments: dict[str, object]) -> None:
        if name in VIEWS:
            return
        dims, types = arguments.get("Input Dims"), arguments.get("Input type")
        if not isinstance(dims, list) or not any(dims):
            return
        types = types if isinstance(types, list) else []
        key = (name, str(dims), str(types))
        if key not in self._shapes:
            if len(self._dims) >= MAX_SHAPES:
                self._n_shapes_dropped += 1
                return
            self._shapes[key] = len(self._dims)
            self._dims.append((name, dims, types))
        operator = _whole(arguments.get("External id", arguments.get("external id")))
        if operator != NO_NUMBER:
            self._operator.append(operator)
            self._operator_shape.append(self._shapes[key])

    def recording(self) -> Recording:
        """Return everything read."""
        launched_s = _looked_up(self.timeline.column("correlation"), self._launch, self._launch_s)
        shape = _looked_up(self.timeline.column("operator"), self._operator, self._operator_shape)
        has_shape, n_shapes = ~np.isnan(shape), max(len(self._dims), 1)
        pairs = np.unique(self.timeline.column("key")[has_shape].astype(np.int64) * n_shapes
                          + shape[has_shape].astype(np.int64))
        names = list(self.timeline.keys)
        of_key: dict[int, list[object]] = {}
        roles: dict[str, str] = {}
        for key, number in zip((pairs // n_shapes).tolist(), (pairs % n_shapes).tolist(), strict=True):
            of_key.setdefault(key, []).append([dims for dims in self._dims[number][1] if dims])
            if not names[key][3]:
                roles.setdefault(self._dims[number][0], role_of(names[key][0]))
        family, marked, notes = self.annotations.steps()
        if self._n_shapes_dropped:
            notes.append(f"{self._n_shapes_dropped} operators with shapes beyond the first {MAX_SHAPES} different ones "
                         "are left out")
        if self.timeline.n_grids_dropped:
            notes.append(f"{self.timeline.n_grids_dropped} launches are kept without their grid: too many differ")
        if self.annotations.n_without_work:
            notes.append(f"{self.annotations.n_without_work} annotated steps without a request are not counted")
        self.tally.notes.append("counted are events of the trace; a row is a kernel or a copy")
        epoch_s = self._base_ns * 1e-9 + self._zero_us * US if self._base_ns else math.nan
        return Recording(
            TOOL, self.tally, self.timeline, marked=marked, mark_name=family, launched_s=launched_s,
            is_draft=self.annotations.is_draft(launched_s), shapes_of_key=of_key, shapes=_largest(self._dims, roles),
            n_sms=_n_sms(self.devices), start_epoch_s=epoch_s, notes=notes)


_TAKEN = _KERNEL | _COPY | _RUNTIME | _OPERATOR | {"user_annotation"}


def _looked_up(wanted: np.ndarray, keys: array[int], values: array[float] | array[int]) -> Floats:
    """Return the value of each wanted key, NaN where there is none."""
    if not len(keys):
        return np.full(len(wanted), np.nan)
    known = np.frombuffer(keys, dtype=keys.typecode)
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    found = np.frombuffer(values, dtype=values.typecode)[order[at]].astype(np.float64)
    return np.where((known[order[at]] == wanted) & (wanted != NO_NUMBER), found, np.nan)


def _n_sms(devices: list[dict[str, object]]) -> float:
    """Return the multiprocessors of a device if all have as many: ROCm numbers devices of kernels differently."""
    counts = {_number(device.get("numSms")) for device in devices}
    return counts.pop() if len(counts) == 1 else math.nan


def _largest(operators: list[tuple[str, list[object], list[object]]], roles: dict[str, str]) -> list[Shape]:
    """Return the tensors of the operators, largest first, each kind of operator and tensor once."""
    found: set[Shape] = set()
    for name, dims, types in operators:
        role = operator_role(name)
        role = roles.get(name, role) if role == "unclassified" else role
        for at, size in enumerate(dims):
            kind = str(types[at]).lower() if at < len(types) else ""
            if isinstance(size, list) and size and kind in TYPE_BYTES and all(isinstance(n, int) for n in size):
                found.add((role, name, tuple(size), math.prod(size) * TYPE_BYTES[kind]))
    return sorted(found, key=lambda shape: (-shape[3], shape))[:MAX_SHAPES_SHOWN]
