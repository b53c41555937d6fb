"""Run a simulation and hand out its log, its table and its truth."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.schema import SAMPLES, conform
from helpers.synth import render_sglang, render_sources, render_vllm, truth
from helpers.synth.client import ClosedLoop
from helpers.synth.config import Client, Noise, Server
from helpers.synth.lines import Line
from helpers.synth.parts import need
from helpers.synth.server import Engine
from helpers.synth.trace import Trace

RENDERERS = {"sglang": render_sglang.render, "vllm": render_vllm.render}


class Simulation:
    """A simulated log and everything that is known about it.

    Attributes
    ----------
    server, client : Server, Client
        What was simulated.
    seed : int
        Same seed, same bytes.
    trace : Trace
        Every forward, for tests that need single steps.
    """

    def __init__(self, trace: Trace, seed: int, render_seed: np.random.SeedSequence) -> None:
        self.trace = trace
        self.server = trace.server
        self.client = trace.loop.client
        self.seed = seed
        self._render_seed = render_seed

    @cached_property
    def _lines(self) -> list[Line]:
        rng = np.random.Generator(np.random.PCG64(self._render_seed))
        return RENDERERS[self.server.engine](self.trace, rng)

    def lines(self) -> list[str]:
        """Return the lines of the log without line ends."""
        return [line.text for line in self._lines]

    @property
    def text(self) -> str:
        """The log as one text."""
        return "\n".join(self.lines()) + "\n"

    @cached_property
    def truth(self) -> dict[str, Any]:
        """What really happened (see `helpers.synth.truth.describe`)."""
        return truth.describe(self.trace, self.seed)

    def write(self, log_path: str | Path, truth_path: str | Path | None = None) -> None:
        """Write the log, and its truth as JSON where a path is given."""
        Path(log_path).write_bytes(self.text.encode())
        if truth_path is not None:
            Path(truth_path).write_text(json.dumps(self.truth, indent=1) + "\n", encoding="utf-8")

    def write_sources(self, folder: str | Path, period_s: float = 1.0) -> list[Path]:
        """Write what beside the log tells the steps of the same server: scrapes, and for SGLang /v1/loads snapshots.

        Parameters
        ----------
        folder : path
            Must exist; ``metrics.txt`` and ``loads.jsonl`` are written into it.
        period_s : float
            Time between two scrapes or snapshots [s].

        Returns
        -------
        list of Path
            The files.
        """
        need(period_s > 0, f"write_sources: expected a period above 0 s, found {period_s:g}")
        texts = {"metrics.txt": render_sources.scrapes(self.trace, period_s)}
        if self.server.engine == "sglang" and self.server.pp_size == 1:
            texts["loads.jsonl"] = render_sources.load_snapshots(self.trace, period_s)
        for name, lines in texts.items():
            Path(folder, name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [Path(folder, name) for name in texts]

    def samples(self, file: str = "-") -> pd.DataFrame:
        """Return the SAMPLES table that reading the text would give, without the text.

        Parameters
        ----------
        file : str
            Value of the ``file`` column.
        """
        life = -1
        rows = []
        starts = iter(e["t_s"] for e in self.trace.events if e["kind"] == "start")
        next_start = next(starts, float("inf"))
        for number, line in enumerate(self._lines, start=1):
            while line.t_s >= next_start:
                life += 1
                next_start = next(starts, float("inf"))
            if line.values:
                extra = line.values.get("extra")
                rows.append({"rank": None, **line.values, "line_no": number, "server_life": life,
                             "extra": json.dumps(extra) if extra else None, "stamp_s": line.t_s})
        if not rows:
            return SAMPLES.empty()
        table = pd.DataFrame.from_records(rows)
        start = datetime.strptime(self.server.start, "%Y-%m-%d %H:%M:%S")
        if self.server.engine == "vllm":
            start = start.replace(year=1904)  # no year is printed
        has_ms = self.server.engine == "sglang" and self.server.has_ms_stamps
        resolution = 1000 if has_ms else 1
        table["t_s"] = (table.pop("stamp_s") * resolution).astype("int64") / resolution
        table["ts"] = (np.datetime64(start, "us")
                       + (table["t_s"] * resolution).round().astype("int64").to_numpy()
                       * np.timedelta64(1_000_000 // resolution, "us"))
        table["file"] = file
        table["engine"] = self.server.engine
        return conform(table, SAMPLES)


def simulate(server: Server, client: Client, *, seed: int = 0) -> Simulation:
    """Simulate a server under a closed-loop client.

    Parameters
    ----------
    server, client : Server, Client
        What to simulate.
    seed : int
        Of every random draw, 0 or more: the same seed gives the same bytes on any machine.

    Returns
    -------
    Simulation
        Log lines, SAMPLES table and truth.

    Examples
    --------
    >>> from helpers import synth
    >>> law = synth.StepLaw(intercept_s=0.020, slope_s_per_req=0.001)
    >>> run = synth.simulate(synth.Server(law=law), synth.Client(levels_req=(4,)), seed=1)
    >>> [round(level["step_s"], 6) for level in run.truth["levels"] if level["running_req"] == 4]
    [0.024]
    """
    need(seed >= 0, f"seed: expected 0 or more, found {seed}")
    *engine_seeds, load_seed, render_seed = np.random.SeedSequence(seed).spawn(5)
    loop = ClosedLoop(client, np.random.Generator(np.random.PCG64(load_seed)))
    return Simulation(Engine(server, loop, engine_seeds).run(), seed, render_seed)


def estimate(server: Server, client: Client) -> pd.DataFrame:
    """Tell what a sweep would look like and how long it would take, without noise.

    Returns
    -------
    DataFrame
        A row per level: name, running_req [req], start_s and duration_s [s], step_s [s] at that level, steady_s [s],
        decode_tok_per_s (steady) and client_tok_per_s [tok/s]; NaN where the level is never reached or not finished.
    """
    quiet = Server.from_mapping({**server.as_dict(), "noise": Noise().as_dict(), "level_deviation_frac": 0.0,
                                 "neighbour_bursts": []})
    known = simulate(quiet, client).truth
    steps = {(row["server_life"], row["running_req"], row["is_identical"]): row["step_s"] for row in known["levels"]}
    rows = []
    for phase, result in zip(known["phases"], known["client_results"], strict=True):
        level_req = phase["running_req"]
        step_req = -(-level_req // server.dp_size)
        is_identical = client.warmup_identical if phase["is_warmup"] else client.identical_prompts
        step_s = steps.get((phase["server_life"], step_req, is_identical), np.nan)
        accept_len = server.speculation.accept_len if server.speculation else 1.0
        rows.append({
            "name": phase["name"], "running_req": level_req, "start_s": phase["start_s"],
            "duration_s": result["duration_s"], "step_s": step_s, "steady_s": phase["steady_s"],
            "decode_tok_per_s": level_req * accept_len / step_s, "client_tok_per_s": result["output_tok_per_s"],
        })
    return pd.DataFrame(rows).astype({name: "float64" for name in
                                      ("start_s", "duration_s", "step_s", "steady_s", "client_tok_per_s")})
