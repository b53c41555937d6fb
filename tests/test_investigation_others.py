"""Side files and facts of another run are not believed: each is named with the reason, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from helpers import synth
from helpers.analysis import analyse
from helpers.diagnose.judge import OF_HARDWARE
from helpers.diagnose.reconcile import ProfileMatch
from helpers.evidence.profiles import vendor_of
from helpers.facts import merge_facts
from helpers.investigation.others import believable, foreign_profile
from helpers.plan import policy
from helpers.synth import Client, Lengths, Server, StepLaw

SERVER = Server(version="0.5.14", law=StepLaw(intercept_s=0.006, slope_s_per_req=5e-5), model="Meta-Llama-3.1-8B",
                captured_batch_sizes=(1, 2, 4, 8, 16))
LOAD = Client(levels_req=(1, 4, 16), prompts_per_req=3.0, prompt=Lengths(mean_tok=256), output=Lengths(mean_tok=700))
TOLD = {"hardware": "H100 SXM 80GB", "model": "Meta-Llama-3.1-8B", "tp": 1}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "server.log"
    path.write_text(synth.simulate(SERVER, LOAD, seed=3).text)
    return path


@pytest.fixture(scope="module")
def alone(log):
    return analyse(log, context=TOLD)


def profile(**times_s):
    """Kernels by name [s] and role."""
    roles = {"moe_align": "moe"}
    names = list(times_s)
    return SimpleNamespace(kernels=pd.DataFrame({
        "name": names, "role": [roles.get(name, "dense_gemm") for name in names], "total_s": list(times_s.values())}))


def run_with(alone):
    return SimpleNamespace(allowed=alone.allowed)


def match(ratio, verdict="differs by"):
    return ProfileMatch(verdict, ratio, 0.98 * ratio, 1.02 * ratio, 16.0, 0.007)


@pytest.mark.parametrize(("times_s", "held", "says"), [
    ({"sm90_gemm": 1.0}, match(3.0), "of another load"),
    ({"sm90_gemm": 1.0}, match(0.5), "of another load"),
    ({"sm90_gemm": 1.0}, match(1.2), None),  # what a profiler adds
    ({"sm90_gemm": 1.0}, match(3.0, "cannot tell: why"), None),
    ({"sm90_gemm": 1.0}, match(3.0, "represents"), None),  # an interval that reaches 1
    ({"Cijk_Alik_Bljk": 0.2, "other": 0.8}, None, "20% of its time lies in kernels of AMD"),
    ({"Cijk_Alik_Bljk": 0.05, "other": 0.95}, None, None),
    ({"moe_align": 0.1, "sm90_gemm": 0.9}, None, "10% of its time lies in kernels of experts"),
    ({"moe_align": 0.01, "sm90_gemm": 0.99}, None, None),
    ({"moe_align": 0.0}, None, None),  # launches without times tell no share
])
def test_a_profile_of_something_else(alone, times_s, held, says):
    why = foreign_profile(profile(**times_s), held, run_with(alone))
    assert (why is None) if says is None else (says in why)


def test_vendor_and_experts_need_a_known_deployment():
    blind = SimpleNamespace(allowed=None)
    assert foreign_profile(profile(Cijk_Alik_Bljk=1.0), None, blind) is None
    assert foreign_profile(profile(Cijk_Alik_Bljk=1.0), match(3.0), blind) is not None


def test_a_profile_of_amd_kernels_beside_an_nvidia_log_is_named_and_unused(alone, log, tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text("Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
                    "100.0,9000000,300,30000,30000,29000,31000,100,Cijk_Alik_Bljk_BBS_BH_Bias\n")
    found = analyse(log, context=TOLD, side={"profile": str(path)})
    (note,) = [note for note in found.scorecard["run"]["notes"] if str(path) in note and "not used" in note]
    assert "100% of its time lies in kernels of AMD" in note
    assert found.judgement.evidence.profile is None and found.judgement.reconciled.profile is not None
    assert [f.score for f in found.judgement.findings] == [f.score for f in alone.judgement.findings]


def test_a_baseline_of_another_model_is_named_and_unused(log, alone, tmp_path):
    other = tmp_path / "other.log"
    other.write_text(synth.simulate(replace(SERVER, model="Qwen3.6-27B"), LOAD, seed=4).text)
    logged = analyse(log, context={"hardware": "H100 SXM 80GB"}, side={"baseline_log": str(other)})
    assert "the baseline is not used: its model is Qwen3.6-27B, this log's is Meta-Llama-3.1-8B" in logged.scorecard[
        "run"]["notes"]
    assert not [item for item in logged.judgement.seen if item.channel == "baseline"]
    same = analyse(log, context={"hardware": "H100 SXM 80GB"}, side={"baseline_log": str(log)})
    assert same.judgement.seen.value("step_over_baseline") == pytest.approx(1.0)


def test_a_client_that_is_not_in_the_log_says_nothing(log, tmp_path):
    """1,000 requests of 100,000 tokens would want the pool many times over: this server never saw them."""
    path = tmp_path / "client.jsonl"
    path.write_text('{"backend": "sglang", "dataset_name": "random", "max_concurrency": 1000, "duration": 900.0, '
                    '"completed": 2000, "total_input_tokens": 100000000, "total_output_tokens": 90000000, '
                    '"request_throughput": 2.2, "output_throughput": 100000.0, "mean_ttft_ms": 50.0, '
                    '"mean_tpot_ms": 9.0}\n')
    found = analyse(log, context={**TOLD, "kv_pool_tokens": 1_000_000}, side={"client": str(path)})
    assert any("the client's results are not used" in note for note in found.scorecard["run"]["notes"])
    assert not found.judgement.seen.named("demand_over_pool")


def records(running, held):
    return pd.DataFrame({"running_req": running, "used_tok": held})


@pytest.mark.parametrize(("told", "samples", "words"), [
    ({"context_length_max": 1000}, records([4.0] * 5, [20000.0] * 5), "5 records show a mean context above it"),
    ({"context_length_max": 1000}, records([1.0] * 5, [1900.0] * 5), None),  # a prompt in chunks holds tokens too
    ({"kv_pool_tokens": 10000}, records([4.0] * 3, [20000.0] * 3), "KV tokens in use above it, up to 20000 tok"),
    ({"kv_pool_tokens": 10000}, records([4.0] * 3, [10100.0] * 3), None),
    ({"max_running_requests": 2}, records([4.0] * 3, [1.0] * 3), "3 records show running requests"),
    ({"max_running_requests": 2}, records([4.0] * 2, [1.0] * 2), None),
    ({"max_running_requests": 2}, records([], []), None),
])
def test_limits_that_the_log_went_beyond(told, samples, words):
    facts = believable(merge_facts({}, told), samples)
    (name,) = told
    if words is None:
        assert facts.get(name) == told[name] and not facts.unused
    else:
        assert name not in facts.values and name not in facts.source
        assert words in facts.unused[name] and "contradicts the log, not used" in facts.unused[name]
    # what the log says of itself is not judged here
    assert name in believable(merge_facts(told), samples).values


def test_a_limit_below_what_ran_is_said_and_unused(log):
    found = analyse(log, context={**TOLD, "max_running_requests": 2, "kv_pool_tokens": 100})
    notes = " ".join(found.scorecard["run"]["notes"])
    assert "max_running_requests (--context): 2 contradicts the log, not used" in notes
    assert "kv_pool_tokens (--context): 100 contradicts the log, not used" in notes
    assert "kv_pool_tokens" not in found.facts.values


def test_the_plan_and_the_judge_agree_on_what_a_good_step_is():
    assert set(policy.GOOD) == set(OF_HARDWARE)


@pytest.mark.parametrize(("name", "vendor"), [
    ("Cijk_Ailk_Bjlk_BBS_BH_MT64x16x64", "AMD"), ("_ZN5aiter24add_rmsnorm_quant_kernelIfE", "AMD"),
    ("void at::native::waiter_kernel", ""), ("ncclDevKernel_AllReduce_Sum_bf16", ""),
    ("sm90_xmma_gemm_bf16bf16", "NVIDIA"), ("void cutlass::device_kernel<...>", "NVIDIA"),
])
def test_names_that_one_vendors_libraries_print(name, vendor):
    assert vendor_of(name) == vendor
