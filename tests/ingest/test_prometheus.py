"""Scrapes of counters: pages, times, restarts and ranks by hand; steps of real servers against their clients' truth."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from logs import sglang_line

from helpers import ingest
from helpers.ingest.exports import find_export
from helpers.ingest.scrapes import read_labels, read_mark
from helpers.levels import summarise_levels
from helpers.schema import LogFormatError
from helpers.segment import label_intervals

START_S = 1_770_000_000


def vllm_page(
    steps: int, tokens: int, running: int = 8, prompts: int = 0, engine: int = 0, created: float = 1.7e9
) -> str:
    """One engine's metrics, as prometheus_client prints them; what must not be added up is there too."""
    at = f'{{engine="{engine}",model_name="m"}}'
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{at} {running}.0
vllm:num_requests_waiting{at} 2.0
vllm:kv_cache_usage_perc{at} 0.25
vllm:generation_tokens_total{at} {tokens}.0
vllm:generation_tokens_created{at} {created}
vllm:prompt_tokens_total{at} {prompts}.0
vllm:iteration_tokens_total_bucket{{engine="{engine}",le="8.0",model_name="m"}} 5.0
vllm:iteration_tokens_total_count{at} {steps}.0
vllm:iteration_tokens_total_sum{at} {tokens + prompts}.0
vllm:iteration_tokens_total_created{at} {created}
vllm:num_preemptions_total{at} 0.0
python_info{{implementation="CPython",version="3.12"}} 1.0
"""


def write_pages(path: Path, pages: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{mark}\n{page}" for mark, page in pages), encoding="utf-8")
    return str(path)


def marked(*pages: str) -> list[tuple[str, str]]:
    return [(f"# time {START_S + second}.25", page) for second, page in enumerate(pages)]


def adds_up(log: ingest.Log) -> bool:
    return sum(log.accounting.lines.values()) == log.accounting.lines_total


def levels_of(log: ingest.Log):
    intervals = label_intervals(log.samples, log.events, facts=log.facts)
    return summarise_levels(intervals).set_index("running_req")


def truth_of(folder: Path) -> dict[int, dict[str, float]]:
    with (folder / "truth.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        int(row["concurrency"]): {name: float(row[name] or "nan") for name in (
            "itl_ms_mean", "itl_ms_median", "metrics_itl_ms_mean", "quiet_itl_ms_median",
        )}
        for row in rows
    }


def test_two_scrapes_are_one_record_by_hand(tmp_path):
    pages = marked(vllm_page(100, 800), vllm_page(150, 1200), vllm_page(190, 1480, running=7, prompts=64))
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages))
    rows = log.samples
    assert rows["kind"].tolist() == ["counters"] * 2 and log.engine == "vllm" and set(rows["rank"]) == {"DP0"}
    assert rows["span_s"].tolist() == [1.0, 1.0] and rows["t_s"].tolist() == [0.0, 1.0]
    assert rows["n_steps"].tolist() == [50.0, 40.0] and rows["out_tok"].tolist() == [400.0, 280.0]
    assert rows["running_req"].tolist() == [8, 7] and rows["new_tok"].tolist() == [0, 64]
    assert rows["queue_req"].tolist() == [2, 2] and rows["kv_used_frac"].tolist() == [0.25, 0.25]
    assert rows["decode_tok_per_s"].tolist() == [400.0, 280.0] and rows["accept_len"].isna().all()
    assert json.loads(rows["extra"][0]) == {"running_req_start": 8, "tok_per_step": 8.0}
    # 12 lines of metrics a page, of which bucket, sum, its creation and python_info feed nothing; HELP, TYPE, the time
    assert log.accounting.lines == {"statistic": 24, "event": 0, "other_known": 21, "other": 0, "malformed": 0}
    assert log.accounting.known["time of a scrape"] == 3 and adds_up(log) and log.facts == ({"model": "m"},)


@pytest.mark.parametrize("mark", [
    "# scrape_unix_time 1770000000.5 took_s 0.01", "1770000000.5", "=== 1770000000500 ===",
    "# time 2026-02-02T02:40:00.5Z", "2026-02-02T03:40:00.500+01:00", "## scraped at 1770000000500000000 ns",
])
def test_a_page_begins_with_any_line_that_tells_a_time(mark):
    assert read_mark(mark) == (pytest.approx(1_770_000_000.5), False)


def test_times_without_zone_and_what_date_prints():
    assert read_mark("# 2026-02-02 02:40:00") == (1_770_000_000.0, True)
    assert read_mark("Mon Feb  2 02:40:00 UTC 2026") == (1_770_000_000.0, False)
    assert read_mark("# took 12.5 s") == (None, False) and read_mark("# v2026-99-99T99:99:99") == (None, False)
    assert read_mark("# 17700000001 is no time") == (None, False)


@pytest.mark.parametrize(("scale", "end"), [(1000, ""), (1, "# EOF\n")])
def test_times_behind_the_values_stand_in_for_marks(tmp_path, scale, end):
    def page(second: int, steps: int) -> str:
        lines = vllm_page(steps, 8 * steps).splitlines()
        time = f" {(START_S + second) * scale}"
        return "".join(f"{line}{'' if line.startswith('#') else time}\n" for line in lines) + end
    path = tmp_path / "federated.prom"
    path.write_text(page(0, 100) + page(2, 150) + page(3, 175))
    log = ingest.read_log(str(path))
    assert log.samples["span_s"].tolist() == [2.0, 1.0] and log.samples["n_steps"].tolist() == [50.0, 25.0]
    assert adds_up(log)


def test_pages_without_any_time_are_refused_in_words(tmp_path):
    path = tmp_path / "metrics.txt"
    path.write_text(vllm_page(1, 8) + vllm_page(2, 16))
    with pytest.raises(LogFormatError, match=r"expected a time with every scrape, found none.*date \+%s"):
        ingest.read_log(str(path))


def test_one_scrape_is_refused_in_words(tmp_path):
    with pytest.raises(LogFormatError, match="at least two scrapes with an engine's counters, found 1"):
        ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(vllm_page(1, 8))))


def test_a_restart_is_a_new_life_and_no_record_spans_it(tmp_path):
    pages = marked(vllm_page(100, 800), vllm_page(150, 1200), vllm_page(10, 80), vllm_page(60, 480))
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages))
    assert log.samples["server_life"].tolist() == [0, 1] and log.samples["n_steps"].tolist() == [50.0, 50.0]


def test_a_restart_that_has_overtaken_the_old_counters_shows_in_their_creation(tmp_path):
    pages = marked(vllm_page(10, 80), vllm_page(60, 480), vllm_page(90, 720, created=1.75e9), vllm_page(140, 1120))
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages[:3]))
    assert log.samples["n_steps"].tolist() == [50.0]
    again = vllm_page(140, 1120, created=1.75e9)
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", [*pages[:3], (f"# {START_S + 3}", again)]))
    assert log.samples["server_life"].tolist() == [0, 1]


def test_missing_scrapes_and_a_clock_that_goes_back(tmp_path):
    pages = [(f"# {START_S + second}", vllm_page(50 * n, 400 * n)) for n, second in enumerate([0, 1, 2, 3, 7, 8, 8, 9])]
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages))
    assert log.samples["span_s"].tolist() == [1.0, 1.0, 1.0, 4.0, 1.0, 1.0]
    assert any("scrapes are missing 1 times" in note for note in log.accounting.notes)
    assert any("1 scrapes are not later than the one before" in note for note in log.accounting.notes)


def test_engines_and_servers_are_kept_apart(tmp_path):
    pages = marked(*(vllm_page(n, 8 * n) + vllm_page(2 * n, 8 * n, 4, engine=1) for n in (10, 20)))
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages))
    assert log.samples.set_index("rank")["n_steps"].to_dict() == {"DP0": 10.0, "DP1": 20.0}
    two = [(mark, page.replace('model_name="m"', 'instance="a:1",model_name="m"')
            + page.replace('model_name="m"', 'instance="b:1",model_name="m"')) for mark, page in pages]
    log = ingest.read_log(write_pages(tmp_path / "two.txt", two))
    assert sorted(log.samples["rank"]) == ["WORKER0 DP0", "WORKER0 DP1", "WORKER1 DP0", "WORKER1 DP1"]
    assert any("WORKER1 is b:1 m" in note for note in log.accounting.notes)


def test_odd_lines_are_counted_and_never_read(tmp_path):
    first, second = vllm_page(100, 800), vllm_page(150, 1200)
    broken = second.replace("vllm:prompt_tokens_total", "vllm:prompt_tokens_total none").replace("} 0.25", "} NaN")
    page = broken.replace("} 2.0", "} +Inf") + "<html>\n502 Bad Gateway\n\n"
    last = vllm_page(200, 1600) + "vllm:num_requests_running{engine="
    pages = [*marked(first, page), (f"# {START_S + 2}", last)]
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages))
    assert adds_up(log) and log.accounting.lines["other"] == 2
    assert log.accounting.lines["malformed"] == 3 and log.accounting.known["metric without a value (NaN)"] == 1
    assert log.samples["n_steps"].tolist() == [50.0, 50.0] and log.samples["new_tok"].isna().tolist() == [True, True]


def test_speculation_counts_tokens_per_request_and_step(tmp_path):
    def page(n: int) -> str:
        at = '{engine="0",model_name="m"}'
        return (vllm_page(100 * n, 2000 * n, running=8) + f"vllm:spec_decode_num_drafts_total{at} {600 * n}\n"
                f"vllm:spec_decode_num_accepted_tokens_total{at} {1200 * n}\n")
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(page(1), page(2))))
    # 2,000 tokens in 100 steps of 8 requests; drafts were made in 600 of 800 request-steps only
    assert log.samples["accept_len"].tolist() == [2.5]


def test_range_query_of_a_prometheus_server(tmp_path):
    def series(name: str, values: list[float], **labels: str) -> dict[str, object]:
        pairs = [[START_S + 15 * n, str(value)] for n, value in enumerate(values)]
        metric = {"__name__": name, "instance": "a:1", "model_name": "m", "engine": "0", **labels}
        return {"metric": metric, "values": pairs}
    result = [
        series("vllm:iteration_tokens_total_count", [100, 400, 700]), series("vllm:num_requests_running", [8, 8, 8]),
        series("vllm:generation_tokens_total", [800, 3200, 5600]), series("vllm:prompt_tokens_total", [0, 0, 0]),
        series("up", [1, 1, 1]), {"metric": {"__name__": "vllm:num_requests_waiting"}, "values": [[START_S]]},
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    (tmp_path / "query.json").write_text(json.dumps(answer))
    log = ingest.read_log(str(tmp_path / "query.json"))
    assert log.samples["span_s"].tolist() == [15.0, 15.0] and log.samples["n_steps"].tolist() == [300.0, 300.0]
    assert log.accounting.lines == {"statistic": 4, "event": 0, "other_known": 1, "other": 0, "malformed": 1}
    (tmp_path / "cut.json").write_text(json.dumps(answer)[:-20])
    with pytest.raises(LogFormatError, match=r"cut.json: expected the whole answer of a Prometheus range query"):
        ingest.read_log(str(tmp_path / "cut.json"))


def sglang_page(decode: int, prefill: int, running: int, rate: float, passes: int | None = None, tp: int = 0) -> str:
    at = f'engine_type="unified",model_name="m",pp_rank="0",tp_rank="{tp}"'
    page = (
        f"sglang:num_running_reqs{{{at}}} {running}\nsglang:gen_throughput{{{at}}} {rate}\n"
        f'sglang:realtime_tokens_total{{{at},mode="decode"}} {decode}\n'
        f'sglang:realtime_tokens_total{{{at},mode="prefill_compute"}} {prefill}\n'
    )
    if passes is not None:
        page += f'sglang:cuda_graph_passes_total{{{at},mode="decode_cuda_graph"}} {passes}\n'
        page += f'sglang:cuda_graph_passes_total{{{at},mode="prefill_none"}} {7 + passes}\n'
    return page


def test_sglang_gauge_is_not_believed_between_a_prompt_and_the_next_decode_line(tmp_path):
    # a second request came: its prompt line wrote 1 (what ran before); the decode line that says 2 came 2 s later
    pages = [sglang_page(0, 100, 1, 40.0), sglang_page(50, 100, 1, 41.0), sglang_page(100, 200, 1, 41.0),
             sglang_page(200, 200, 1, 41.0), sglang_page(300, 200, 2, 98.0), sglang_page(400, 200, 2, 99.0),
             sglang_page(500, 200, 2, 100.0), sglang_page(600, 200, 2, 100.0)]
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(*pages)))
    found = [None if value != value else int(value) for value in log.samples["running_req"].astype(float)]
    assert found == [None, None, None, None, 2, 2, None] and log.samples["rank"].isna().all()
    assert log.samples["n_steps"].isna().all()


def test_sglang_pass_counter_counts_the_steps(tmp_path):
    pages = [sglang_page(8 * n, 0, 3, 1.0, passes=n) + sglang_page(8 * n, 0, 3, 1.0, passes=n, tp=1) for n in (10, 60)]
    pages.append(sglang_page(8 * 60 + 330, 0, 3, 1.0, passes=110))
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(*pages)))
    # 400 tokens in 50 steps are 8 requests, whatever the late gauge says; 330 in 50 were no constant batch
    assert log.samples["n_steps"].tolist() == [50.0, 50.0]
    assert log.samples["running_req"].isna().tolist() == [False, True] and log.samples["running_req"][0] == 8
    assert any("ranks above 0 are copies" in note for note in log.accounting.notes)


def test_older_sglang_counts_tokens_without_a_rank(tmp_path):
    def page(n: int) -> str:
        return (f'sglang:num_running_reqs{{model_name="m",tp_rank="0"}} 4\n'
                f'sglang:gen_throughput{{model_name="m",tp_rank="0"}} {n}\n'
                f'sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} {300 * n}\n'
                f'sglang:generation_tokens_total{{is_streaming="false",model_name="m"}} {100 * n}\n'
                f'sglang:prompt_tokens_total{{is_streaming="true",model_name="m"}} 5\n')
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(*(page(n) for n in range(1, 6)))))
    assert log.samples["out_tok"].tolist() == [400.0] * 4


def test_tokens_of_all_ranks_together_are_no_ranks_own(tmp_path):
    def page(n: int) -> str:
        ranks = "".join(f'sglang:num_running_reqs{{dp_rank="{rank}",model_name="m"}} 4\n' for rank in (0, 1))
        return ranks + f'sglang:generation_tokens_total{{model_name="m"}} {400 * n}\n'
    with pytest.raises(LogFormatError, match="at least two scrapes with an engine's counters"):
        ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(*(page(n) for n in range(1, 6)))))


def test_llamacpp_busy_slots_are_the_batch(tmp_path):
    def page(steps: int, busy: float, prompts: int = 0) -> str:
        return (f"llamacpp:n_decode_total {steps}\nllamacpp:n_busy_slots_per_decode {busy}\n"
                f"llamacpp:prompt_tokens_total {prompts}\nllamacpp:tokens_predicted_total 0\n"
                "llamacpp:requests_processing 4\nllamacpp:requests_deferred 1\n")
    pages = marked(page(100, 2.0), page(150, 2.66667), page(200, 3.0, prompts=128))
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", pages))
    # 150 x 2.66667 - 100 x 2 = 200 tokens in 50 calls: 4 slots
    assert log.samples["out_tok"][0] == pytest.approx(200, abs=0.01) and np.isnan(log.samples["out_tok"][1])
    assert json.loads(log.samples["extra"][0])["busy_per_step"] == 4.0 and log.samples["queue_req"].tolist() == [1, 1]


def test_tgi_decode_time_is_its_own(tmp_path):
    def page(n: int, size: int) -> str:
        return (f'tgi_batch_inference_duration_count{{method="decode"}} {n}\n'
                f'tgi_batch_inference_duration_sum{{method="decode"}} {0.015 * n}\n'
                f'tgi_batch_inference_duration_count{{method="prefill"}} {n // 10}\n'
                f"tgi_batch_current_size {size}\ntgi_queue_size 0\n")
    log = ingest.read_log(write_pages(tmp_path / "metrics.txt", marked(page(10, 4), page(60, 4), page(100, 5))))
    assert log.engine == "tgi" and log.samples["span_s"].tolist() == [pytest.approx(0.75), pytest.approx(0.6)]
    assert log.samples["running_req"].isna().tolist() == [False, True]


def test_labels_with_quotes_and_braces():
    assert read_labels(r'a:b{c="d,}=\"e",f="g\\h"}') == ("a:b", {"c": 'd,}="e', "f": r"g\h"})
    assert read_labels("plain") == ("plain", {})


def test_a_log_with_metric_names_in_it_is_a_log(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(sglang_line() + "\n" + "vllm:num_requests_running 1.0\n" + sglang_line(second=1) + "\n")
    assert find_export(str(path)) is None


@pytest.mark.parametrize(("column", "within"), [("metrics_itl_ms_mean", 0.015), ("itl_ms_mean", 0.015)])
def test_vllm_scrapes_agree_with_the_client(shared, column, within):
    """The tokens' mean distance, as the server's own histogram and as the client's clock have it."""
    own = shared / "logs" / "own" / "vllm-sweep"
    levels = levels_of(ingest.read_log(str(own / "metrics_1hz.txt.gz")))
    errors = {n: levels.loc[n, "step_s"] / (truth[column] / 1e3) - 1 for n, truth in truth_of(own).items()}
    assert len(errors) == 7 and max(map(abs, errors.values())) < within, errors


def test_vllm_scrapes_agree_with_the_log_lines_of_the_same_run(shared):
    own = shared / "logs" / "own" / "vllm-sweep"
    scraped, printed = (levels_of(ingest.read_log(str(own / name))) for name in ("metrics_1hz.txt.gz", "server.log"))
    for n in (1, 2, 4, 8, 16, 32, 64):
        assert scraped.loc[n, "step_s"] == pytest.approx(printed.loc[n, "step_s"], rel=0.01)


def test_llamacpp_scrapes_agree_with_the_client(shared):
    own = shared / "logs" / "own" / "llamacpp-sweep"
    levels = levels_of(ingest.read_log(str(own / "metrics_1hz.txt.gz")))
    truth = truth_of(own)
    for n in (2, 3, 4, 6, 8):  # at 1 only 4 s are free of prompts
        assert levels.loc[n, "step_s"] == pytest.approx(truth[n]["itl_ms_mean"] / 1e3, rel=0.03)


def test_sglang_scrapes_agree_with_the_client_where_the_machine_was_quiet(shared):
    own = shared / "logs" / "own" / "sglang-sweep"
    levels = levels_of(ingest.read_log(str(own / "metrics_1hz.txt.gz")))
    truth = truth_of(own)
    for n in (1, 2, 4, 32):  # another program ran during 8 and 16: means of 111 and 278 ms where medians are 78 and 118
        assert levels.loc[n, "step_s"] == pytest.approx(truth[n]["itl_ms_mean"] / 1e3, rel=0.05)


def test_scrapes_beside_their_log_are_of_its_server(shared):
    own = shared / "logs" / "own" / "vllm-sweep"
    log = ingest.read_log([str(own / "server.log"), str(own / "metrics_1hz.txt.gz")])
    assert set(log.samples["server_life"]) == {0} and log.source_kinds == ("counters", "stats") and adds_up(log)
    assert len(log.events) == 8 and len(log.facts) == 1 and log.facts[0]["engine_version"]
    # the gauge and the line of the same second agree on what runs
    lines = log.samples[log.samples["kind"] == "stats"].set_index("t_s")["running_req"]
    counters = log.samples[log.samples["kind"] == "counters"]
    seconds = counters["t_s"].round()
    pairs = [(n, lines[s]) for n, s in zip(counters["running_req"], seconds, strict=True) if s in lines.index]
    # a line is printed up to half a second from a scrape, so they differ while requests come and go
    assert len(pairs) > 300 and np.mean([a == b for a, b in pairs]) > 0.85


def test_every_line_of_the_real_scrapes_is_counted(shared):
    for path in sorted((shared / "logs" / "own").glob("*/metrics_1hz.txt.gz")):
        with gzip.open(path, "rt") as file:
            lines = file.read().splitlines()
        log = ingest.read_log(str(path))
        assert log.accounting.lines_total == len(lines) and adds_up(log) and not log.accounting.lines["other"]
        scrapes = sum(line.startswith("# scrape_unix_time") for line in lines)
        assert log.accounting.known["time of a scrape"] == scrapes and len(log.samples) == scrapes - 1
