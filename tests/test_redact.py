"""Redaction: nothing secret survives, and the redacted log analyses to the same numbers.

Would catch: a secret that a new kind of line lets through, a value changed, a line lost, a file half written.
"""

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.analysis import analyse
from helpers.cli.app import main
from helpers.ingest.redaction import Redactor
from helpers.ingest.redaction_arguments import redact_json_line, redact_scrape_line
from helpers.redact import bug_report, compare, redact
from helpers.schema import RooflogError

SECRETS = (
    # hosts, pods, containers
    "gpu-node-ulmenhof17", "zeta9.corp.ulmenhof.example", "ip-10-20-30-40.eu-west-7.compute.internal", "BLAUMEISE-DGX",
    "llm-prod-ulmenhof-7d9f8b6c5-x2k4q", "ulmenhof_redis_1", "k8s-ulmenhof.svc", "d34db33fcafe1234",
    # addresses
    "10.23.45.67", "172.31.9.200", "8.8.4.41", "fe80::1ff:fe23:4567:890a", "2a02:8071:abcd::77", "0c:42:a1:9f:00:1b",
    "2001:470:1f0b:1a2b:3c4d:5e6f:7a8b:9c0d",
    # people
    "ulrike.vandermeulen", "uvandermeulen", "ulrike.vandermeulen@ulmenhof.example", "Ulrike", "+49 171 5553344",
    "u.m+llm@ulmenhof.co",
    # paths
    "/home/ulrike/models/ft-ulmenhof", "/mnt/nfs/ulmenhof/ckpt-4711", "~ulrike/run.sh", "/data/ulmenhof",
    "C:\\Users\\ulrike\\model", "../ulmenhof/secret.json", "/proc/4711/ulmenhof",
    # URLs
    "https://ulrike:hunter2@git.ulmenhof.example/x.git", "s3://ulmenhof-weights/prod/7b",
    "redis://:hunter2@cache:6379/0",
    "http://intranet.ulmenhof/wiki?user=ulrike", "postgresql://llm:hunter2@db1/prod",
    # keys and tokens (made up)
    "sk-Zq8vT1mYpL0aXw3kRb7NcD5e", "sk-proj-abcDEF123_ghiJKL456-mnoPQR789", "hf_QxYzAbCdEfGhIjKlMnOpQrStUvWx",
    "AKIAZ7QQ4EXAMPLE1234", "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", "glpat-Xy12_zAbCdEfGhIjKlMn",
    "xoxb-123456789012-abcdefghijkl", "nvapi-aB3dE5gH7jK9mN1pQ3sT5vW7", "AIzaSyA1b2C3d4E5f6G7h8I9j0KlMnOpQrStUv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ1bHJpa2UifQ.c2lnbmF0dXJlMTIz", "Bearer Zq8vT1mYpL0aXw3k",
    "Basic dWxyaWtlOmh1bnRlcjI=",
    "api_key=Zq8vT1mYpL0a", "password: hunter2hunter2", "X-Api-Key: Zq8vT1mYpL0a",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG",
    "3f786850e387550fdab836ed7e6dc881de23001b", "ya29.a0AfH6SMBxyzXYZ123",
    # identifiers
    "GPU-1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d", "7f3c1e9a-0b2d-4c5e-8f6a-9d8c7b6a5e4f", "1565023014471",
    "chatcmpl-9f8e7d6c5b4a39281706f5e4d3c2b1a0", "4111-1111-1111-1111", "cmpl-ulmenhof-42",
    # what people write
    "Erzähl Ulrike nichts vom Umzug", "the merger with Ulmenhof closes on Friday", "my diagnosis is confidential",
    "ulmenhof-chat-7b-v3", "org-ulmenhof/llama-ft",
)  # fmt: skip

STAMP = "[2026-02-03 04:05:06 TP0] "
DECODE = "Decode batch, #running-req: 8, #token: 640, token usage: 0.25, cuda graph: True, gen throughput (token/s): " \
    "123.45, #queue-req: 0, "
STATS = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 tokens/s, Running: 2 reqs, " \
    "Waiting: 0 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%"
VLLM = "(APIServer pid=7) INFO 02-03 04:05:06 [loggers.py:271] "
PLACES = {
    "unknown line": "{s}",
    "unknown line with a stamp": STAMP + "now serving {s} for you",
    "unknown vLLM line": VLLM + "{s} is ready",
    "server args": STAMP + "server_args=ServerArgs(model_path='{s}', tp_size=4, host='{s}', api_key='{s}')",
    "server args as a dict": STAMP + "server_args={{'model_path': '/m/x', 'tokenizer_path': '{s}', 'tp_size': 4}}",
    "server args, any field": STAMP + "server_args=ServerArgs(tp_size=4, chat_template=\"{s}\", log_dir=\"{s}\")",
    "server args, bare": STAMP + "server_args=ServerArgs(tp_size=4, log_dir={s}, pp_size=1)",
    "server args, key": STAMP + "server_args={{'tp_size': 4, 'extra': {{'{s}': 1}}, 'pp_size': 1}}",
    "server args, cut": STAMP + "server_args=ServerArgs(tp_size=4, lora_paths=['a', '{s}",
    "non-default args": VLLM + "non-default args: {{'model': '{s}', 'served_model_name': ['{s}'], 'seed': 3}}",
    "engine config": VLLM + "Initializing a V1 LLM engine (v0.26.0) with config: model='{s}', tokenizer='{s}', "
                     "dtype=torch.bfloat16, served_model_name={s}, tensor_parallel_size=2",
    "namespace": VLLM + "args: Namespace(host='{s}', port=8000, api_key='{s}', ssl_keyfile='{s}')",
    "dump of the state": VLLM + "Dumping input data for V1 LLM engine (v0.26.0) with config: model='{s}', prompt={s}",
    "traceback": '  File "{s}", line 12, in {s}',
    "traceback, value": "ValueError: the prompt '{s}' is too long",
    "traceback, head": "{s} Traceback (most recent call last): {s}",
    "request log": STAMP + "Receive: obj=GenerateReqInput(rid='{s}', text='{s}', sampling_params={{'stop': '{s}'}})",
    "finished request": STAMP + "Finish: obj=GenerateReqInput(text=\"{s}\"), out={{'text': \"{s}\", 'n': 3}}",
    "vLLM request": VLLM + "Received request {s}: prompt: '{s}', params: SamplingParams(n=1, stop=['{s}'])",
    "access line": STAMP + 'INFO:     127.0.0.1:47242 - "POST /v1/chat/completions?key={s} HTTP/1.1" 200 OK',
    "access line, route": 'INFO:     127.0.0.1:47242 - "GET /u/{s} HTTP/1.1" 404 {s}',
    "access line, client": '{s}:47242 - "POST /generate HTTP/1.1" 200 OK',
    "access line, odd": '{s} "POST /generate HTTP/1.1" 200 {s}',
    "docker json": '{{"log":"' + STAMP + DECODE + '\\n","stream":"stderr","attrs":{{"tag":"{s}"}},"time":'
                   '"2026-02-03T04:05:06.1Z"}}',
    "docker json, unknown": '{{"log":"{s}\\n","stream":"stdout","time":"2026-02-03T04:05:06.1Z"}}',
    "json logger": '{{"asctime":"2026-02-03 04:05:06","host":"{s}","message":"' + STATS + '","user":"{s}"}}',
    "kubernetes label": "[pod/{s}/server] " + STAMP + DECODE,
    "compose label": "{s}  | " + STAMP + DECODE,
    "journald": "Feb 03 04:05:06 {s} vllm[1234]: " + VLLM + STATS,
    "ray label": "(SGLangEngine pid=35555, ip={s}) " + STAMP + DECODE,
    "rank prefix": "{s}: " + STAMP + DECODE,
    "prose before a record": "somebody wrote {s} here " + STAMP + DECODE,
    "glued behind a record": STAMP + DECODE + STAMP + "{s} said so",
    "broken record": STAMP + "Decode batch, #running-req: 8, {s}, #token: 64",
    "cut record": STAMP + "Decode batch, #running-req: 8, #tok{s}",
    "prose about a record": STAMP + "Decode batch of {s} is slow",
    "out of memory": STAMP + "{s}: CUDA out of memory. Tried to allocate 2.00 GiB. Process {s} has 3 GiB",
    "crash": STAMP + "Scheduler hit an exception: {s}",
    "crash of a child": VLLM + "{s} EngineCore died unexpectedly (exit code: -9) {s}",
    "ready": STAMP + "The server is fired up and ready to roll! {s}",
    "device file": VLLM + "Config file not found at {s}/E=8,device_name=NVIDIA_H200.json {s}",
    "progress bar": "Loading {s}: 100%|███| 5/5 [00:10<00:00,  2.12s/it] {s}",
    "web server": "INFO:     Uvicorn running on {s} (Press CTRL+C to quit)",
    "watchdog": STAMP + "Watchdog timeout (watchdog_timeout=300, {s})",
    "colours": "\x1b[36m{s}\x1b[0m " + STAMP + DECODE,
    "TensorRT": "[02/03/2026-04:05:06] [TRT-LLM] [I] {s}",
    "llama.cpp": "slot launch_slot: id 0 | task 3 | {s}",
}  # fmt: skip


def core(secret: str) -> str:
    """Return what of a secret must not be seen: without the words around a key."""
    words = secret.rstrip("=").replace("=", " ").split()
    is_named = len(words) == 2 and secret.startswith(("Bearer", "Basic", "api", "pass", "X-", "AWS"))
    return words[-1] if is_named else secret


@pytest.mark.parametrize("place", PLACES)
def test_no_planted_secret_survives(place):
    survivors = []
    for secret in SECRETS:
        line = PLACES[place].replace("{{", "{").replace("}}", "}").replace("{s}", secret)
        redacted = Redactor().line(line)
        if secret.lower() in redacted.lower() or core(secret).lower() in redacted.lower():
            survivors.append((secret, redacted))
        assert "ulmenhof" not in redacted.lower() and "hunter2" not in redacted.lower(), (secret, redacted)
    assert survivors == []


@pytest.mark.parametrize("place", PLACES)
def test_a_second_time_changes_nothing(place):
    for secret in SECRETS:
        line = PLACES[place].replace("{{", "{").replace("}}", "}").replace("{s}", secret)
        once = Redactor().line(line)
        assert Redactor().line(once) == once


def test_the_same_thing_has_the_same_placeholder_and_other_things_another():
    redactor = Redactor()
    lines = [redactor.line(f"[pod/{pod}/server] {STAMP}{DECODE}") for pod in ("ulm-a", "ulm-b", "ulm-a")]
    assert lines[0] == lines[2] != lines[1]
    assert lines[0] == f"[pod/redacted_name_1/server] {STAMP}{DECODE}"
    assert redactor.names == {"redacted_name_1": "ulm-a", "redacted_name_2": "ulm-b"}
    client = redactor.line('INFO:     10.9.8.7:123 - "POST /generate HTTP/1.1" 200 OK')
    assert client == 'INFO:     240.0.0.1:123 - "POST /generate HTTP/1.1" 200 OK'


def test_what_ingest_reads_stays():
    redactor = Redactor(lambda name: "Qwen3-8B" if name.endswith("Qwen3-8B") else None)
    kept = (
        STAMP + DECODE, VLLM + "Engine 000: " + STATS, "", "   ", STAMP + DECODE + "\r",
        VLLM + "Model loading took 15.27 GiB memory and 3.1 seconds",
        'INFO:     127.0.0.1:47242 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    )
    assert [redactor.line(line) for line in kept] == list(kept)
    dump = "server_args=ServerArgs(model_path='/home/u/Qwen3-8B', tp_size=4, quantization='fp8', cuda_graph_bs=[1, 2])"
    assert redactor.line(STAMP + dump) == STAMP + dump.replace("/home/u/", "")
    assert redactor.line(STAMP + "a secret") == STAMP + "redacted_text_8"


def test_exports_keep_numbers_and_metrics():
    names = Redactor()
    scrape = 'vllm:num_requests_running{engine="0",model_name="/home/ulrike/m",host="gpu17"} 8.0'
    assert redact_scrape_line(scrape, names) == (
        'vllm:num_requests_running{engine="0",model_name="redacted_model_1",host="redacted_name_1"} 8.0')
    assert redact_scrape_line("# HELP a:b Ulrike's help", names) == "# HELP a:b redacted_text_16"
    request = json.dumps({"prompt": "tell Ulrike", "n": 3, "t": 1.5, "request_parameters": json.dumps({"stop": "Ulm"})})
    redacted = json.loads(redact_json_line(request, names))
    assert (redacted["n"], redacted["t"]) == (3, 1.5) and "Ul" not in json.dumps(redacted)


@given(
    before=st.text(max_size=40), after=st.text(max_size=40), secret=st.sampled_from(SECRETS),
    place=st.sampled_from(sorted(PLACES)), at=st.integers(0, 200),
)
@settings(max_examples=150, deadline=None)
def test_no_secret_survives_anywhere(before, after, secret, place, at):
    line = PLACES[place].replace("{{", "{").replace("}}", "}").replace("{s}", "x")
    at = min(at, len(line))
    text = "".join(f"{line[:at]} {before} {secret} {after} {line[at:]}".splitlines())
    once = Redactor().line(text)
    assert secret not in once
    assert Redactor().line(once) == once
    assert "\n" not in once


@given(st.text(alphabet=st.sampled_from("redacted_name1 #:,.={}[]()'\"\\/-@nA0\x1b\r\t"), max_size=60))
@settings(max_examples=150, deadline=None)
def test_odd_text_is_stable(text):
    once = Redactor().line(text)
    assert Redactor().line(once) == once


def same_but_for_names(card: dict) -> dict:
    """Return a scorecard without what redaction may change: paths, hashes, the model's name."""
    plain = json.loads(json.dumps(card))
    for name in ("log_sha256", "model", "command", "notes", "facts"):
        plain["run"].pop(name)
    plain["ingest"].pop("per_file", None)
    for item in plain["diagnosis"]:
        item.pop("evidence_for")  # what is not known names the model
    return plain


@pytest.mark.parametrize("sample", ["sglang-sweep", "vllm-sweep", "sim-field-case-a", "sim-healthy-moe"])
def test_samples_analyse_to_the_same_numbers(sample, data, tmp_path):
    original = data / "samples" / sample / "server.log"
    done = redact(original, tmp_path / "safe.log")
    assert done.differences == () and done.is_checked
    assert original.read_bytes().count(b"\n") == (tmp_path / "safe.log").read_bytes().count(b"\n")
    cards = [same_but_for_names(analyse(path).scorecard) for path in (original, tmp_path / "safe.log")]
    assert cards[0] == cards[1]


REAL = (
    "magik6k/sglang-pr.log", "magik6k/sglang-tp4pp2.log", "magik6k/sglang-k25-int4.log", "sostrowsk/sglang-int4.log",
    "sostrowsk/vllm-int4.log", "sostrowsk/vllm-run1-oom.log", "rodder5/logs_bf16.stderr",
    "own/vllm-restarts/server.log",
    "cmontemuino/Llama-3.1-8B_latency_bs1_in128_out128_float16_mem0.9_20250807_190056.log",
    "djangodevreng/nemotron-4b/_bootlog.txt", "own/llamacpp-sweep/server.log", "own/vllm-worker-killed/server.log",
)


@pytest.mark.parametrize("name", REAL)
def test_real_logs_read_the_same(name, shared, tmp_path):
    done = redact(shared / "logs" / name, tmp_path / "safe.log")
    assert done.differences == ()
    again = redact(tmp_path / "safe.log", tmp_path / "again.log", check=False)
    assert (tmp_path / "again.log").read_bytes() == (tmp_path / "safe.log").read_bytes()
    assert again.n_changed == 0


def test_every_line_variant_reads_the_same(shared, tmp_path):
    assert redact(shared / "log-line-variants.txt", tmp_path / "safe.log").differences == ()


def test_scrapes_read_the_same(shared, tmp_path):
    done = redact(shared / "logs" / "own" / "vllm-kv-pressure" / "metrics_1hz.txt.gz", tmp_path / "safe.txt.gz")
    assert done.differences == ()


def test_packed_folders_and_names(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    text = f"{STAMP}{DECODE}\n{STAMP}hello Ulrike\n"
    (folder / "ulmenhof-node1.log.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "ulmenhof-node2.log").write_text(text)
    done = redact(folder, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["redacted_name_1-node1.log.gz", "redacted_name_1-node2.log"]
    unpacked = gzip.decompress((tmp_path / "out" / names[0]).read_bytes()).decode()
    assert unpacked == f"{STAMP}{DECODE}\n{STAMP}redacted_text_16\n" == (tmp_path / "out" / names[1]).read_text()
    assert done.differences == () and done.n_lines == 4


def test_never_over_the_input_and_whole_or_not_at_all(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(f"{STAMP}{DECODE}\n")
    (tmp_path / "link.log").symlink_to(log)
    for out in (log, tmp_path / "link.log"):
        with pytest.raises(RooflogError, match="found the input itself"):
            redact(log, out)
    broken = tmp_path / "b.log.gz"
    broken.write_bytes(gzip.compress(f"{STAMP}{DECODE}\n".encode() * 9)[:-12])
    with pytest.raises(RooflogError):
        redact([log, broken], tmp_path / "out")
    assert log.read_text() == f"{STAMP}{DECODE}\n" and not (tmp_path / "out").exists()


def test_a_difference_is_said(tmp_path):
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    logs[0].write_text(f"{STAMP}{DECODE}\n")
    logs[1].write_text(f"{STAMP}{DECODE.replace('640', '641')}\n")
    assert compare([str(logs[0])], [str(logs[1])]) == ["samples: other values in used_tok"]
    assert compare([str(logs[0])], [str(logs[0])]) == []


def test_keep_other_still_replaces_shapes():
    text = STAMP + "loaded from /home/ulrike/x with hf_QxYzAbCdEfGhIjKlMnOpQr for 10.1.2.3"
    kept = Redactor(keep_other=True).line(text)
    assert kept == STAMP + "loaded from redacted_path_1 with redacted_key_1 for 240.0.0.1"


def test_commands(data, tmp_path, capsys):
    log = data / "samples" / "sglang-sweep" / "server.log"
    assert main(["redact", str(log), "--out", str(tmp_path / "x.log"), "--map", str(tmp_path / "m.json")]) == 0
    out = capsys.readouterr().out
    assert "1085 lines" in out and "Compared: same lines by class" in out and "secret" in out
    assert (tmp_path / "m.json").stat().st_mode & 0o077 == 0
    assert main(["redact", str(log), "--out", str(tmp_path / "y.log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []
    assert main(["redact", str(tmp_path / "no.log"), "--out", str(tmp_path / "z.log")]) == 3
    assert main(["bug-report", str(log), "--out", str(tmp_path / "r.zip")]) == 0
    assert "versions.json" in capsys.readouterr().out
    assert main(["bug-report", str(log), "--out", str(tmp_path / "r.tar")]) == 3


def test_bug_report_holds_nothing_secret(tmp_path):
    log = tmp_path / "ulmenhof.log"
    lines = [f"{STAMP}{DECODE}", STAMP + "Decode batch, #running-req: 8, ulmenhof", "ulmenhof", f"{STAMP}{DECODE}"] * 50
    log.write_text("\n".join(lines) + "\n")
    contents, done = bug_report(log, tmp_path / "r.zip")
    names = [name for name, _ in contents]
    assert names == ["README.txt", "ingest.json", "malformed.txt", "redaction.json", "versions.json",
                     "logs/redacted_name_1.log"]
    raw = (tmp_path / "r.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        texts = {name: archive.read(name).decode() for name in names}
    for text in (*names, *texts.values()):
        assert "ulmenhof" not in text and str(tmp_path) not in text and "/tmp" not in text
    assert json.loads(texts["ingest.json"])["lines"]["malformed"] == 50 and "#running-req: 8" in texts["malformed.txt"]
    assert done.differences == ()
    contents, _ = bug_report(log, tmp_path / "p.zip", part_bytes=2000)
    assert [Path(name).suffix for name, _ in contents][-2:] == [".head", ".tail"]
