"""A notebook executed in this process: what a kernel would leave in it, without the seconds to start one."""

import json
import os
import sys

import nbformat
import plotly.graph_objects as go
import plotly.io as pio
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from helpers import paths, report
from helpers.report import PLOTLY_MIME


def run_folder(folder, log, context=None, name="00_diagnose"):
    """Execute a notebook on a log and return the run folder with its report, as the runner leaves it."""
    folder.mkdir(parents=True)
    values = {"log_path": str(log), "context": json.dumps(context) if context else "", "out_dir": str(folder)}
    notebook = nbformat.read(paths.notebooks_dir() / f"{name}.ipynb", as_version=4)
    here, renderer = os.getcwd(), pio.renderers.default
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    pio.renderers.default = "plotly_mimetype"
    os.chdir(paths.notebooks_dir())
    try:
        for cell in notebook.cells:
            if cell.cell_type == "code" and "explore" not in cell.metadata.get("tags", []):
                _execute(shell, cell, values)
    finally:
        os.chdir(here)
        pio.renderers.default = renderer
        InteractiveShell.clear_instance()
    nbformat.write(notebook, folder / f"{name}.ipynb")
    record = {"status": "good", "message": "", "command": f"rooflog run {log}", "parameters": values,
              "log_sha256": ["ab" * 32], "versions": {"rooflog": "0.0", "method": 1}}
    (folder / "run.json").write_text(json.dumps(record))
    report.write_report(folder)
    return folder


def _execute(shell, cell, values):
    given = "".join(f"\n{key} = {value!r}" for key, value in values.items() if value)
    with capture_output() as got:
        shell.display_trap.hook = sys.displayhook  # else the last expression is printed
        result = shell.run_cell(cell.source + (given if "parameters" in cell.metadata.get("tags", []) else ""))
    result.raise_error()
    stream = [nbformat.v4.new_output("stream", name="stdout", text=got.stdout)] if got.stdout else []
    cell.outputs = stream + [nbformat.v4.new_output("display_data", dict(shown.data)) for shown in got.outputs]


def comparison_folder(folder):
    """Write a run folder of a comparison with the rows and the figure that notebook 08 has, and its report."""
    folder.mkdir(parents=True)
    steps = [(2.0**k, 0.020 + 0.0004 * 2**k, 0.020 + 0.0005 * 2**k) for k in range(7)]
    sides = [("step", *step, "s") for step in steps] + [
        ("accept_len", None, 2.61, 2.58, "tok"), ("fixed_cost", None, 0.01996, 0.01995, "s"),
        ("per_request", None, 0.000409, 0.000506, "s/req"), ("asymptote", None, 2444.8, 1975.5, "tok/s")]
    rows = [{"kind": kind, "running_req": level, "base": base, "new": new, "unit": unit, "effect_frac": new / base - 1,
             "row_lo_frac": new / base - 1.1, "row_hi_frac": new / base - 0.9,
             "verdict": "worse" if abs(new / base - 1) > 0.1 else "cannot_tell"}
            for kind, level, base, new, unit in sides]
    said = "Verdict: worse, for changes of more than 3 %. Worse: step at N=32, 64; cost per request."
    card = {"schema_version": 1, "method_version": 1, "kind": "comparison", "overall": {"verdict": "worse"},
            "confidence": 0.95, "answer": said, "rows": rows}
    (folder / "comparison.json").write_text(json.dumps(card))
    points = go.Scatter(x=[f"{level:g}" for level, *_ in steps], y=[new / base - 1 for _, base, new in steps])
    figure = go.Figure(points,
                       {"title": {"text": "The cost per request moved"}, "xaxis": {"title": {"text": "level [req]"}}})
    cell = nbformat.v4.new_code_cell("x", metadata={"tags": ["headline"]}, outputs=[
        nbformat.v4.new_output("display_data", {PLOTLY_MIME: json.loads(figure.to_json())})])
    cells = [nbformat.v4.new_markdown_cell("# 08 · Did it regress?"), cell]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "08_did_it_regress.ipynb")
    report.write_report(folder)
    return folder


SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>"


def write_hostile_log(path, n_rejected=10_000):
    """Write a log of one level whose text fields hold scripts, with many statistics that cannot be read."""
    lines = [f"[2026-02-03 04:00:00] server_args=ServerArgs(model_path='{SCRIPT}', tp_size=1)"]
    lines += [
        f"[2026-02-03 04:{k // 10:02d}:{6 * (k % 10):02d}] Decode batch, #running-req: 8, #token: {700 + 320 * k}, "
        f"token usage: 0.25, cuda graph: True, gen throughput (token/s): {53.33 + k % 3 / 100:.2f}, #queue-req: 0"
        for k in range(60)
    ]
    lines += [f"[2026-02-03 04:{6 + i // 600:02d}:{i // 10 % 60:02d}] Decode batch, #running-req: 8, {SCRIPT} {i}"
              for i in range(n_rejected)]
    path.write_text("\n".join([*lines, f"CUDA out of memory. {SCRIPT}", SCRIPT, "[x](javascript:alert(1))"]) + "\n")
    return path
