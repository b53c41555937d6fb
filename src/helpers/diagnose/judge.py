"""From observations to ranked causes: weights are added per channel, capped, and never averaged away.

A cause is *supported* by strong evidence, or by several weaker ones that come from different measured channels; one
weak channel alone never supports. A refuter decides unless other channels support the cause strongly: then the two
contradict each other, and that is what is said. Every weight rests on something seen, never on something missing, so
taking evidence away can lower a cause but never lift a refuted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from helpers.diagnose.causes import CAUSES, HEALTHY, UNKNOWN
from helpers.diagnose.observations import Observation, Observations
from helpers.diagnose.rules import RULES, Rule

STRONG = 3
"""Weight of evidence ten times likelier under the cause than without it (physics.md 4.2); the threshold of support."""

SUPPORT_BY_SEVERAL = 4
"""Sum that supports a cause without any strong evidence, from two or more measured channels."""

LEAD = 2
"""By how much a cause without strong evidence must lead every rival to be supported."""

COMPATIBLE = 2
"""Least sum at which a cause is more than a possibility."""

THIN = 2
"""A best cause below this sum, and not supported, is no answer: `unknown` stands first."""

WEAK_CAP = 2
"""Most that evidence of one channel without a strong piece adds: its pieces are not independent."""

TOLD = "told"
"""Channel of the user's own statements: they are no measurement."""

OF_HARDWARE = ("healthy", "weight_bandwidth", "kv_bandwidth", "state_bandwidth", "tensor_compute")
"""Causes that describe a good step: where any other cause is supported, it limits the server first."""

STATUSES = ("supported", "compatible", "weak", "refuted")


@dataclass(frozen=True)
class Fired:
    """A rule that an observation fulfilled."""

    rule: Rule
    seen: Observation


@dataclass(frozen=True)
class Finding:
    """What the evidence says about one cause.

    Attributes
    ----------
    cause, status : str
        One of `causes.CAUSES`, one of `STATUSES`.
    score : float
        Sum of the capped channels.
    evidence_for, evidence_against : tuple of str
        Sentences, strongest first.
    refuted_by : str or None
        The sentence that decides against it.
    contradiction : str or None
        Where channels contradict each other: both sides.
    has_strong : bool
        A strong piece of a measured channel is among the evidence for it.
    """

    cause: str
    status: str
    score: float
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    refuted_by: str | None = None
    contradiction: str | None = None
    has_strong: bool = False


def judge(seen: Observations, *, rules: Sequence[Rule] = RULES, missing: Iterable[str] = ()) -> tuple[Finding, ...]:
    """Rank every cause.

    Parameters
    ----------
    seen : Observations
    rules : sequence of Rule
        The table of tests.
    missing : iterable of str
        What was not given and would tell more, for `unknown`.

    Returns
    -------
    tuple of Finding
        Best first; refuted ones last. `unknown` is among them, and first, where nothing else is an answer.
    """
    by_cause: dict[str, list[Fired]] = {cause: [] for cause in CAUSES if cause != UNKNOWN}
    for rule in rules:
        by_cause[rule.cause] += [Fired(rule, item) for item in seen.named(rule.observation) if rule.fits(item.value)]
    alone = [_finding(cause, fired) for cause, fired in by_cause.items()]
    found = sorted(_behind_others(_beside_rivals(alone)), key=_rank)
    best = found[0]
    if best.status == "supported" or (best.status == "compatible" and best.score >= THIN):
        return tuple(found)
    return (_unknown(best, seen, tuple(missing)), *found)


def _finding(cause: str, fired: Sequence[Fired]) -> Finding:
    """Add up the evidence on one cause."""
    speaks_for = sorted((f for f in fired if f.rule.weight > 0), key=lambda f: -f.rule.weight)
    against = sorted((f for f in fired if f.rule.weight < 0), key=lambda f: f.rule.weight)
    plus = _by_channel(speaks_for)
    minus = _by_channel(against)
    score = sum(plus.values()) - sum(minus.values())
    refuter = next((f for f in against if f.rule.weight <= -STRONG), None)
    contradiction = None
    if refuter is not None and not _supports(plus, sum(plus.values())):
        status = "refuted"
    elif refuter is not None:
        status = "weak"
        contradiction = f"{speaks_for[0].seen.says}; but {refuter.seen.says}"
    elif _supports(plus, score):
        status = "supported"
    else:
        status = "compatible" if score >= COMPATIBLE else "weak"
    return Finding(cause, status, float(score), _sentences(speaks_for), _sentences(against),
                   refuter.seen.says if refuter is not None and status == "refuted" else None, contradiction,
                   any(f.rule.weight >= STRONG and f.seen.channel != TOLD for f in speaks_for))


def _beside_rivals(found: Sequence[Finding]) -> list[Finding]:
    """Hold back causes that rest on several weaker pieces where a rival has almost as many: these do not tell apart."""
    rivals = [item for item in found if item.status in ("supported", "compatible") and item.cause not in OF_HARDWARE]

    def beside(item: Finding) -> Finding:
        rival = next((other for other in rivals if other is not item and other.score >= item.score - LEAD + 1), None)
        if item.status != "supported" or item.has_strong or item.cause in OF_HARDWARE or rival is None:
            return item
        said = f"the evidence fits {rival.cause} almost as well"
        return replace(item, status="compatible", evidence_against=(said, *item.evidence_against))

    return [beside(item) for item in found]


def _behind_others(found: Sequence[Finding]) -> list[Finding]:
    """Let good steps stand behind a supported cause that can be changed."""
    first = next((item for item in found if item.status == "supported" and item.cause not in OF_HARDWARE), None)
    if first is None:
        return list(found)
    said = f"{CAUSES[first.cause]} ({first.cause}): that limits the server first"
    return [replace(item, status="compatible", evidence_against=(said, *item.evidence_against))
            if item.status == "supported" and item.cause in OF_HARDWARE else item for item in found]


def _by_channel(fired: Sequence[Fired]) -> dict[str, int]:
    """Sum weights (without sign) per channel, capped: at `STRONG` with a strong piece, else at `WEAK_CAP`."""
    sums: dict[str, int] = {}
    strong: set[str] = set()
    for item in fired:
        weight = abs(item.rule.weight)
        sums[item.seen.channel] = sums.get(item.seen.channel, 0) + weight
        strong |= {item.seen.channel} if weight >= STRONG else set()
    return {channel: min(total, STRONG if channel in strong else WEAK_CAP) for channel, total in sums.items()}


def _supports(plus: Mapping[str, int], score: float) -> bool:
    """Tell whether evidence is enough: a strong piece, or several measured channels together."""
    measured = [channel for channel in plus if channel != TOLD]
    is_strong = any(total >= STRONG for channel, total in plus.items() if channel != TOLD)
    return (is_strong and score >= STRONG) or (len(measured) >= 2 and score >= SUPPORT_BY_SEVERAL)


def _sentences(fired: Sequence[Fired]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.seen.says for item in fired))


def _rank(finding: Finding) -> tuple[int, bool, float, int]:
    """Sort key: status; `healthy` behind other supported causes; score; then what can be changed at once."""
    order = tuple(CAUSES)
    return (STATUSES.index(finding.status), finding.cause == HEALTHY and finding.status == "supported",
            -finding.score, order.index(finding.cause))


def _unknown(best: Finding, seen: Observations, missing: tuple[str, ...]) -> Finding:
    """Say that nothing can be told, and what would tell."""
    spoken = ", ".join(seen.channels()) or "none"
    why = (f"no cause has evidence enough (the best, {best.cause}, has {best.score:g} of {STRONG}); "
           f"channels that speak: {spoken}")
    return Finding(UNKNOWN, "compatible", 0.0, (why, *(f"not known: {item}" for item in missing)))
