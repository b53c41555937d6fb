"""Which server lives may share one law: those that were started with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from helpers import schema

VOLATILE_ARGUMENTS = (
    "host", "port", "nccl_port", "random_seed", "seed", "log_level", "log_level_http", "api_key", "dist_init_addr",
    "node_rank", "base_gpu_id", "disaggregation_bootstrap_port", "master_addr", "master_port",
    "data_parallel_rank", "data_parallel_start_rank", "data_parallel_address", "data_parallel_rpc_port", "headless",
    "served_model_name", "watchdog_timeout", "crash_dump_folder", "download_dir", "kv_events_config",
)
"""Server arguments that may differ between restarts, nodes and replicas without changing the step time."""


def keep_one_configuration(levels: pd.DataFrame, facts: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Let only server lives with the same arguments into one law.

    The life with most clean time among those of three or more fitted levels decides which; without such a life the
    one with most levels.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    facts : sequence of mappings, one per server life
        ``args`` is compared where known; lives without an argument dump are taken as alike.

    Returns
    -------
    DataFrame, schema LEVELS
        Levels of other configurations keep their step time, with is_fitted False and a note.
    """
    schema.check(levels, schema.LEVELS)
    used = levels[levels["is_fitted"]].groupby("server_life")
    fitted = used["running_req"].nunique()
    if len(fitted) < 2:
        return levels
    enough = fitted >= min(3, int(fitted.max()))
    arguments = {life: _stable_arguments(facts[life]) if life < len(facts) else None for life in fitted.index}
    main = arguments[used["clean_s"].sum().where(enough, -1.0).idxmax()]
    other = [life for life, found in arguments.items() if None not in (found, main) and found != main]
    out = levels["server_life"].isin(other) & levels["is_fitted"]
    note = "another server life with other arguments"
    return levels.assign(is_fitted=levels["is_fitted"] & ~out, note=levels["note"].mask(out, note))


def _stable_arguments(facts: Mapping[str, object]) -> dict[str, object] | None:
    args = facts.get("args")
    if not isinstance(args, Mapping):
        return None
    return {str(key): value for key, value in args.items() if key not in VOLATILE_ARGUMENTS}


def keep_one_source(levels: pd.DataFrame, source_of: Mapping[int, str]) -> pd.DataFrame:
    """Let only server lives that rest on one kind of record into one law.

    A scrape that cannot be placed in a log's time is a life of its own and may be the same server seen twice.

    Parameters
    ----------
    levels : DataFrame, schema LEVELS
    source_of : mapping
        Server life -> kind of record that its intervals rest on (`segment.describe_sources`).

    Returns
    -------
    DataFrame, schema LEVELS
        Lives of another source than that of the life with most clean time have is_fitted False and a note.
    """
    clean_s = levels[levels["is_fitted"]].groupby("server_life")["clean_s"].sum()
    if len({source_of.get(life) for life in clean_s.index}) < 2:
        return levels
    main = source_of.get(int(str(clean_s.idxmax())))
    out = levels["is_fitted"] & (levels["server_life"].map(source_of) != main)
    note = f"rests on other records than the law ({main}), perhaps of the same server"
    return levels.assign(is_fitted=levels["is_fitted"] & ~out, note=levels["note"].mask(out, note))
