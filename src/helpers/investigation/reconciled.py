"""Log against client and profile: whether they tell of the same load, and where the client's time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from helpers.diagnose import reconcile
from helpers.diagnose.observations import Observation
from helpers.diagnose.reconcile import ClientTime, FirstTokenTime, ProfileMatch, TokenTime
from helpers.display import show
from helpers.evidence import clocks
from helpers.evidence.clients import Clients
from helpers.evidence.profiles import Profile
from helpers.investigation.run import Run
from helpers.schema import NotEnoughData

FULL_CLOCK_S = 5.0
"""Uncertainty of a clock up to which a client's run is cut out of the log by it; else its tokens place it [s]."""


@dataclass(frozen=True)
class ClientMatch:
    """One run of a client beside the log.

    Attributes
    ----------
    client : mapping
        Its row of CLIENTS.
    placed : str
        How it was found in the log, or why it was not.
    time : ClientTime or None
        Where its duration went.
    tokens : TokenTime or None
        Its time per output token, taken apart.
    first_token : FirstTokenTime or None
        Its time to first token against queue and prompts.
    """

    client: Mapping[str, Any]
    placed: str
    time: ClientTime | None = None
    tokens: TokenTime | None = None
    first_token: FirstTokenTime | None = None


@dataclass(frozen=True)
class Reconciled:
    """What other witnesses of the same load say.

    Attributes
    ----------
    clients : tuple of ClientMatch
        One per run of the client's files, the one with most tokens first.
    profile : ProfileMatch or None
        Whether the profile's steps are those of the run.
    """

    clients: tuple[ClientMatch, ...] = ()
    profile: ProfileMatch | None = None

    @property
    def main(self) -> ClientMatch | None:
        """The placed run with most tokens."""
        return next((item for item in self.clients if item.time is not None), None)


def reconcile_all(run: Run, clients: Clients | None, profile: Profile | None) -> Reconciled:
    """Put client runs and profile beside the log."""
    found: list[ClientMatch] = []
    if clients is not None and len(run.intervals):
        clock = clocks.align_runs(clients.runs["start_epoch_s"], clients.runs["duration_s"], run.samples)
        of_lives = run.intervals
        rows = clients.runs.sort_values("output_tok", ascending=False, kind="stable").to_dict("records")
        found = [_match(of_lives, run, {str(k): v for k, v in row.items()}, clock) for row in rows]
    match = None
    if profile is not None:
        levels = run.levels[run.levels["server_life"].isin(run.lives)]
        match = reconcile.profile_against_log(profile.step_s, profile.step_s_lo, profile.step_s_hi, profile.running_req,
                                              levels)
    return Reconciled(tuple(found), match)


def _match(intervals: Any, run: Run, client: Mapping[str, Any], clock: clocks.Clock) -> ClientMatch:
    start_s, how = nan, ""
    if isfinite(client["start_epoch_s"]) and clock.is_certain and clock.uncertainty_s <= FULL_CLOCK_S:
        start_s, how = float(client["start_epoch_s"]) + clock.offset_s, clock.how
    else:
        place = reconcile.place_client(intervals, client)
        start_s, how = place.start_s, place.how
    if not isfinite(start_s):
        return ClientMatch(client, how)
    try:
        return ClientMatch(
            client, how, reconcile.client_time(intervals, client, start_s=start_s),
            reconcile.tpot_against_step(intervals, client, run.levels, start_s=start_s),
            reconcile.ttft_against_queue(intervals, client, run.levels, start_s=start_s))
    except NotEnoughData as error:
        return ClientMatch(client, f"{how}; {error}")


def observe_clients(found: Reconciled, pool_tok: float | None) -> Iterator[Observation]:
    """Yield what the numbers of the client's runs that lie in this log say about causes."""
    main = found.main
    if main is not None and main.tokens is not None and main.tokens.refused is None and main.tokens.step_s > 0:
        ratio = main.tokens.tpot_s / main.tokens.step_s
        yield Observation("tpot_over_step", ratio, "client",
                          f"the client's time per token, {show(main.tokens.tpot_s, 's')}, is {show(ratio)} times the "
                          f"step of the log over the tokens of a round; prompts take "
                          f"{main.tokens.prefill_share_frac:.0%} of the load", str(main.client["file"]))
    demand = max((wanted for item in found.clients if item.time is not None
                  if isfinite(wanted := _demand_tok(item.client))), default=nan)
    if pool_tok and isfinite(demand):
        yield Observation("demand_over_pool", demand / pool_tok, "client",
                          f"the client's requests together want {show(demand / pool_tok)} times the KV pool at their "
                          "ends", "client")


def _demand_tok(client: Mapping[str, Any]) -> float:
    """Return the KV tokens that the client's open requests hold at their ends [tok]; NaN where it does not tell."""
    if not (client["concurrency_req"] > 0 and client["n_completed"] > 0):
        return nan
    prompt_tok = client["prompt_tok"] if isfinite(client["prompt_tok"]) else 0.0
    return float(client["concurrency_req"] * (prompt_tok + client["output_tok"]) / client["n_completed"])
