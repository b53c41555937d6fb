"""A million lines, twelve days of one server, through a watcher: ``python tests/watch/soak.py [LINES]``.

Prints memory and CPU as it goes; ends with 1 when memory grew by more than `MAX_GROWTH_BYTES` after the first tenth.
"""

import datetime
import os
import sys
import time
from pathlib import Path

from helpers.watch import Watcher

MAX_GROWTH_BYTES = 20e6
BLOCK_LINES = 1000
LEVELS = (1, 2, 4, 8, 16, 32, 64)
LINES_PER_LEVEL = 200
READY = "[2026-11-02 09:00:00] The server is fired up and ready to roll!"
TICK = "[{}] Decode batch, #running-req: {}, #token: {}, token usage: {:.2f}, cuda graph: True, " \
       "gen throughput (token/s): {:.2f}, #queue-req: 0"
PREFILL = "[{}] Prefill batch, #new-seq: {}, #new-token: {}, #cached-token: 0, token usage: 0.00, #running-req: 0, " \
          "#queue-req: 0"
ACCESS = '[{}] INFO:     127.0.0.1:{} - "POST /generate HTTP/1.1" 200 OK'


def lines(n_lines):
    """Yield a sweep that never ends: a line of 40 steps a second, one in four of them an access line."""
    now = datetime.datetime(2026, 11, 2, 9)
    yield READY
    for number in range(1, n_lines):
        now += datetime.timedelta(seconds=1)
        place, level = number % LINES_PER_LEVEL, LEVELS[number // LINES_PER_LEVEL % len(LEVELS)]
        if place == 0:
            yield PREFILL.format(now, level, level)
        elif number % 4 == 3:
            yield ACCESS.format(now, number % 60000)
        else:
            token = level * 40 * place
            yield TICK.format(now, level, token, token / 2e6, level / (0.020 + 0.0005 * level))


def resident_bytes():
    """Return the memory of this process [B]; Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(n_lines):
    """Feed the lines; return the exit code."""
    watcher, block, first_bytes, began_s = Watcher(), [], None, time.process_time()
    for number, line in enumerate(lines(n_lines), 1):
        block.append(line)
        if len(block) == BLOCK_LINES or number == n_lines:
            watcher.take("".join(f"{one}\n" for one in block).encode())
            watcher.status()
            block.clear()
        if number % (n_lines // 10) == 0:
            now_bytes = resident_bytes()
            first_bytes = first_bytes or now_bytes
            print(f"{number} lines: {now_bytes / 1e6:.1f} MB, {time.process_time() - began_s:.1f} s CPU, "
                  f"{sum(watcher.clean_counts.values())} clean intervals", flush=True)
    watcher.finish()
    print(watcher.levels.law_values())
    return int(resident_bytes() - first_bytes > MAX_GROWTH_BYTES)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10**6))
