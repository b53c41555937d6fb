"""The tables that flow between stages: names, dtypes, units, meanings, and the one check.

Data flow: log -> SAMPLES, EVENTS -> INTERVALS -> LEVELS -> law records -> scorecard. Every stage calls
`check` on entry. Doubt is data (``warnings``, ``refused``, missing values); impossibility is one of the
exceptions of `errors`, which are at hand here too.

Long because the columns of every table, with unit and meaning, are the contract of all stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from helpers.errors import LogFormatError as LogFormatError
from helpers.errors import NotEnoughData as NotEnoughData
from helpers.errors import RooflogError as RooflogError
from helpers.errors import SchemaError as SchemaError
from helpers.errors import printable as printable

SCHEMA_VERSION = 1
"""Version of the tables and of scorecard.json; raised when a column or key changes its meaning."""

METHOD_VERSION = 1
"""Version of the method (clean rule, level estimate, laws); raised when the same log gives other numbers."""


@dataclass(frozen=True)
class Column:
    """One column: name, pandas dtype, unit ("" = count, label or flag), meaning, may it be missing."""

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Schema:
    """A named, ordered set of columns."""

    name: str
    purpose: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pd.DataFrame:
        """Return a table with no rows and the right dtypes."""
        return pd.DataFrame({c.name: pd.Series([], dtype=c.dtype) for c in self.columns})


def _int(name: str, meaning: str, nullable: bool = False, unit: str = "") -> Column:
    return Column(name, "Int64" if nullable else "int64", unit, meaning, nullable)


def _float(name: str, unit: str, meaning: str, nullable: bool = True) -> Column:
    return Column(name, "float64", unit, meaning, nullable)


def _text(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, "str", "", meaning, nullable)


_WHERE = (
    _text("file", "path of the input as given; '-' for standard input"),
    _int("line_no", "physical line in that file, from 1"),
    Column(
        "ts", "datetime64[us]", "", "time stamp as printed (local time of the server, no zone; a stamp without "
        "date starts at 1904-01-01, without year in 1904)", True,
    ),
    _float("t_s", "s", "seconds since the first stamp of the input, midnight and restarts unrolled"),
)

KINDS = ("prefill", "decode", "stats", "spec", "iteration", "counters", "request", "aux")
"""prefill, decode: SGLang batch lines. stats: vLLM periodic line. spec: vLLM speculation line. iteration: one
engine step. counters: difference of two counter scrapes or snapshots. request: one finished request on one slot.
aux: another line of numbers (MFU, KV transfer, prefix cache) kept in `extra`."""

SPAN_KINDS = ("iteration", "counters", "request")
"""Kinds whose records carry their own time in span_s; the others cover the time since the line before."""

SAMPLES = Schema(
    "SAMPLES",
    "one row per recognised statistic record of the log (two records on one line are two rows)",
    (
        *_WHERE,
        _text("engine", "as `rooflog engines` names it"),
        _text("rank", "rank tags as printed, e.g. 'DP0 TP0'; vLLM 'Engine 001' becomes 'DP1'", True),
        _int("server_life", "0, 1, ..: counted at each start-up of a server in an appended log"),
        _text("kind", "one of " + ", ".join(KINDS)),
        _int("running_req", "requests decoding when the line was written", True, "req"),
        _int("queue_req", "requests waiting, not yet admitted", True, "req"),
        _int("used_tok", "KV slots held by running requests (SGLang #token or #full token)", True, "tok"),
        _float("kv_used_frac", "1", "share of the KV pool in use"),
        _int("new_tok", "prompt tokens computed in this prefill forward", True, "tok"),
        _int("cached_tok", "prompt tokens taken from the prefix cache in this prefill", True, "tok"),
        _float("decode_tok_per_s", "tok/s", "generated tokens per second of wall time since the previous line"),
        _float("prefill_tok_per_s", "tok/s", "prompt tokens per second as printed (not a GPU rate)"),
        _float("accept_len", "tok", "tokens per request per round under speculation, bonus token included"),
        _float("accept_rate_frac", "1", "accept rate as printed (definition depends on the version)"),
        Column("graph", "boolean", "", "that step replayed a captured graph", True),
        _int("retracted_req", "requests whose KV was dropped", True, "req"),
        _int("transfer_req", "requests whose KV is in flight (PD)", True, "req"),
        _int("prealloc_req", "requests waiting for KV space (PD)", True, "req"),
        _int("iteration", "forward iteration number where printed", True),
        _float("span_s", "s", "time the record itself covers, as its source measured it (an iteration, the time "
               "between two scrapes, a request's decode); missing: the record covers the time since the line before"),
        _float("n_steps", "", "decode steps in span_s (1 for an iteration, a counter's difference for a scrape)"),
        _float("out_tok", "tok", "output tokens produced in span_s, all requests together (kind request: that one)"),
        _text("extra", "JSON object of every other key of the line, as printed", True),
    ),
)

EVENT_KINDS = (
    "args", "weights_loaded", "kv_allocated", "graphs_captured", "ready", "out_of_memory", "retraction",
    "preemption", "crash", "watchdog", "shutdown", "profile_start", "profile_stop", "idle", "context_shift",
)

EVENTS = Schema(
    "EVENTS",
    "one row per server event",
    (
        *_WHERE,
        _text("engine", "as `rooflog engines` names it", True),
        _text("rank", "rank tags as printed", True),
        _int("server_life", "server life the event belongs to"),
        _text("kind", "one of " + ", ".join(EVENT_KINDS)),
        _float("size_bytes", "bytes", "bytes named by the event: asked for (out_of_memory), loaded, allocated"),
        _text("detail", "JSON object of the values read from the event", True),
        _text("text", "the line, stripped of colours, at most 2,000 characters"),
    ),
)

COUNTED_BY_STAMPS = "iteration, by stamps"
"""Kind of intervals of iterations whose printed time is only a wait: their steps are counted between new stamps."""

WINDOW_KINDS = ("stats", "counters", COUNTED_BY_STAMPS)
"""Kinds that cover a fixed time and so cut steps: a level is tokens over time there, never a median."""


def is_window(intervals: pd.DataFrame) -> bool:
    """Tell whether intervals (of one engine) are windows of fixed time and not counts of steps."""
    kind = intervals["kind"].iloc[0] if "kind" in intervals else None
    return kind in WINDOW_KINDS if isinstance(kind, str) else bool(intervals["engine"].iloc[0] == "vllm")


LABELS = ("warmup", "ramp", "steady", "mixed", "drain", "idle")
"""warmup: traffic before the measured load. ramp: running_req rising, prefill at work. steady: constant
running_req, decode only. mixed: constant running_req with prefill in between. drain: running_req falling
with nothing admitted. idle: nothing ran for most of the interval."""

INTERVALS = Schema(
    "INTERVALS",
    "one row per decode or stats sample (what happened between the previous line of that rank and this one), per block "
    "of consecutive iterations, per counters record, or per piece of time with the same requests decoding",
    (
        *_WHERE,
        _text("engine", "as `rooflog engines` names it"),
        _text("rank", "rank tags as printed", True),
        _int("server_life", "server life"),
        _text("kind", "kind of the records it rests on: decode, stats, iteration, counters, request; "
              f"'{COUNTED_BY_STAMPS}' where iterations print only a wait", True),
        _text("rank_group", "ranks that were combined into this row's group, e.g. 'DP0+DP1', or 'all'"),
        _int("running_req_printed", "running_req on the line", unit="req"),
        _float("running_req", "req", "mean running requests that set the step (lockstep maximum over DP ranks; "
               "micro-batch x stages under PP)", False),
        _float("running_req_total", "req", "running requests of the whole server (sum over DP ranks)"),
        _int("queue_req", "requests waiting", True, "req"),
        _int("used_tok", "KV slots held", True, "tok"),
        _float("context_tok", "tok", "mean context per running request, where the log tells"),
        _float("decode_tok_per_s", "tok/s", "rate on the line"),
        _float("accept_len", "tok", "tokens per request per round; missing without speculation"),
        Column("graph", "boolean", "", "captured graph replayed", True),
        _float("n_steps", "", "decode steps in the interval, where known"),
        _float("interval_s", "s", "wall time since the previous line of that rank (tokens over rate where steady); "
               "iterations: by the stamps, gaps between iterations included"),
        _float("idle_s", "s", "part of it in which nothing ran, where the log tells", False),
        _float("step_s", "s", "running_req x accept_len / rate, or the record's own time over its steps: step time, "
               "round time under speculation; a step time only if clean"),
        _float("prefill_tok", "tok", "prompt tokens computed or credited in the interval", False),
        _int("episode", "load episode within the server life: from an empty batch to the next one of another load"),
        _text("label", "one of " + ", ".join(LABELS)),
        Column("clean", "bool", "", "nothing but decode steps of a constant batch happened"),
        _text("why", "the rule that decided"),
    ),
)

LEVELS = Schema(
    "LEVELS",
    "one row per value of running_req that was seen, per server life, rank group and population",
    (
        _int("server_life", "server life"),
        _text("rank_group", "group of ranks"),
        _int("population", "0 = the population used; 1, 2, ..: others at the same running_req, never averaged"),
        _float("running_req", "req", "the level", False),
        _float("running_req_total", "req", "running requests of the whole server at that level"),
        _int("n_clean", "clean intervals"),
        _float("clean_s", "s", "wall time of the clean intervals"),
        _float("step_s", "s", "step time (round time under speculation); missing where no interval could tell"),
        _float("step_s_lo", "s", "lower end of its interval"),
        _float("step_s_hi", "s", "upper end of its interval"),
        _float("decode_tok_per_s", "tok/s", "tokens over time at that level, whole server"),
        _float("context_tok", "tok", "mean context per running request"),
        _float("accept_len", "tok", "mean tokens per request per round"),
        Column("graph", "boolean", "", "captured graph replayed", True),
        _text("method", "how step_s was found: median_of_blocks, ratio_of_sums, prefill_corrected, table, none"),
        _float("cv_frac", "1", "scatter of the clean intervals: robust standard deviation over median"),
        Column("is_fitted", "bool", "", "enters the law"),
        _text("n_rejected", "JSON object: rejected intervals at this running_req, by reason"),
        _text("note", "why it is not fitted, or what was odd; empty if nothing", True),
    ),
)

MOMENTS = Schema(
    "MOMENTS",
    "one row per snapshot of a server's cumulative decode sums (SGLang decode_moments); sums since its start",
    (
        *_WHERE,
        _text("engine", "sglang"),
        _text("rank", "rank the sums belong to, e.g. 'DP0'", True),
        _int("server_life", "server life; sums start at 0 with each"),
        _float("n", "", "decode steps counted so far", False),
        _float("sum_b", "req", "sum of the steps' running requests B", False),
        _float("sum_t_s", "s", "sum of the steps' times T", False),
        _float("sum_bb", "req2", "sum of B x B", False),
        _float("sum_bt_s", "req s", "sum of B x T", False),
        _float("sum_g", "tok", "sum of the tokens generated", False),
    ),
)

SCHEMAS = (SAMPLES, EVENTS, INTERVALS, LEVELS, MOMENTS)


def check(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Check a table against its schema; return it unchanged.

    Parameters
    ----------
    table : DataFrame
        Any number of rows; columns beyond the schema are not allowed.
    schema : Schema
        SAMPLES, EVENTS, INTERVALS or LEVELS.

    Returns
    -------
    DataFrame
        The same object, so that a stage can write ``samples = check(samples, SAMPLES)``.

    Raises
    ------
    SchemaError
        Names the table, the column, what was expected and what was found.
    """
    missing = [name for name in schema.names if name not in table.columns]
    unknown = [name for name in table.columns if name not in schema.names]
    if missing or unknown:
        raise SchemaError(
            f"{schema.name}: missing columns {missing}, unknown columns {unknown}; "
            "build the table with schema.conform"
        )
    for column in schema.columns:
        found = str(table[column.name].dtype)
        if found != column.dtype:
            raise SchemaError(f"{schema.name}.{column.name}: expected dtype {column.dtype}, found {found}")
        if not column.nullable and table[column.name].isna().any():
            row = int(np.flatnonzero(table[column.name].isna())[0])
            raise SchemaError(f"{schema.name}.{column.name}: expected no missing value, found one in row {row}")
    return table


def conform(table: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Order columns, add missing nullable ones as missing, and cast to the schema's dtypes.

    Parameters
    ----------
    table : DataFrame
        Any subset of the schema's columns that holds all non-nullable ones.
    schema : Schema
        Target.

    Returns
    -------
    DataFrame
        A new table with a fresh index that passes `check`.

    Raises
    ------
    SchemaError
        A non-nullable column is absent or a value does not fit its dtype.
    """
    columns = {}
    for column in schema.columns:
        if column.name in table.columns:
            values = table[column.name]
        elif column.nullable:
            values = pd.Series([None] * len(table), index=table.index, dtype="object")
        else:
            raise SchemaError(f"{schema.name}.{column.name}: expected the column, found none")
        try:
            columns[column.name] = values.astype(column.dtype)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            raise SchemaError(f"{schema.name}.{column.name}: expected {column.dtype}: {error}") from error
    return check(pd.DataFrame(columns).reset_index(drop=True), schema)


def data_dictionary() -> str:
    """Return the column dictionary of all tables as Markdown (the block in data/README.md)."""
    lines = []
    for schema in SCHEMAS:
        lines += [f"### {schema.name}", "", f"{schema.purpose[0].upper()}{schema.purpose[1:]}.", ""]
        lines += ["| column | dtype | unit | may be missing | meaning |", "|---|---|---|---|---|"]
        for c in schema.columns:
            missing = "yes" if c.nullable else "no"
            lines.append(f"| {c.name} | {c.dtype} | {c.unit} | {missing} | {c.meaning.replace('|', '/')} |")
        lines.append("")
    return "\n".join(lines)


@dataclass(frozen=True)
class Parameter:
    """A fitted parameter in base units with its interval; lo and hi are NaN where none can be given."""

    name: str
    value: float
    lo: float
    hi: float
    unit: str


@dataclass(frozen=True)
class LawFit:
    """A model of step time over running requests, with what it can and cannot claim.

    Attributes
    ----------
    law : str
        constant, linear, sqrt, moe, hinge, quadratic or roofline.
    parameters : tuple of Parameter
        Base units (s, s/req, ...). Empty when refused.
    dof : int
        Levels minus parameters; the t quantile of every interval uses it.
    n_levels : int
        Levels fitted.
    running_req_min, running_req_max : float
        Range of the data [req].
    loo_error_frac : float
        Median leave-one-level-out relative error at inner levels [1]; NaN below four levels.
    loo_error_top_frac : float
        The same for the highest level predicted from the ones below [1].
    rms_error_frac : float
        Relative residual of the fit [1].
    asymptote_tok_per_s, asymptote_tok_per_s_lo, asymptote_tok_per_s_hi : float
        1 / slope of the linear law; NaN where the law has no asymptote or the slope's interval holds 0.
    half_load_req, half_load_req_lo, half_load_req_hi : float
        running_req at which half of the asymptote is reached, intercept / slope [req].
    warnings : tuple of str
        Doubts a reader must see.
    refused : str or None
        Why no law is claimed; the levels stay.
    """

    law: str
    parameters: tuple[Parameter, ...] = ()
    dof: int = 0
    n_levels: int = 0
    running_req_min: float = np.nan
    running_req_max: float = np.nan
    loo_error_frac: float = np.nan
    loo_error_top_frac: float = np.nan
    rms_error_frac: float = np.nan
    asymptote_tok_per_s: float = np.nan
    asymptote_tok_per_s_lo: float = np.nan
    asymptote_tok_per_s_hi: float = np.nan
    half_load_req: float = np.nan
    half_load_req_lo: float = np.nan
    half_load_req_hi: float = np.nan
    confidence: float = 0.95
    warnings: tuple[str, ...] = ()
    refused: str | None = None
    predict_step_s: Callable[[np.ndarray], np.ndarray] | None = field(default=None, compare=False, repr=False)

    def __getitem__(self, name: str) -> Parameter:
        """Return a parameter by name; KeyError names the ones that exist."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(f"{self.law} has no parameter {name!r}; it has {[p.name for p in self.parameters]}")

    def is_extrapolated(self, running_req: float) -> bool:
        """Tell whether a prediction at running_req [req] leaves the range of the data."""
        return not self.running_req_min <= running_req <= self.running_req_max


@dataclass(frozen=True)
class Fits:
    """Every law tried on one set of levels: the straight line, the selected law, and why.

    Attributes
    ----------
    linear : LawFit
        Relative-weighted straight line (parameters ``intercept_s``, ``slope_s_per_req``), always tried.
    selected : LawFit
        The law the data support best; the linear one where nothing better can be told.
    candidates : tuple of LawFit
        All laws tried, the selected one among them.
    selection : str
        The rule that selected, in words.
    is_named : bool
        The levels support calling the selected law by its name; False: it is used, not claimed.
    crosschecks : mapping
        Name -> (intercept_s, slope_s_per_req): ols, throughput_space, theil_sen, huber_log, naive_ticks.
    context : LawFit or None
        Joint fit in running_req and context where separable; its ``refused`` says why not.
    prediction : LawFit or None
        The law to predict with. It makes no claim about the server; its left-out errors are those of the whole rule,
        the law chosen again without the level left out. None where no law is fitted.
    rounding_envelope : mapping
        Hand-typed tables only: ``intercept_s`` and ``slope_s_per_req`` -> (lo, hi) that the last printed digit allows.
    """

    linear: LawFit
    selected: LawFit
    candidates: tuple[LawFit, ...]
    selection: str
    is_named: bool = True
    crosschecks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    context: LawFit | None = None
    prediction: LawFit | None = None
    rounding_envelope: Mapping[str, tuple[float, float]] = field(default_factory=dict)
