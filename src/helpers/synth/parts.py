"""The parts a simulated server and its load are made of: step law, noise, lengths, speculation.

Everything is a frozen dataclass of plain values that can be read from and written to a JSON or YAML mapping.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from helpers.schema import RooflogError


class ConfigError(RooflogError):
    """A description of a server or client that cannot be simulated; the message names the field."""


class Described:
    """Mix-in: a dataclass that is read from and written to a plain mapping."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> typing.Self:
        """Build from a mapping, nested ones included.

        Parameters
        ----------
        mapping : mapping
            Field names to values; lists stand for tuples, mappings for nested parts. Absent fields keep their default.

        Raises
        ------
        ConfigError
            Names an unknown field (with the nearest known one) or a value of the wrong kind.
        """
        hints = typing.get_type_hints(cls)
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        values = {}
        for name, value in mapping.items():
            if name not in known:
                near = difflib.get_close_matches(str(name), sorted(known), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{cls.__name__}: no field {name!r}{hint} It has {sorted(known)}")
            values[name] = _convert(f"{cls.__name__}.{name}", hints[name], value)
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-safe mapping that `from_mapping` turns back into an equal object."""
        return typing.cast(dict[str, Any], _plain(asdict(self)))  # type: ignore[call-overload]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def _convert(where: str, hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        origin = typing.get_origin(option) or option
        if is_dataclass(origin) and isinstance(value, Mapping):
            return origin.from_mapping(value)  # type: ignore[union-attr]
        if origin is tuple and isinstance(value, (list, tuple)):
            return tuple(tuple(v) if isinstance(v, list) else v for v in value)
        if origin is Mapping and isinstance(value, Mapping):
            key = typing.get_args(option)[0]
            return {key(k): v for k, v in value.items()}
        if origin is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(origin, type) and isinstance(value, origin) and isinstance(value, bool) == (origin is bool):
            return value
    raise ConfigError(f"{where}: expected {hint}, found {value!r}")


def need(condition: bool, message: str) -> None:
    """Refuse a description that breaks a condition."""
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class StepLaw(Described):
    """Time of one decode step as a function of running requests.

    linear: ``a + b*N``. moe: ``a + w*(1 - (1 - k/E)**N) + b*N``, experts touched by N tokens. hinge:
    ``max(p, a + b*N)``. All add ``c * total context tokens``.

    Attributes
    ----------
    kind : str
        linear, moe or hinge.
    intercept_s : float
        a, time that does not depend on N [s].
    slope_s_per_req : float
        b, time one more request adds [s/req].
    context_s_per_tok : float
        c, time one more token of context adds, summed over requests [s/tok].
    expert_s : float
        w, time to read all experts [s] (moe).
    n_experts, n_experts_active : int
        E and k (moe).
    plateau_s : float
        p, floor of the step [s] (hinge).
    """

    kind: str = "linear"
    intercept_s: float = 0.020
    slope_s_per_req: float = 0.0005
    context_s_per_tok: float = 0.0
    expert_s: float = 0.0
    n_experts: int = 256
    n_experts_active: int = 8
    plateau_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an unknown kind and a step that takes no time."""
        need(self.kind in ("linear", "moe", "hinge"),
              f"StepLaw.kind: expected linear, moe or hinge, found {self.kind!r}")
        need(self.step_s(1) > 0, f"StepLaw: expected a step above 0 s at one request, found {self.step_s(1)}")
        need(0 < self.n_experts_active <= self.n_experts, "StepLaw: expected 0 < n_experts_active <= n_experts")

    def step_s(self, running_req: float, context_tok: float = 0.0) -> float:
        """Return the step [s] at running_req [req] with a total context of context_tok [tok]."""
        step = self.intercept_s + self.slope_s_per_req * running_req
        if self.kind == "moe":
            step += self.expert_s * (1.0 - (1.0 - self.n_experts_active / self.n_experts) ** running_req)
        elif self.kind == "hinge":
            step = max(self.plateau_s, step)
        return step + self.context_s_per_tok * context_tok


@dataclass(frozen=True)
class Lengths(Described):
    """Distribution of prompt or output lengths.

    Attributes
    ----------
    kind : str
        fixed, uniform or lognormal.
    mean_tok : int
        Mean length [tok].
    spread_frac : float
        Half width over mean (uniform, 0..1) or sigma of the logarithm (lognormal) [1].
    min_tok : int
        Shortest length drawn [tok].
    """

    kind: str = "fixed"
    mean_tok: int = 256
    spread_frac: float = 0.0
    min_tok: int = 1

    def __post_init__(self) -> None:
        """Refuse an unknown kind and lengths below one token."""
        need(self.kind in ("fixed", "uniform", "lognormal"),
              f"Lengths.kind: expected fixed, uniform or lognormal, found {self.kind!r}")
        need(self.mean_tok >= 1 and self.min_tok >= 1, "Lengths: expected mean_tok and min_tok of at least 1")
        need(self.spread_frac >= 0, "Lengths.spread_frac: expected 0 or more")

    def draw(self, rng: np.random.Generator, n: int) -> list[int]:
        """Draw n lengths [tok]."""
        if self.kind == "uniform":
            half = self.mean_tok * min(self.spread_frac, 1.0)
            drawn = rng.uniform(self.mean_tok - half, self.mean_tok + half, n)
        elif self.kind == "lognormal":
            shift = np.log(self.mean_tok) - self.spread_frac**2 / 2
            drawn = np.exp(shift + self.spread_frac * rng.standard_normal(n))
        else:
            drawn = np.full(n, float(self.mean_tok))
        return [int(x) for x in np.maximum(np.rint(drawn), self.min_tok)]


@dataclass(frozen=True)
class Noise(Described):
    """Relative noise of the step time with mean one, so that the law stays the true mean.

    Attributes
    ----------
    sigma_frac : float
        Standard deviation of the logarithm of the factor [1].
    ar1 : float
        Correlation of neighbouring blocks (AR(1) coefficient, 0..1).
    block_steps : int
        Steps that share one factor: 1 = noise per step, decode_log_interval = noise per log line.
    spike_prob : float
        Probability that a single step is slowed by spike_factor (a skewed tail).
    spike_factor : float
        Slowdown of such a step.
    """

    sigma_frac: float = 0.0
    ar1: float = 0.0
    block_steps: int = 1
    spike_prob: float = 0.0
    spike_factor: float = 3.0

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        need(self.sigma_frac >= 0, "Noise.sigma_frac: expected 0 or more")
        need(0 <= self.ar1 < 1, "Noise.ar1: expected 0 <= ar1 < 1")
        need(self.block_steps >= 1, "Noise.block_steps: expected 1 or more")
        need(0 <= self.spike_prob < 1, "Noise.spike_prob: expected 0 <= spike_prob < 1")


@dataclass(frozen=True)
class Speculation(Described):
    """Draft-and-verify decoding.

    Attributes
    ----------
    algorithm : str
        Name printed in the start-up lines.
    num_draft_tokens : int
        Tokens verified per request and round, the bonus token's slot included: at most this many are accepted.
    accept_len : float
        Mean tokens per request and round, bonus token included [tok].
    """

    algorithm: str = "EAGLE"
    num_draft_tokens: int = 4
    accept_len: float = 3.0

    def __post_init__(self) -> None:
        """Refuse an accept length that the draft cannot reach."""
        need(1 <= self.accept_len <= self.num_draft_tokens,
              f"Speculation.accept_len: expected 1..num_draft_tokens={self.num_draft_tokens}, found {self.accept_len}")

    def accept_probabilities(self) -> np.ndarray:
        """Return P(accept 1, 2, .., num_draft_tokens): a geometric law cut at the draft, with the mean asked for."""
        n_draft = self.num_draft_tokens - 1
        low, high = 0.0, 1.0
        for _ in range(60):  # bisection to below the resolution of a double
            p = (low + high) / 2
            low, high = (p, high) if sum(p**i for i in range(n_draft + 1)) < self.accept_len else (low, p)
        reach = p ** np.arange(n_draft + 1)  # P(at least i + 1 accepted)
        return reach - np.append(reach[1:], 0.0)
