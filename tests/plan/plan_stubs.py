"""Stand-ins for what a planned script calls: engines, clients, nvidia-smi, rooflog. First in PATH, they leave notes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SERVER = r'''
import http.server, json, os, pathlib, subprocess, sys, time

notes = pathlib.Path(os.environ["NOTES"])
engine = sys.argv[1]
words = sys.argv[2:]
env = {name: value for name, value in os.environ.items() if name.startswith(("SGLANG_", "VLLM_"))}
(notes / "server.json").write_text(json.dumps({"words": words, "env": env}))
if os.environ.get("FAIL_START"):
    print("RuntimeError: no memory", flush=True)
    sys.exit(1)
# a worker, as engines have them; it may be deaf to the polite signal
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)" if os.environ.get("DEAF") \
    else "import time; time.sleep(600)"
worker = subprocess.Popen([sys.executable, "-c", code])
with (notes / "pids").open("a") as f:
    f.write(f"{os.getpid()}\n{worker.pid}\n")
port = int(words[words.index("--port") + 1])
profile_dir = next((json.loads(w)["torch_profiler_dir"] for w in words if "torch_profiler_dir" in w), None)

def say(text):
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def reply(self):
        self.send_response(200)
        self.end_headers()

    def do_GET(self):
        self.reply()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        with (notes / "posts").open("a") as f:
            f.write(json.dumps({"path": self.path, "body": body}) + "\n")
        if self.path == "/start_profile" and engine == "sglang":
            folder = pathlib.Path(json.loads(body)["output_dir"])
            (folder / "1-TP-0.trace.json.gz").write_bytes(b"trace")
        if self.path == "/stop_profile":
            pathlib.Path(profile_dir).mkdir(exist_ok=True)
            (pathlib.Path(profile_dir) / "rank0.pt.trace.json.gz").write_bytes(b"trace")
        if self.path.startswith("/load/"):
            n = int(self.path.split("/")[-1])
            say(f"Prefill batch, #new-seq: {n}, #new-token: {n * 8}, #cached-token: 0, token usage: 0.00, "
                "#running-req: 0, #queue-req: 0, ")
            for i in range(6):
                say(f"Decode batch, #running-req: {n}, #token: {n * (8 + 40 * i)}, token usage: 0.01, "
                    f"cuda graph: True, gen throughput (token/s): {n / 0.02:.2f}, #queue-req: 0, ")
        self.reply()

server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
say("server_args=ServerArgs(model_path='m', tp_size=1, decode_log_interval=40)")
say("The server is fired up and ready to roll!")
server.serve_forever()
'''

CLIENT = r'''
import json, os, pathlib, sys, time, urllib.request

notes = pathlib.Path(os.environ["NOTES"])
words = sys.argv[1:]
with (notes / "pids").open("a") as f:
    f.write(f"{os.getpid()}\n")
with (notes / "clients").open("a") as f:
    f.write(json.dumps(words) + "\n")
value = lambda name: words[words.index(name) + 1]
urllib.request.urlopen(urllib.request.Request(
    f"http://127.0.0.1:{value('--port')}/load/{value('--max-concurrency')}", method="POST", data=b""))
time.sleep(float(os.environ.get("CLIENT_S", "0.1")))
if os.environ.get("FAIL_CLIENT") == value("--seed"):
    sys.exit(7)
if "--output-file" in words:
    with open(value("--output-file"), "a") as f:
        f.write(json.dumps({"max_concurrency": int(value("--max-concurrency"))}) + "\n")
else:
    pathlib.Path(value("--result-dir"), value("--result-filename")).write_text("{}")
'''

PYTHON3 = """#!/bin/sh
case "$2" in
  sglang.launch_server) shift 2; exec {python} {bin}/server.py sglang "$@";;
  sglang.bench_serving) shift 2; exec {python} {bin}/client.py "$@";;
esac
echo "unexpected: $*" >&2; exit 9
"""

VLLM = """#!/bin/sh
case "$1" in
  serve) shift; exec {python} {bin}/server.py vllm "$@";;
  bench) shift 2; exec {python} {bin}/client.py "$@";;
esac
echo "unexpected: $*" >&2; exit 9
"""

NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *-lms*) echo $$ >> "$NOTES/pids"
          echo "timestamp, index, clocks.current.sm [MHz], power.draw [W]"
          while :; do echo "2026/11/29 12:00:00.000, 0, 1980 MHz, 300.00 W"; sleep 0.05; done;;
  *power.limit*) printf '0, 600.00\\n1, 600.00\\n';;
  *) echo "$*" >> "$NOTES/device";;
esac
"""

ROOFLOG = """#!/bin/sh
case "$1 $2" in
  "watch --help") exit "${{NO_WATCH:-0}}";;
  watch*) echo $$ >> "$NOTES/pids"; echo "$*" >> "$NOTES/watch"; sleep "${{WATCH_S:-0}}"; exit "${{WATCH_CODE:-0}}";;
  run*) {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >> "$NOTES/runs"; exit "${{RUN_CODE:-0}}";;
esac
exit 9
"""


def install(folder: Path) -> dict[str, str]:
    """Write the stand-ins and return the environment in which they come first."""
    bin_dir, notes = folder / "bin", folder / "notes"
    bin_dir.mkdir()
    notes.mkdir()
    (bin_dir / "server.py").write_text(SERVER)
    (bin_dir / "client.py").write_text(CLIENT)
    for name, text in (("python3", PYTHON3), ("vllm", VLLM), ("nvidia-smi", NVIDIA_SMI), ("rooflog", ROOFLOG)):
        path = bin_dir / name
        filled = text if name == "nvidia-smi" else text.format(python=sys.executable, bin=bin_dir)
        path.write_text(filled)
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}", "NOTES": str(notes), "OUT": str(folder / "out"),
            "STOP_TIMEOUT_S": "1", "PROFILE_S": "0", "POLL_S": "0.1", "SUDO": ""}
