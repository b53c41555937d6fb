"""Output rates and rounds of speculation that experiments predict."""

from __future__ import annotations

from helpers.display import level_key, show
from helpers.plan.known import Known
from helpers.plan.outcomes import Outcome
from helpers.plan.sizes import top_req

DRAFT_FRAC = 0.1
"""Share of a round that drafting takes where components do not say: 5.6 of 55.5 ms in field case B."""


def rate_at(known: Known, after_req: int) -> Outcome:
    """Predict the output rate at another level than the highest from the law."""
    before_req = top_req(known)
    before_s, after_s = known.step_s(before_req), known.step_s(after_req)
    if before_s is None or after_s is None:
        return Outcome("the output rate falls with the requests", None, "rate falls")
    accept_len = known.number("accept_len") or 1.0
    before, after = (accept_len * n / s for n, s in ((before_req, before_s), (after_req, after_s)))
    return Outcome(f"output rate goes from {show(before, 'tok/s')} to {show(after, 'tok/s')}, as the law says; "
                   "retractions, if any, were not the limit", after / before)


def no_speculation(known: Known) -> str:
    """Say why speculation cannot be changed."""
    speculates = known.text("speculative_algorithm") or known.whole("num_draft_tokens") or known.number("accept_len")
    return "" if speculates else "the server does not speculate"


def plain_rate(known: Known, n: int, *, paid: bool) -> Outcome:
    """Predict the output rate without speculation, from the round without its draft.

    Speculation that pays loses the accept length and wins only the draft; speculation with few tokens accepted wins the
    extra rows of the verify step as well.
    """
    accept_len = known.number("accept_len")
    round_s = known.step_s(n)
    if accept_len is None or round_s is None:
        text = "falls" if paid else "rises or stays"
        return Outcome(f"the output rate {text} without speculation", None, text)
    draft_s = min(known.component_s("draft") or 0.0, 0.9 * round_s)
    ratio = round_s / (accept_len * (round_s - draft_s))
    before = n * accept_len / round_s
    if paid:
        return Outcome(f"output rate at N={level_key(n)} falls from {show(before, 'tok/s')} to "
                       f"{show(before * ratio, 'tok/s')}: the accept length of {show(accept_len)} is lost", ratio)
    return Outcome(f"output rate at N={level_key(n)} stays at {show(before, 'tok/s')} or rises: rounds cost more than "
                   f"the {show(accept_len)} tokens they give", max(1.0, ratio))


def state_ratio(known: Known) -> float:
    """Return state traffic without speculation over with D drafts: 2 / (D + 2) (physics.md 1.5)."""
    return 2 / (known.whole("num_draft_tokens", 3) + 2)


def draft_after(known: Known) -> int:
    """Return fewer draft tokens."""
    return max(2, known.whole("num_draft_tokens", 4) // 2)


def state_ratio_fewer(known: Known) -> float:
    """Return state traffic with fewer drafts over with all of them."""
    return (draft_after(known) + 2) / (known.whole("num_draft_tokens", 4) + 2)


def shorter_round(known: Known) -> float:
    """Return the round with fewer drafts over the round with all of them."""
    round_s = known.step_s(known.test_req())
    draft_s = known.component_s("draft")
    share = DRAFT_FRAC if draft_s is None or round_s is None else min(max(draft_s / round_s, 0.0), 0.9)
    return 1 - share * (1 - draft_after(known) / known.whole("num_draft_tokens", 4))
