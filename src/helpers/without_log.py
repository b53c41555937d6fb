"""What the hardware allows a model that nobody has measured: the answer of `rooflog bound`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helpers import allowance, deployment
from helpers.deployment import Deployment
from helpers.display import level_key, show
from helpers.facts import Facts
from helpers.physics.catalogue import models
from helpers.physics.steps import bound, prediction, prefill, step
from helpers.physics.steps.decode import DecodeModel
from helpers.physics.what_if import levers
from helpers.schema import RooflogError
from helpers.scorecard import to_plain

MAX_CONTEXT_TOK = 1e15
"""More than any fleet holds; beyond it the arithmetic overflows."""


def bound_of(
    model: str, facts: Mapping[str, Any], running_req: Sequence[float], context_tok: float, *,
    prompt_tok: float = 0.0, achievable_frac: float | None = None,
) -> dict[str, Any]:
    """Say what the hardware allows a model that nobody has measured.

    Parameters
    ----------
    model : str
        Catalogue name, or the path of a config.json or of its folder.
    facts : mapping
        Facts of the deployment (`facts.KNOWN`); None is not known.
    running_req : sequence of float
        Levels [req].
    context_tok : float
        Mean context of a running request [tok].
    prompt_tok : float
        Prompt whose prefill is bounded [tok]; 0 = none.
    achievable_frac : float in (0, 1], optional
        Share of the peak bandwidth of the target line.

    Returns
    -------
    dict
        JSON-safe, base units: ``strict``, ``expected``, ``target`` as in a scorecard's roofline (``step_s`` by
        level), ``levels`` (one record each), ``bytes``, ``knees_req``, ``prefill``, ``assumptions``, ``warnings``.

    Raises
    ------
    RooflogError
        Model or hardware is not known, degrees do not fit, or the weights do not fit into the memory.
    """
    known = {name: value for name, value in facts.items() if value is not None} | deployment.model_facts(model)
    of = deployment.resolve(Facts(known))
    if not isinstance(of.model, DecodeModel):
        raise RooflogError(f"bound: expected a model with a configuration, found {model!r}")
    if not max(running_req) * context_tok <= MAX_CONTEXT_TOK:
        raise RooflogError(f"bound: expected at most {MAX_CONTEXT_TOK:g} tok of context in all, found "
                           f"{max(running_req):g} requests of {context_tok:g} tok")
    room = levers.fits_memory(of.model.spec, of.model.parallel, of.hardware, kv=of.model.kv,
                              has_draft=of.model.has_draft_layers)
    if not room.fits:
        raise RooflogError(room.sentence)
    lines = bound.roofline(of.model, of.hardware, running_req, context_tok, achievable_frac=achievable_frac,
                           links=of.links)
    if lines.refused:
        raise RooflogError(lines.refused)
    table = lines.to_frame()
    predicted = prediction.predicted_step_s(of.model, of.hardware, table["running_req"].to_numpy(), context_tok,
                                            shares=lines.shares, links=of.links)
    levels = [
        {"running_req": row["running_req"], **{f"{name}_step_s": row[f"{name}_step_s"] for name in step.LINES},
         "target_tok_per_s": row["running_req"] / row["target_step_s"], "regime": regime, "predicted_step_s": guess}
        for row, regime, guess in zip(table.to_dict("records"), lines.regimes, predicted, strict=True)
    ]
    prompt = allowance.prefill_of(of, prompt_tok, lines.shares)
    card = allowance.roofline_entry(lines) | {
        "run": _run(of, room, model), "context_tok": context_tok, "levels": levels,
        "prefill": prefill.prefill_table([prompt])[0] if prompt else None,
        "warnings": [*of.warnings, *lines.warnings, *_too_much(of.model, room, running_req, context_tok, prompt_tok)],
    }
    for name in ("ratio", "ratio_line", "ratios", "refused"):  # nothing was measured
        del card[name]
    return to_plain(card | {"reading": [*_reading(lines, prompt), _predicted(levels)]})


def _run(of: Deployment, room: levers.Room, model: str) -> dict[str, Any]:
    assert isinstance(of.model, DecodeModel)
    spec, parallel = of.model.spec, of.model.parallel
    return {
        "model": spec.name or model, "hardware": of.hardware.name,
        "parallel": {name: getattr(parallel, name) for name in ("tp", "dp", "pp", "ep")},
        "n_params": spec.n_params, "n_active_params": spec.n_active_params, "draft_tok": of.model.n_draft_tok,
        "kv_bytes_per_tok": models.kv_bytes_per_tok(spec, of.model.kv),
        "weight_bytes_per_rank": room.weight_bytes, "mem_bytes": room.mem_bytes, "kv_pool_tok": room.kv_pool_tok,
    }


def _too_much(
    model: DecodeModel, room: levers.Room, running_req: Sequence[float], context_tok: float, prompt_tok: float
) -> list[str]:
    """Say which levels no memory holds, and which contexts the model does not take; their steps are computed anyway."""
    texts, most = [], room.kv_pool_tok // context_tok
    over = sorted(n for n in set(running_req) if n > most)
    beside = f"{show(room.kv_pool_tok, 'tok')} of cache have room beside the weights"
    if over and not most:
        texts.append(f"not one context fits into the memory: {beside}, a request needs {show(context_tok, 'tok')}")
    elif over:
        which = f" from N={level_key(over[0])}" if len(over) < len(set(running_req)) else ""
        texts.append(f"the contexts do not fit into the memory{which}: {beside}, N={level_key(over[-1])} needs "
                     f"{show(over[-1] * context_tok, 'tok')}; at this context at most N={level_key(most)} run at once")
    longest = model.spec.context_length_max
    if longest and max(context_tok, prompt_tok) > longest:
        texts.append(f"{model.spec.name} takes at most {longest} tok of context (its configuration), asked for are "
                     f"{show(max(context_tok, prompt_tok), 'tok')}")
    return texts


def _predicted(levels: Sequence[Mapping[str, Any]]) -> str:
    """Say what a server would take before anything is measured, at both ends."""
    ends = [levels[0], levels[-1]] if len(levels) > 1 else [levels[0]]
    words = " and ".join(f"{show(level['predicted_step_s'], 's')} at N = {level_key(level['running_req'])}"
                         for level in ends)
    return (f"A prediction, launch and host time added: {words}. On public measurements half of such predictions are "
            "within 15 %, one in ten is off by 40 % or more: plan with it, measure before you conclude.")


def _reading(lines: bound.Roofline, prompt: prefill.Prefill | None) -> list[str]:
    """Say where the regime turns, and the floor and the prefill beside the lines."""
    knees, words = lines.knees_req, []
    if "experts" in knees:
        words.append(f"nearly all experts are read from N = {show(knees['experts'])}")
    if "requests" in knees:
        words.append(f"context costs as much as all weights at N = {show(knees['requests'])}")
    if "compute" in knees:
        words.append(f"the products bind from N = {show(knees['compute'])}")
    texts = [f"Where it turns: {'; '.join(words)} (at this context)."] if words else []
    if np.isfinite(lines.floor_s[0]):
        least, most = (show(value, "s") for value in lines.floor_s)
        texts.append(f"Kernels take time however little they move: {least} to {most} per step (rough counts), "
                     "in no line; a step below that is launch-bound.")
    if prompt is not None:
        texts.append(
            f"Prefill of {show(prompt.prompt_tok)} tok: at least {show(prompt.strict_s, 's')} "
            f"({show(prompt.strict_tok_per_s, 'tok/s')}), target {show(prompt.target_s, 's')} "
            f"({show(prompt.target_tok_per_s, 'tok/s')}); "
            + ("bound by compute." if prompt.is_compute_bound else "bound by reading the weights."))
    return texts
