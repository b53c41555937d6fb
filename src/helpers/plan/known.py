"""What a plan may know about the server it is made for; everything may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from helpers.display import level_key

ASSUMED_STEP_S = 0.05
"""Step taken where no level was measured [s]: between the 12 ms of tuned servers and the 0.5 s of field case A."""

ASSUMED_PROMPT_TOK = 256
"""Prompt of a test load where the measured one is not known [tok]: that of field case A."""

PREFERRED_REQ = 16
"""Level a test is run at if it was measured [req]: the slope counts there and a wave stays short (physics.md 4.2)."""


MOST = 1 << 40
"""No count or length of a server is larger."""


class Known:
    """Read facts of a deployment by name; a value of the wrong kind counts as missing.

    Parameters
    ----------
    values : mapping
        engine, engine_version, model, hardware, tp, dp, ep, gpus, context_length_max [tok], captured_batch_sizes [req],
        max_running_requests [req], prompt_tokens, output_tokens [tok], accept_len [tok], num_draft_tokens [tok],
        startup_s [s], prefill_tok_per_s [tok/s], cuda_graph_enabled, kv_cache_dtype, quantization, power_limit_w [W],
        levels (sequence of {running_req, step_s}), law (callable N -> step_s, or the pair (a, b) in s and s/req),
        target_step_s (mapping of level -> s), components (rows of the component table), args (server arguments),
        weight_bytes (whole model), mem_bytes (one device) [bytes],
        has_telemetry, has_profile, ... Any may be missing.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        points = values.get("levels")
        self.levels: dict[float, float] = {}
        for row in points if isinstance(points, Sequence) and not isinstance(points, str) else ():
            if isinstance(row, Mapping):
                running_req, step_s = positive(row.get("running_req")), positive(row.get("step_s"))
                if running_req is not None and step_s is not None:
                    self.levels.setdefault(running_req, step_s)
        self.line = self._line()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a fact as it is."""
        value = self.values.get(name)
        return default if value is None else value

    def number(self, name: str) -> float | None:
        """Return a fact as a finite number above zero, else None."""
        return positive(self.values.get(name))

    def whole(self, name: str, default: int = 0) -> int:
        """Return a fact as a whole number from 1 to MOST, else the default."""
        value = self.number(name)
        return default if value is None or not 1 <= value <= MOST else int(value)

    def text(self, name: str) -> str:
        """Return a fact as text; empty where unknown."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool | None:
        """Return a fact that is true or false, None where unknown."""
        value = self.values.get(name)
        return bool(value) if isinstance(value, bool | int) else None

    @property
    def args(self) -> Mapping[str, Any]:
        """Arguments of the server of the log; empty where unknown."""
        value = self.values.get("args")
        return value if isinstance(value, Mapping) else {}

    @property
    def engine(self) -> str:
        """The engine in lower case; empty where unknown."""
        return self.text("engine").lower()

    def sizes(self) -> list[int]:
        """Batch sizes with a captured graph, ascending [req]; empty where unknown."""
        sizes = self.values.get("captured_batch_sizes")
        if not isinstance(sizes, Sequence) or isinstance(sizes, str):
            return []
        return sorted({int(size) for size in sizes if positive(size) is not None})

    def _line(self) -> tuple[float, float] | None:
        """Return a and b of step = a + b N [s, s/req] from the law, or from the ends of the levels; else None."""
        law = self.values.get("law")
        if isinstance(law, Sequence) and not isinstance(law, str) and len(law) == 2:
            a_s, b_s = finite(law[0]), finite(law[1])
            if a_s is not None and b_s is not None and a_s + b_s > 0:
                return max(a_s, 0.0), max(b_s, 0.0)
        ends = sorted(self.levels)
        if len(ends) < 2:
            return None
        lo, hi = ends[0], ends[-1]
        b_s = max((self.levels[hi] - self.levels[lo]) / (hi - lo), 0.0)
        return max(self.levels[lo] - b_s * lo, 0.0), b_s

    def step_s(self, running_req: float) -> float | None:
        """Return the step at a level [s]: measured, else from the law, else from the line; None where none is known."""
        if running_req in self.levels:
            return self.levels[running_req]
        law = self.values.get("law")
        if callable(law):
            return positive(law(running_req))
        if self.line is not None:
            return positive(self.line[0] + self.line[1] * running_req)
        return next(iter(self.levels.values()), None)

    def slope_frac(self, running_req: float) -> float | None:
        """Return the share of the step at a level that grows with the level: b N / (a + b N); None without a line."""
        if self.line is None:
            return None
        a_s, b_s = self.line
        return b_s * running_req / (a_s + b_s * running_req)

    def excess_frac(self, running_req: float) -> float | None:
        """Return the share of the step above the roofline's target; None where either is unknown."""
        targets = self.values.get("target_step_s")
        target_s = positive(targets.get(level_key(running_req))) if isinstance(targets, Mapping) else None
        step_s = self.step_s(running_req)
        return None if target_s is None or step_s is None else max(0.0, 1 - target_s / step_s)

    def component_s(self, name: str) -> float | None:
        """Return the time of a component at the highest level that has it [s]."""
        rows = self.values.get("components")
        found = [(positive(row.get("running_req")) or 0.0, finite(row.get("time_s")))
                 for row in (rows if isinstance(rows, Sequence) and not isinstance(rows, str) else ())
                 if isinstance(row, Mapping) and row.get("name") == name]
        return max(found, key=lambda item: item[0])[1] if found else None

    @property
    def limit_req(self) -> int:
        """The admission limit [req]; a large number where unknown."""
        return self.whole("max_running_requests", 1 << 20)

    def test_req(self) -> int:
        """Return the level at which tests are run [req]: the measured one nearest to PREFERRED_REQ."""
        whole = [int(level) for level in self.levels if float(level).is_integer()]
        chosen = min(whole, key=lambda level: (abs(math.log(level / PREFERRED_REQ)), -level), default=PREFERRED_REQ)
        return max(1, min(chosen, self.limit_req))


def positive(value: Any) -> float | None:
    """Return a finite number above zero, else None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def finite(value: Any) -> float | None:
    """Return a finite number, else None; a flag is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's numbers are Real too
        return None
    value = float(value)
    return value if math.isfinite(value) else None


def from_card(card: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Collect what a scorecard knows, in the names that `choose` and `script` take.

    Parameters
    ----------
    card : mapping
        A scorecard. ``run.facts``, where a run wrote it, holds the facts of the log, server arguments included.
    facts : mapping, optional
        What the user knows: it wins; ``parallel`` is spread into tp, dp, pp, ep.

    Returns
    -------
    dict
        See `Known`.
    """
    run, fit, roofline = (_mapping(card.get(name)) for name in ("run", "fit", "roofline"))
    known: dict[str, Any] = {name: run.get(name) for name in ("engine", "engine_version", "model", "hardware")}
    known |= _mapping(run.get("parallel")) | {k: v for k, v in _mapping(run.get("facts")).items() if v is not None}
    levels = [row for row in card.get("levels") or [] if isinstance(row, Mapping)]
    known["levels"] = [row for row in levels if row.get("is_fitted") is not False] or levels
    if fit.get("refused") is None and fit.get("intercept_s") is not None:
        known["law"] = (fit["intercept_s"], fit.get("slope_s_per_req"))
    known["law_refused"] = fit.get("refused")
    known["target_step_s"] = _mapping(_mapping(roofline.get("target")).get("step_s"))
    known["components"] = card.get("components") or []
    accepted = [row["accept_len"] for row in known["levels"] if row.get("accept_len") is not None]
    known["accept_len"] = accepted[-1] if accepted else None
    user = dict(facts or {})
    spread = _mapping(user.pop("parallel", None))
    return {k: v for k, v in {**known, **spread, **user}.items() if v is not None}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
