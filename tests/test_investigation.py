"""From a log and its side files to ranked causes: both field cases, side files, clocks, and what is left out."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import analysis, investigation, synth
from helpers.analysis import analyse
from helpers.diagnose import of_physics
from helpers.schema import LogFormatError
from helpers.synth import Client, Lengths, Noise, Server, Speculation, StepLaw

sys.path.insert(0, str(Path(__file__).parent / "diagnose"))

import causes
import causes_files as files

GIB = 2**30


def status(found):
    return {item.cause: item.status for item in found.judgement.findings}


def finding(found, cause):
    return next(item for item in found.judgement.findings if item.cause == cause)


# Field case A: 52 + 30 N ms, a 1 M context limit, captured sizes to 32, and a crash at 64 requests.


CASE_A = Server(version="0.5.14", law=StepLaw(intercept_s=0.052, slope_s_per_req=0.030),
                model="DeepSeek-V4-Flash-NVFP4", tp_size=4, context_length_tok=1_048_576, max_running_req=64,
                captured_batch_sizes=(1, 2, 4, 8, 12, 16, 24, 32), page_size=256, noise=Noise(sigma_frac=0.01))
LOAD_A = {"prompts_per_req": 2.0, "prompt": Lengths(mean_tok=256), "output": Lengths(mean_tok=400)}
TOLD_A = {"hardware": "RTX PRO 6000 Blackwell Server", "model": "DeepSeek-V4-Flash-NVFP4", "parallel": {"tp": 4}}
CRASH = ("hit an exception", "OutOfMemoryError", "SIGQUIT", 'File "scheduler.py"', "scheduler.event_loop()")


@pytest.fixture(scope="module")
def case_a(tmp_path_factory):
    """The log of a life that dies and of one that goes on, as it is and without the lines of the crash."""
    dies = replace(CASE_A, out_of_memory_at_req=64, out_of_memory_bytes=4_230_542_787)  # 3.94 GiB
    first = synth.simulate(dies, Client(levels_req=(1, 16, 64), **LOAD_A), seed=1)
    second = synth.simulate(replace(CASE_A, start="2026-11-02 12:00:00"),
                            Client(levels_req=(1, 8, 16, 32), **LOAD_A), seed=2)
    text = first.text + second.text
    assert text.count("Tried to allocate 3.94 GiB") == 1
    quiet = "".join(line for line in text.splitlines(keepends=True) if not any(word in line for word in CRASH))
    folder = tmp_path_factory.mktemp("case_a")
    for name, lines in (("crash.log", text), ("quiet.log", quiet)):
        (folder / name).write_text(lines)
    return [analyse(folder / name, context=TOLD_A) for name in ("crash.log", "quiet.log")]


def test_field_case_a_is_work_on_the_longest_context(case_a):
    """3.94 GiB are 63 x (1,048,576 / 4 + 64) x 64 x 4 bytes (physics.md 4.3), and 29.5 ms come with each request."""
    found = case_a[0]
    first = found.judgement.findings[0]
    assert (first.cause, first.status) == ("max_context_work", "supported")
    fingerprint, slope = first.evidence_for
    assert "3.94 GiB is 63 requests x 262,208 positions (1,048,576 / 4 + 64) x 64 index heads x 4 bytes" in fingerprint
    per_req_ms = float(re.search(r"each request pays ([\d.]+) ms that nothing it reads explains", slope)[1])
    assert per_req_ms == pytest.approx(30.0, rel=0.03)  # less the half millisecond that good kernels would take
    channels = {item.channel for item in found.judgement.seen if item.says in first.evidence_for}
    assert channels == {"events", "step"}
    (item,) = found.judgement.seen.named("size_fingerprint")
    assert item.source.endswith(".log:" + item.source.rpartition(":")[2]) and 0.95 < item.value < 1
    line = Path(item.source.rpartition(":")[0]).read_text().splitlines()[int(item.source.rpartition(":")[2]) - 1]
    assert "Tried to allocate" in line


@pytest.mark.parametrize("which", [0, 1])
def test_field_case_a_refutes_the_rest(case_a, which):
    found = case_a[which]
    of = status(found)
    for cause in ("weight_bandwidth", "kv_bandwidth", "tensor_compute", "communication", "context_growth", "healthy"):
        assert of[cause] == "refuted", cause
    assert of["latency_or_occupancy"] in ("compatible", "weak")
    assert "supported" not in {status for cause, status in of.items() if cause != "max_context_work"}
    assert "weights can take at most" in finding(found, "weight_bandwidth").refuted_by
    assert "the link would run at" in finding(found, "communication").refuted_by


def test_field_case_a_without_the_crash_asks_for_the_experiment(case_a):
    """The slope alone supports nothing; a restart with a shorter limit decides, with both outcomes said in numbers."""
    found = case_a[1]
    assert not found.judgement.seen.named("size_fingerprint")
    assert status(found)["max_context_work"] != "supported"
    plan = found.scorecard["next_experiment"]
    assert plan["what"].startswith("Restart with a context limit of 8192 tokens instead of 1048576")
    # At N=16 the law gives 52 + 480 = 532 ms; work on the limit falls to 8192 / 1,048,576 of it.
    true, false = plan["predicts"]["max_context_work"], plan["predicts"]["serialised_requests"]
    assert float(re.search(r"falls from (\d+) ms to ([\d.]+) ms", true)[2]) < 60
    assert float(re.search(r"falls from (\d+) ms", true)[1]) == pytest.approx(532, rel=0.01)
    assert float(re.search(r"stays at (\d+) ms", false)[1]) == pytest.approx(532, rel=0.01)


def test_the_published_sweep_of_field_case_a(root):
    """82, 552 and 1948 ms from the report's table: nothing but the slope, so not supported, and the same experiment."""
    context = {**TOLD_A, "context_length_max": 1_048_576, "context_tok": 320}
    found = analyse(root / "data" / "field" / "case_a_config2.csv", context=context)
    of = status(found)
    assert found.judgement.findings[0].cause == "max_context_work" and of["max_context_work"] == "compatible"
    assert of["weight_bandwidth"] == of["communication"] == of["kv_bandwidth"] == "refuted"
    assert found.scorecard["next_experiment"]["what"].startswith("Restart with a context limit of 8192")


# Field case B: rounds of 55.5 ms of Qwen3.6-27B, BF16, three drafts, on two RTX A6000.


TOLD_B = {"hardware": "RTX A6000", "model": "Qwen3.6-27B", "parallel": {"tp": 2}}


@pytest.fixture(scope="module")
def case_b(root, tmp_path_factory):
    """The published table, and a simulated log of the same round time."""
    server = Server(version="0.5.14", law=StepLaw(intercept_s=0.0555, slope_s_per_req=0.0), model="Qwen3.6-27B",
                    tp_size=2, speculation=Speculation(num_draft_tokens=4))
    run = synth.simulate(server, Client(levels_req=(1,), prompts_per_req=4.0, prompt=Lengths(mean_tok=256),
                                        output=Lengths(mean_tok=500)), seed=3)
    path = tmp_path_factory.mktemp("case_b") / "server.log"
    path.write_text(run.text)
    table = {**TOLD_B, "engine": "sglang", "num_draft_tokens": 4, "context_tok": 500}
    return [analyse(root / "data" / "field" / "case_b_acceptance.csv", context=table), analyse(path, context=TOLD_B)]


@pytest.mark.parametrize("which", [0, 1])
def test_field_case_b_reads_weights(case_b, which):
    found = case_b[which]
    first, of = found.judgement.findings[0], status(found)
    assert (first.cause, first.status) == ("weight_bandwidth", "supported")
    for cause in ("communication", "low_acceptance", "tensor_compute", "kv_bandwidth", "state_bandwidth",
                  "latency_or_occupancy", "host_or_scheduler"):
        assert of[cause] == "refuted", cause
    assert "collectives can take at most" in finding(found, "communication").refuted_by


@pytest.mark.parametrize("which", [0, 1])
def test_the_13_ms_of_field_case_b_are_itemised(case_b, which):
    """The report's 42.35 ms: weights and head 35.16, KV 0.02, state 0.09, all-reduce 1.02, draft 5.56, host 0.5."""
    found = case_b[which]
    rows = found.allowed.components
    ms = dict(zip(rows["name"], 1e3 * rows["time_s"], strict=True))
    assert sum(ms.values()) == pytest.approx(55.5, abs=0.6)
    ms["weights"] += ms.pop("head")
    told = {"weights": 35.16, "kv": 0.02, "state": 0.09, "all_reduce": 1.02, "draft": 5.56, "unexplained": 0.5}
    more = {name: ms[name] - told[name] for name in told}
    assert set(ms) == set(told) and sum(more.values()) == pytest.approx(13.1, abs=0.6)
    # Achievable bandwidth costs 5.5 ms, the draft with its head 2.6, the states of the verified tokens 0.5.
    assert more["weights"] == pytest.approx(5.5, abs=0.5) and more["draft"] == pytest.approx(2.6, abs=0.4)
    assert more["state"] == pytest.approx(0.5, abs=0.1) and abs(more["all_reduce"]) < 0.2
    assert 3 < ms["unexplained"] < 6  # physics.md 5.2: 3.7 beside 2 of floor and scheduling


# A healthy server with side files: Llama 3.1 8B on an H100, 6 ms + 0.03 ms per request.


GOOD = Server(version="0.5.14", law=StepLaw(intercept_s=0.006, slope_s_per_req=5e-5), model="Meta-Llama-3.1-8B",
              noise=Noise(sigma_frac=0.01), startup_s=30.0, prefill_s_per_tok=2e-5)
TOLD = {"hardware": "H100 SXM 80GB", "model": "Meta-Llama-3.1-8B", "parallel": {"tp": 1}}
LOAD = Client(levels_req=(1, 4, 16), prompts_per_req=3.0, prompt=Lengths(mean_tok=256), output=Lengths(mean_tok=900))


def constant(share):
    return lambda n: np.full(len(np.atleast_1d(n)), share)


BOARD = files.Board(limit_w=700.0, boost_mhz=1980, mem_mhz=2619, name="NVIDIA H100", busy=constant(1.0),
                    mem=constant(0.8), tensor=constant(0.05))


class Files:
    """A simulated run and its files in a folder."""

    def __init__(self, folder: Path, server: Server = GOOD, seed: int = 4, board: files.Board = BOARD) -> None:
        self.run = synth.simulate(server, LOAD, seed=seed)
        self.log, self.smi = folder / f"server{seed}.log", folder / f"gpu{seed}.csv"
        self.log.write_text(self.run.text)
        self.smi.write_text(files.smi_csv(self.run, board, 1, np.random.default_rng(seed)))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def alone(good):
    """The log without any side file."""
    return analyse(good.log, context=TOLD)


def telemetry_of(found):
    return [item for item in found.judgement.seen if item.channel == "telemetry"]


def test_a_log_alone(alone):
    assert status(alone)["healthy"] == "supported" and not telemetry_of(alone)
    assert alone.judgement.missing == ("telemetry of the same time (-p telemetry gpu.csv)",
                                       "a kernel profile of a few steps (-p profile trace.json.gz)")
    assert alone.judgement.evidence == investigation.Evidence()


def test_nothing_told_is_unknown_and_says_what_is_missing(good):
    """What the log itself refutes stays refuted."""
    found = analyse(good.log)
    first = found.judgement.findings[0]
    assert (first.cause, first.status) == ("unknown", "compatible")
    said = [text.removeprefix("not known: ") for text in first.evidence_for[1:]]
    assert said == list(found.judgement.missing)
    assert said[0].startswith("the accelerator") and len(said) == 3
    assert status(found)["admission_limit"] == "refuted"
    assert not [item for item in found.judgement.seen if item.source == of_physics.SOURCE]


def test_telemetry_is_clipped_to_the_loaded_time(good, alone):
    """Whole file: start-up and gaps; loaded windows: the board's 100 % and 80 %."""
    found = analyse(good.log, context=TOLD, side={"telemetry": str(good.smi)})
    recording = found.judgement.evidence.recording
    assert 0 < len(recording.loaded) < len(recording.table) == good.smi.read_text().count("\n") - 1
    assert recording.loaded["mem_busy_frac"].median() == pytest.approx(0.8, abs=0.03)
    assert recording.loaded["busy_frac"].min() > 0.9 and recording.table["busy_frac"].min() == 0
    assert found.judgement.seen.value("mem_busy_frac") == pytest.approx(0.8, abs=0.03)
    assert recording.at == "at N=16" and "at N=16" in telemetry_of(found)[0].says
    assert not any("telemetry" in text for text in found.judgement.missing)
    assert len(found.judgement.seen) > len(alone.judgement.seen)


def test_a_clock_that_is_refused_is_said_and_its_telemetry_unused(good, alone):
    """The same file without its stamps: nothing puts it on the log's clock."""
    path = good.smi.with_name("no_stamps.csv")
    path.write_text("".join(line.split(", ", 1)[1] for line in good.smi.read_text().splitlines(keepends=True)))
    found = analyse(good.log, context=TOLD, side={"telemetry": str(path)})
    assert found.judgement.evidence.recording.clock.is_refused and not telemetry_of(found)
    assert any(note.startswith(f"{path}: not used: ") for note in found.judgement.evidence.notes)
    assert set(found.judgement.evidence.notes) <= set(found.scorecard["run"]["notes"])
    assert {i.name for i in found.judgement.seen} == {i.name for i in alone.judgement.seen}
    assert status(found) == status(alone)


def test_telemetry_of_another_day_is_said_and_unused(good):
    path = good.smi.with_name("other_day.csv")
    path.write_text(good.smi.read_text().replace("2026/11/02", "2026/11/05"))
    found = analyse(good.log, context=TOLD, side={"telemetry": str(path)})
    assert not telemetry_of(found)
    assert any(str(path) in note for note in found.judgement.evidence.notes)


def test_an_offset_given_counts(good):
    """The board's stamps are of another year; the user says when the file begins on the log's clock."""
    path = good.smi.with_name("other_year.csv")
    path.write_text(good.smi.read_text().replace("2026/", "2025/"))
    plain = analyse(good.log, context=TOLD, side={"telemetry": str(good.smi)}).judgement.evidence.recording
    side = {"telemetry": str(path), "telemetry_offset_s": plain.clock.offset_s}
    given = analyse(good.log, context=TOLD, side=side).judgement.evidence.recording
    assert given.clock.how == "given by the user"
    # The clock found by itself is certain to some seconds, and leaves them off each window.
    assert set(plain.loaded["line_no"]) < set(given.loaded["line_no"]) and len(plain.loaded) > 10
    assert plain.clock.uncertainty_s > given.clock.uncertainty_s == 0.0


def test_boards_that_differ_take_only_the_lines_of_the_hardware_away(good, alone):
    """A second board with a slower memory: equal shares wait for it, and the lines are those of the first kind."""
    other = replace(BOARD, mem_mhz=1593)
    path = good.smi.with_name("two.csv")
    second = files.smi_csv(good.run, other, 1, np.random.default_rng(9)).splitlines(keepends=True)[1:]
    path.write_text(good.smi.read_text() + "".join(re.sub(r", 0, ", ", 1, ", line, count=1) for line in second))
    one_rank = analyse(good.log, context=TOLD, side={"telemetry": str(path)}).judgement.seen
    assert {item.name for item in one_rank if item.channel == "telemetry"} == {"boards_of_others"}
    found = analyse(good.log, context={**TOLD, "gpus": 2}, side={"telemetry": str(path)})
    seen = found.judgement.seen
    assert seen.named("boards_differ") and not [item for item in seen if item.source == of_physics.SOURCE]
    before = {item.name for item in alone.judgement.seen if item.source != of_physics.SOURCE}
    assert before <= {item.name for item in seen}
    assert any(item.channel == "step" for item in seen)  # what the intervals say about the step stays
    assert status(alone)["healthy"] == "supported" != status(found)["healthy"]


def says_nothing_of_the_hardware(found, alone):
    before = {item.name for item in alone.judgement.seen if item.source != of_physics.SOURCE}
    assert before <= {item.name for item in found.judgement.seen}  # what the log says stays
    return not [item for item in found.judgement.seen if item.source in (of_physics.SOURCE, "levers")]


def test_parts_longer_than_the_step_say_nothing(alone, tmp_path):
    """15.1 GB at 3.35 TB/s are 4.5 ms at the peak: 4.7 ms are above it, and beyond the best share that was seen."""
    server = replace(GOOD, law=StepLaw(intercept_s=0.0047, slope_s_per_req=5e-5))
    found = analyse(Files(tmp_path, server, 7).log, context=TOLD)
    assert found.allowed.impossible and says_nothing_of_the_hardware(found, alone)


def test_steps_below_the_bound_say_nothing(good, alone):
    """15 GB in 6 ms are 2.5 TB/s: an L40S moves 0.86, so hardware or model is wrong, and nothing follows from them."""
    found = analyse(good.log, context={**TOLD, "hardware": "L40S"})
    assert "measured faster than the lower bound" in found.allowed.roofline.warnings[0]
    assert says_nothing_of_the_hardware(found, alone)


def test_a_baseline_with_telemetry(good, tmp_path):
    """This run takes 1.3 times as long at three quarters of the clock, held down by a lower power limit."""
    slow = Files(tmp_path, replace(GOOD, law=StepLaw(intercept_s=0.0078, slope_s_per_req=6.5e-5)), 5,
                 replace(BOARD, limit_w=300.0, capped_from_s=0.0, clock_frac=0.75))
    side = {"telemetry": str(slow.smi), "baseline_log": str(good.log), "baseline_telemetry": str(good.smi)}
    found = analyse(slow.log, context=TOLD, side=side)
    seen = found.judgement.seen
    assert seen.value("step_over_baseline") == pytest.approx(1.3, rel=0.02)
    assert seen.value("clock_below_baseline_frac") == pytest.approx(0.25, abs=0.02)
    assert seen.named("slower_than_baseline_at_lower_clock")
    assert found.judgement.findings[0].cause == "power_or_thermal"
    # without the baseline's telemetry only the steps are compared
    less = analyse(slow.log, context=TOLD, side={"baseline_log": str(good.log)}).judgement.seen
    assert {item.name for item in less if item.channel == "baseline"} == {"step_over_baseline"}


def test_a_file_that_is_not_what_it_was_given_for_is_refused(good):
    with pytest.raises(LogFormatError):
        analyse(good.log, context=TOLD, side={"telemetry": str(good.log)})


# Other side files, from the scenarios whose cause is known.


def pick(cause, *channels, seeds=range(40), **facts):
    """The first scenario of a cause that has the channels and the facts."""
    for seed in seeds:
        found = causes.scenario(cause, seed)
        if set(channels) <= set(found.channels) and all(found.truth[key] == value for key, value in facts.items()):
            return found
    raise AssertionError(f"no {cause} with {channels} {facts}")


def run_of(scenario, folder):
    paths = {name: str(path) for name, path in scenario.write(folder).items()}
    return analyse(paths.pop("log"), context=dict(scenario.facts), side=paths)


def test_a_client_and_a_profile_are_read_and_held_against_the_log(tmp_path):
    scenario = pick("healthy", "client", "profile", "facts", engine="sglang")
    found = run_of(scenario, tmp_path)
    evidence, reconciled = found.judgement.evidence, found.judgement.reconciled
    assert len(evidence.clients.runs) == len(reconciled.clients) >= 1
    assert evidence.profile is not None and reconciled.profile is not None
    channels = found.judgement.seen.channels()
    assert {"step", "log", "profile", "client"} <= set(channels)
    main = reconciled.main
    assert main is not None and main.tokens.refused is None
    ratio = found.judgement.seen.value("tpot_over_step")
    assert ratio == pytest.approx(main.tokens.tpot_s / main.tokens.step_s)
    # all requests of a run at their ends, over the pool of the log
    runs = evidence.clients.runs
    length = (runs["prompt_tok"] + runs["output_tok"]) / runs["n_completed"]
    demand = (runs["concurrency_req"] * length).max() / found.facts.get("kv_pool_tokens")
    (of_client,) = [i for i in found.judgement.seen.named("demand_over_pool") if i.channel == "client"]
    assert of_client.value == pytest.approx(demand)


def test_a_dimension_of_the_longest_context_in_a_profile(tmp_path):
    scenario = pick("max_context_work", "profile", "facts")
    scenario = scenario.without("crash") if "crash" in scenario.channels else scenario
    typed = re.sub(r'"Input Dims":(\[\[[\d, \[\]]*\]\])', r'"Input Dims":\1,"Input type":["float","float"]',
                   scenario.files["profile"])  # as torch writes them with record_shapes
    scenario = replace(scenario, files={**scenario.files, "profile": typed})
    found = run_of(scenario, tmp_path)
    (item,) = found.judgement.seen.named("shape_fingerprint")
    assert item.channel == "profile" and f"{scenario.truth['width']:,}" in item.says and item.value > 0.9
    assert found.judgement.findings[0].cause == "max_context_work"
    blind = run_of(scenario.without("profile"), tmp_path)
    assert not blind.judgement.seen.named("shape_fingerprint")


def test_a_topology_print_speaks_before_the_catalogue(tmp_path):
    """The catalogue joins RTX PRO 6000 by PCIe; the machine prints NVLink between its two boards."""
    server = replace(GOOD, law=StepLaw(intercept_s=0.012, slope_s_per_req=5e-5), tp_size=2)
    told = {**TOLD, "hardware": "RTX PRO 6000 Blackwell Server", "parallel": {"tp": 2}}
    log, topo = tmp_path / "server.log", tmp_path / "topo.txt"
    log.write_text(synth.simulate(server, LOAD, seed=6).text)
    topo.write_text("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV4\t0-31\t0\tN/A\n"
                    "GPU1\tNV4\t X \t0-31\t0\tN/A\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded "
                    "set of # NVLinks\n")
    (told_link,) = analyse(log, context=told).judgement.seen.named("has_no_nvlink")
    assert (told_link.value, told_link.channel) == (1.0, "told")
    (printed,) = analyse(log, context=told, side={"topology": str(topo)}).judgement.seen.named("has_no_nvlink")
    assert (printed.value, printed.channel) == (0.0, "links")


# What is handed on.


def test_the_scorecards_entries(case_a):
    found = case_a[1]
    entries = investigation.entries(found.judgement)
    assert entries["diagnosis"] == found.scorecard["diagnosis"]
    assert [row["cause"] for row in entries["diagnosis"]] == [item.cause for item in found.judgement.findings]
    row = entries["diagnosis"][0]
    assert set(row) == {"cause", "status", "score", "evidence_for", "evidence_against", "refuted_by", "contradiction",
                        "next_experiment"}
    assert row["next_experiment"] == found.judgement.plans[0].what
    assert entries["next_experiment"]["what"] == found.judgement.plans[0].what


def test_no_experiment_no_entry(case_a):
    none = investigation.entries(replace(case_a[1].judgement, plans=()))
    assert none["next_experiment"] is None and {row["next_experiment"] for row in none["diagnosis"]} == {None}


def test_what_the_plan_may_know(case_a, alone):
    """Levels of the lives the answer rests on, the line, the start-up time of the simulated server (60 s)."""
    from helpers.investigation.judgement import known

    def stages(found):
        log = found.log
        return investigation.Run(log.samples, log.events, found.intervals, found.levels, found.fits, found.facts,
                                 [found.facts.values], analysis.fitted_lives(found.levels), found.allowed)

    facts = known(stages(case_a[0]), case_a[0].judgement.evidence)
    assert [row["running_req"] for row in facts["levels"]][:2] == [1.0, 1.0] or len(facts["levels"]) >= 3
    assert facts["law"] == pytest.approx((0.052, 0.030), rel=0.02)
    assert facts["startup_s"] == pytest.approx(60, abs=2)
    assert facts["has_telemetry"] is facts["has_profile"] is False and "accept_len" not in facts
    assert facts["context_length_max"] == 1_048_576
    good = known(stages(alone), alone.judgement.evidence)
    assert set(good["target_step_s"]) == {"1", "4", "16"} and good["components"]
