"""The parts of a planned script that are the same for every experiment. Written for bash 4.4 and newer."""

COMMON = r"""
# Stopping: whatever was started is stopped, whatever was written is kept
SERVER_PID=""
CLIENT_PID=""
TELEMETRY_PID=""
WATCH_PID=""
PHASE_AT=""
DONE=0

say() { printf '%s\n' "rooflog plan: $*" >&2; }
die() { say "$*"; exit 3; }

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || die "needs $tool, found none; install it or put it in PATH"
  done
}

# A group of its own for each process: its children are stopped with it
stop_group() {
  local pid="$1" until=$((SECONDS + STOP_TIMEOUT_S))
  [[ -n "$pid" ]] || return 0
  kill -TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || true  # no group yet: just started
  while kill -0 -- "-$pid" 2>/dev/null || kill -0 "$pid" 2>/dev/null; do
    if ((SECONDS > until)); then
      kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null || true
    fi
    if ((SECONDS > until + 10)); then
      say "process group $pid is still there"
      break
    fi
    sleep 0.1
  done
  wait "$pid" 2>/dev/null || true
}

# shellcheck disable=SC2329  # stop_all calls it
restore_device() { :; }  # replaced where the experiment changes the device

stop_all() {
  stop_group "$WATCH_PID"; WATCH_PID=""
  stop_group "$CLIENT_PID"; CLIENT_PID=""
  stop_group "$TELEMETRY_PID"; TELEMETRY_PID=""
  stop_group "$SERVER_PID"; SERVER_PID=""
  local pid
  for pid in $(jobs -p); do stop_group "$pid"; done  # started, but interrupted before its number was kept
  restore_device
}

# shellcheck disable=SC2329  # the trap calls it
finish() {
  local code=$?
  trap '' INT TERM HUP  # a second Ctrl-C must not leave the server behind
  stop_all
  if ((DONE == 0)) && [[ -d "$OUT" ]]; then
    say "stopped before the end (exit $code); kept in $OUT:"
    ls -1 "$OUT" >&2 || true
  fi
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

answers() { curl --silent --fail --max-time 5 --output /dev/null "http://127.0.0.1:$PORT/health"; }

need_model_and_port() {
  [[ -n "$MODEL" ]] || die "the model is not known: MODEL=name $0"
  if answers; then die "something answers on port $PORT already; stop it, or choose another port: PORT=... $0"; fi
}

start_server() {
  local until=$((SECONDS + READY_TIMEOUT_S))
  printf '%q ' "${SERVER[@]}" > "$OUT/server_command.txt"
  say "starting the server, log in $OUT/server.log"
  setsid "${SERVER[@]}" > "$OUT/server.log" 2>&1 &
  SERVER_PID=$!
  until answers; do
    kill -0 "$SERVER_PID" 2>/dev/null || { tail -n 5 "$OUT/server.log" >&2; die "the server ended during start-up"; }
    ((SECONDS <= until)) || die "the server was not ready after $READY_TIMEOUT_S s"
    sleep "$POLL_S"
  done
  say "the server is ready"
}

# The client runs in the background and is waited for: a wait can be interrupted, a foreground command cannot
start_client() {
  say "N=$1: $4 requests of $2 prompt and $3 output tokens"
  client "$@" > "$OUT/client-$5.txt" 2>&1 &
  CLIENT_PID=$!
}

end_client() {
  local code=0
  wait "$CLIENT_PID" || code=$?
  CLIENT_PID=""
  ((code == 0)) || die "the client failed at N=$1 (exit $code); see $OUT/client-*.txt"
  kill -0 "$SERVER_PID" 2>/dev/null || { tail -n 5 "$OUT/server.log" >&2; die "the server ended at N=$1"; }
}

"""

RUN_LEVEL = r"""
run_level() {
  start_client "$@"
  end_client "$1"
}
"""

NEXT_PHASE = r"""
# What follows belongs to other conditions: its part of the log is read by itself
next_phase() { PHASE_AT=$(wc -c < "$OUT/server.log"); }
"""

CLIENT = {
    "sglang": r"""
# N, prompt tokens, output tokens, requests, number of the run (and seed: the same prompts twice would be cached)
client() {
  exec setsid python3 -m sglang.bench_serving --backend sglang --host 127.0.0.1 --port "$PORT" --model "$MODEL" \
    --dataset-name random-ids --random-input-len "$2" --random-output-len "$3" --random-range-ratio 1 \
    --num-prompts "$4" --max-concurrency "$1" --seed "$5" --output-file "$OUT/client.jsonl"
}
CLIENT_FILE="$OUT/client.jsonl"
""",
    "vllm": r"""
# N, prompt tokens, output tokens, requests, number of the run (and seed: the same prompts twice would be cached)
client() {
  exec setsid vllm bench serve --host 127.0.0.1 --port "$PORT" --model "$MODEL" --served-model-name "$SERVED_MODEL" \
    --dataset-name random --random-input-len "$2" --random-output-len "$3" --random-range-ratio 0 --ignore-eos \
    --num-prompts "$4" --max-concurrency "$1" --seed "$5" \
    --save-result --result-dir "$OUT" --result-filename "client-$5.json"
}
CLIENT_FILE="$OUT/client-1.json"
""",
}
"""random-ids needs no download. --random-range-ratio: SGLang draws lengths from ratio x length to length, so 1 is fixed
(its default 0 is not); vLLM draws from length x (1 +- ratio), so 0 is fixed."""

TELEMETRY = r"""
start_telemetry() {
  if ! command -v nvidia-smi >/dev/null; then
    say "no nvidia-smi: no telemetry"
    return 0
  fi
  local fields="timestamp,index,name,power.draw,power.limit,clocks.sm,clocks.mem,utilization.gpu,utilization.memory"
  fields+=",temperature.gpu,memory.used,memory.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current"
  fields+=",clocks_throttle_reasons.active"  # old name, which new drivers take too
  setsid nvidia-smi --query-gpu="$fields" --format=csv -lms "$SAMPLE_MS" \
    > "$OUT/telemetry.csv" 2> "$OUT/telemetry.err" &
  TELEMETRY_PID=$!
}
"""

_STEADY = r"""
need_watch() {
  rooflog watch --help >/dev/null 2>&1 \
    || die "needs 'rooflog watch' to prove steady decode before a profile, this rooflog has none; update it"
}

run_level_with_profile() {
  start_client "$@"
  say "waiting until decode is steady"
  setsid rooflog watch "$OUT/server.log" --until steady --timeout "$STEADY_TIMEOUT_S" > "$OUT/watch-$5.txt" 2>&1 &
  WATCH_PID=$!
  if wait "$WATCH_PID"; then
    WATCH_PID=""
    profile "$1" "$5"
  else
    WATCH_PID=""
    say "N=$1: no profile, decode was not steady within $STEADY_TIMEOUT_S s (see $OUT/watch-$5.txt)"
  fi
  end_client "$1"
}

await_traces() {
  local folder="$1" until=$((SECONDS + TRACE_TIMEOUT_S))
  until compgen -G "$folder/*" >/dev/null; do
    if ((SECONDS > until)); then
      say "no trace in $folder after $TRACE_TIMEOUT_S s"
      return 0
    fi
    sleep "$POLL_S"
  done
}
"""

PROFILE = {
    "sglang": _STEADY + r"""
profile() {
  local folder="$OUT/profile/N$1" request
  mkdir -p "$folder"
  printf -v request '{"output_dir": "%s", "num_steps": %d, "activities": ["CPU", "GPU"], "record_shapes": true}' \
    "$folder" "$PROFILE_STEPS"
  say "N=$1: profile of $PROFILE_STEPS steps"
  curl --silent --show-error --fail --max-time 60 --output /dev/null -X POST -H 'Content-Type: application/json' \
    -d "$request" "http://127.0.0.1:$PORT/start_profile"
  await_traces "$folder"
}
""",
    "vllm": _STEADY + r"""
profile() {
  local folder="$OUT/profile/N$1"
  mkdir -p "$folder"
  say "N=$1: profile of $PROFILE_S s"
  curl --silent --show-error --fail --max-time 60 --output /dev/null -X POST "http://127.0.0.1:$PORT/start_profile"
  sleep "$PROFILE_S"
  curl --silent --show-error --fail --max-time 600 --output /dev/null -X POST "http://127.0.0.1:$PORT/stop_profile"
  # one folder for all profiles of a server: what is new belongs to this level
  find "$OUT/profile" -maxdepth 1 -type f -exec mv -t "$folder" {} +
  await_traces "$folder"
}
""",
}

_ROOT = r"""
need_root() {
  # shellcheck disable=SC2086  # SUDO holds several words
  $SUDO true || die "needs to become root for nvidia-smi; run as root, or set SUDO"
}
"""

DEVICE = {
    "lock_clock": _ROOT + r"""
# 20 % below the highest clock seen under load so far
change_device() {
  local clock_mhz
  clock_mhz=$(awk -F', *' 'NR == 1 { for (i = 1; i <= NF; i++) if ($i ~ /^clocks.*sm/) c = i }
    NR > 1 && c && $c + 0 > m { m = $c + 0 } END { printf "%d", 0.8 * m }' "$OUT/telemetry.csv")
  ((clock_mhz > 0)) || die "no SM clock in $OUT/telemetry.csv"
  say "locking the SM clock at $clock_mhz MHz"
  DEVICE_CHANGED=1
  # shellcheck disable=SC2086  # SUDO holds several words
  $SUDO nvidia-smi --lock-gpu-clocks="0,$clock_mhz" > "$OUT/device.txt"
}
DEVICE_CHANGED=0
restore_device() {
  ((DEVICE_CHANGED == 1)) || return 0
  DEVICE_CHANGED=0
  # shellcheck disable=SC2086
  $SUDO nvidia-smi --reset-gpu-clocks >> "$OUT/device.txt" || say "could not reset the clocks: nvidia-smi -rgc"
}
""",
    "power_limit": _ROOT + r"""
# 30 % below the limit in force, each device by itself
change_device() {
  local index limit_w
  nvidia-smi --query-gpu=index,power.limit --format=csv,noheader,nounits > "$OUT/power_limits.csv"
  while IFS=', ' read -r index limit_w; do
    say "device $index: power limit $limit_w W, lowered by 30 %"
    DEVICE_CHANGED=1
    # shellcheck disable=SC2086  # SUDO holds several words
    $SUDO nvidia-smi -i "$index" -pl "$(awk -v w="$limit_w" 'BEGIN { printf "%d", 0.7 * w }')" >> "$OUT/device.txt"
  done < "$OUT/power_limits.csv"
}
DEVICE_CHANGED=0
restore_device() {
  local index limit_w
  ((DEVICE_CHANGED == 1)) || return 0
  DEVICE_CHANGED=0
  while IFS=', ' read -r index limit_w; do
    # shellcheck disable=SC2086
    $SUDO nvidia-smi -i "$index" -pl "${limit_w%%.*}" >> "$OUT/device.txt" \
      || say "could not set the power limit of device $index back to $limit_w W"
  done < "$OUT/power_limits.csv"
}
""",
}

END = r"""
# What the new log cannot know
cat > "$OUT/facts.json" <<'FACTS'
@FACTS@
FACTS

# Reading it
parameters=(--context "$OUT/facts.json" --out "$OUT/runs")
[[ ! -s "$OUT/telemetry.csv" ]] || parameters+=(-p telemetry "$OUT/telemetry.csv")
[[ ! -s "$CLIENT_FILE" ]] || parameters+=(-p client "$CLIENT_FILE")
trace=$(find "$OUT" -path '*/profile/*' -type f -name '*.json*' | sort | tail -n 1)
[[ -z "$trace" ]] || parameters+=(-p profile "$trace")
logs=("$OUT/server.log")
if [[ -n "$PHASE_AT" ]]; then
  head -c "$PHASE_AT" "$OUT/server.log" > "$OUT/server-before.log"
  tail -c "+$((PHASE_AT + 1))" "$OUT/server.log" > "$OUT/server-after.log"
  logs=("$OUT/server-before.log" "$OUT/server-after.log")
fi
DONE=1
worst=0
for log in "${logs[@]}"; do
  say "$(printf '%q ' rooflog run "$log" "${parameters[@]}")"
  code=0
  rooflog run "$log" "${parameters[@]}" || code=$?
  ((code <= worst)) || worst=$code
done
say "all files are in $OUT"
exit "$worst"
"""
