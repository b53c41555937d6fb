import math

import pytest

from helpers.compare import judge_validity
from helpers.compare.validity import flatten

FACTS = {"engine": "sglang", "engine_version": "0.5.9", "model": "m", "hardware": "H200", "tp": 4, "dp": 1,
         "kv_cache_dtype": "auto", "captured_batch_sizes": [1, 2, 4], "prompt_tokens": 1000.0,
         "args": {"tp_size": 4, "kv_cache_dtype": "auto", "port": 30000}}


def judged(**change):
    return judge_validity(FACTS, {**FACTS, **change})


def test_the_same_facts_are_the_same_configuration():
    found = judged()
    assert found.verdict == "same_configuration" and found.differences.empty and found.variable is None


@pytest.mark.parametrize(
    ("change", "key", "kind"),
    [
        ({"kv_cache_dtype": "fp8_e5m2", "args": {**FACTS["args"], "kv_cache_dtype": "fp8_e5m2"}}, "kv_cache_dtype",
         "configuration"),
        ({"engine_version": "0.5.10"}, "engine_version", "version"),
        ({"prompt_tokens": 1500.0}, "prompt_tokens", "load"),
        ({"captured_batch_sizes": [1, 2]}, "captured_batch_sizes", "configuration"),
    ],
)  # fmt: skip
def test_one_difference_is_named_and_its_argument_is_not_counted_again(change, key, kind):
    found = judged(**change)
    assert (found.verdict, found.variable) == ("single_variable", key)
    assert found.differences[["key", "kind", "status"]].to_numpy().tolist() == [[key, kind, "differs"]]
    assert key in found.sentence


def test_two_differences_are_no_single_variable_comparison():
    found = judged(engine_version="0.5.10", kv_cache_dtype="fp8_e5m2")
    assert found.verdict == "several_differ" and found.variable is None and "2 differ" in found.sentence


@pytest.mark.parametrize("change", [{"model": "other"}, {"hardware": "B200"}, {"tp": 8}])
def test_another_server_is_not_comparable(change):
    found = judged(**change)
    assert found.verdict == "not_comparable" and next(iter(change)) in found.sentence


def test_an_argument_alone_that_states_another_degree_is_not_comparable():
    assert judge_validity({"args": {"tp-size": 4}}, {"args": {"tp-size": 8}}).verdict == "not_comparable"


@pytest.mark.parametrize("missing", [None, math.nan, "", []])
def test_missing_on_one_side_is_neither_equal_nor_different(missing):
    found = judged(kv_cache_dtype=missing, args={"tp_size": 4, "kv_cache_dtype": "auto"})
    assert found.verdict == "same_configuration"
    assert found.differences[["key", "status"]].to_numpy().tolist() == [["kv_cache_dtype", "not known"]]
    assert "not known to be equal: kv_cache_dtype" in found.sentence
    many = judge_validity({"tp": 1}, {"tp": 1, "args": {"a": 1, "b": 2, "_c": 3}})
    assert "2 server arguments" in many.sentence and len(many.differences) == 2
    assert "Stated on neither side: model, hardware" in judge_validity({}, {}).sentence


def test_spelling_order_addresses_and_sampled_lengths_make_no_difference():
    assert judge_validity({"dtype": "bfloat16"}, {"dtype": "torch.bfloat16"}).differences.empty
    other = {"hardware": "h200", "captured_batch_sizes": [4, 2, 1], "prompt_tokens": 1050.0,
             "args": {**FACTS["args"], "port": 1}}
    assert judged(**other).verdict == "same_configuration"
    assert judged(prompt_tokens=1101.0).verdict == "single_variable"  # 10 % is the tolerance
    assert flatten({"args": {"a-b": {"c": 1}}}) == {"args.a_b.c": 1}


def test_numbers_in_a_sentence_have_a_unit_and_three_figures_and_stay_raw_in_the_table():
    found = judge_validity({"weight_bytes": 16.0123e9}, {"weight_bytes": 17.0987e9})
    assert "weight_bytes 16.0 GB against 17.1 GB" in found.sentence
    assert found.differences.loc[0, ["base", "new"]].tolist() == [16.0123e9, 17.0987e9]
    same_figures = judge_validity({"weight_bytes": 16.01e9}, {"weight_bytes": 16.02e9}).sentence
    assert "weight_bytes 16010000000.0 against 16020000000.0" in same_figures
    flags = judge_validity({"a": False, "n_s": 1, "slots_max": 256}, {"a": True, "n_s": 1, "slots_max": 512}).sentence
    assert "a False against True; slots_max 256 against 512" in flags
    argument = judge_validity({"args": {"poll_s": 8192}}, {"args": {"poll_s": 16384}}).sentence
    assert "args.poll_s 8192 against 16384" in argument  # an engine's own name promises no unit


@pytest.mark.parametrize("more", [{}, {"output_tokens": 400.0}])
def test_loads_that_differ_are_called_the_load_and_no_change_of_the_server(more):
    found = judge_validity({**FACTS, "prompt_tokens": 31.04, "output_tokens": 100.0},
                           {**FACTS, "prompt_tokens": 64.71, "output_tokens": 100.0, **more})
    assert found.sentence.startswith("The loads differ: ")
    assert "prompt_tokens 31.0 tok against 64.7 tok" in found.sentence and "One variable" not in found.sentence
    assert found.verdict == ("several_differ" if more else "single_variable")
    assert not judged(prompt_tokens=2000.0, engine_version="0.5.10").sentence.startswith("The loads differ")
