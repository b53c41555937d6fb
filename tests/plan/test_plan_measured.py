"""Prompts from the records of a log: lengths and rates against what the clients sent."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from helpers.ingest import read_log
from helpers.plan import prompts_of
from helpers.schema import SAMPLES, conform


def samples(*rows: dict) -> pd.DataFrame:
    of_file = {"file": "f", "engine": "sglang", "server_life": 0}
    filled = [{**of_file, "line_no": at, **row} for at, row in enumerate(rows, 1)]
    return conform(pd.DataFrame(filled).reindex(columns=SAMPLES.names), SAMPLES)


def prefill(new_tok: int, n: int, rate: float = 5.0, running_req: int = 0, cached_tok: int = 0) -> dict:
    return {"kind": "prefill", "new_tok": new_tok, "cached_tok": cached_tok, "prefill_tok_per_s": rate,
            "running_req": running_req, "extra": json.dumps({"#new-seq": n})}


DECODE = {"kind": "decode", "running_req": 4, "decode_tok_per_s": 100.0}


def test_the_median_request_not_the_warm_up():
    # 6 and 1 token are warm-up; (384 + 128 cached) / 4 = 128 weighs four requests, 512 one
    found = prompts_of(samples(prefill(6, 1), prefill(1, 1), prefill(384, 4, cached_tok=128), prefill(512, 1), DECODE))
    assert found == {"prompt_tokens": 128.0}
    assert prompts_of(samples(DECODE)) == {} and prompts_of(SAMPLES.empty()) == {}


def test_a_prompt_cut_into_chunks_is_counted_once():
    # two prompts of 2500 at 1000 a step: 1000, 1000, 500 each, or the second begins where the first ends
    one = [prefill(1000, 1), prefill(1000, 1), prefill(500, 1)]
    assert prompts_of(samples(*one, *one), chunk_tok=1000) == {"prompt_tokens": 2500.0}
    joined = [prefill(1000, 1), prefill(1000, 1), prefill(1000, 2), prefill(1000, 1), prefill(999, 1)]
    assert prompts_of(samples(*joined), chunk_tok=1000) == {"prompt_tokens": 4999 / 2}
    assert prompts_of(samples(*one, *one)) == {"prompt_tokens": 1000.0}  # not told of the limit, it cannot know
    # eight whole prompts fill the budget exactly: nothing is cut
    assert prompts_of(samples(prefill(125, 1), prefill(1000, 8)), chunk_tok=1000) == {"prompt_tokens": 125.0}


def test_only_a_prefill_right_behind_one_of_the_same_size_tells_the_rate():
    # 13.35 has idle time in it, 12445 is 896 tokens over the 0.07 s of the 128 before
    rows = [prefill(128, 1), prefill(896, 7, 12445.4, 1), DECODE, prefill(128, 1, 13.35)]
    assert "prefill_tok_per_s" not in prompts_of(samples(*rows))
    pairs = [row for rate in (2707.51, 3023.01, 3004.20) for row in (DECODE, prefill(128, 1), prefill(128, 1, rate, 1))]
    assert prompts_of(samples(*rows, *pairs))["prefill_tok_per_s"] == 3004.20
    assert "prefill_tok_per_s" not in prompts_of(samples(*rows, *pairs[:6]))  # two are too few
    ranks = [{**row, "rank": f"DP{at % 2}"} for at, row in enumerate(rows + pairs)]
    assert "prefill_tok_per_s" not in prompts_of(samples(*ranks))


@pytest.mark.parametrize(("log", "prompt_tok", "tok_per_s"), [
    ("own/sglang-sweep", 128, 3004.2),  # commands.txt: --random-input-len 128; rates printed in lines behind equal ones
    ("own/llamacpp-sweep", 128, None),
    # 8 x 128, 8 x 64, 16 x 2048 and 24 x 1536 tokens at 1024 a step: 71 168 / 56 = 1271
    ("own/vllm-iteration-lines", pytest.approx(71168 / 56, rel=0.03), pytest.approx(857, abs=1)),
    ("own/vllm-sweep", None, None),  # statistics lines count no prompts
])
def test_real_logs_against_what_their_clients_sent(shared, log, prompt_tok, tok_per_s):
    read = read_log(str(shared / "logs" / log / "server.log"))
    found = prompts_of(read.samples, chunk_tok=read.facts[-1].get("chunked_prefill_size"))
    assert found.get("prompt_tokens") == prompt_tok and found.get("prefill_tok_per_s") == tok_per_s
