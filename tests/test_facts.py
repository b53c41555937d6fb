"""What the user says about a deployment, over what the log says: nothing is fatal but a text that cannot be read."""

import pytest

from helpers.facts import merge_facts, read_context
from helpers.schema import LogFormatError


def test_user_wins_and_the_difference_is_said():
    facts = merge_facts({"tp": 4, "model": "/models/org/Some-Model", "page_size": 1}, {"parallel": {"tp": 8, "dp": 2}})
    assert dict(facts.values) == {"tp": 8, "model": "/models/org/Some-Model", "page_size": 1, "dp": 2}
    assert dict(facts.source) == {"tp": "user", "model": "log", "page_size": "log", "dp": "user"}
    assert facts.contradictions == ("tp: the log says 4, --context says 8; 8 is used",)


@pytest.mark.parametrize(
    ("logged", "given"),
    [
        ({"model": "/models/org/Some-Model/"}, {"model": "some-model"}),
        ({"tp": 4}, {"parallel.tp": 4.0}),
        ({"captured_batch_sizes": [1, 2]}, {"captured_batch_sizes": [2, 1]}),
        ({"dtype": "bfloat16"}, {"dtype": "BFLOAT16"}),
    ],
)
def test_the_same_thing_said_otherwise_is_no_contradiction(logged, given):
    assert merge_facts(logged, given).contradictions == ()


def test_facts_that_cannot_be_used_are_listed_with_the_reason():
    facts = merge_facts(
        {},
        {
            "hardwar": "h100", "kv_bytes_per_tok": "many", "tp": 1.5, "dp_attention": 1, "parallel": {"xp": 2},
            "captured_batch_sizes": [1, "a"], "weight_bytes_per_step": float("nan"), "gpus": 8,
        },
    )
    assert dict(facts.values) == {"gpus": 8}
    assert facts.unused["hardwar"] == "not a fact rooflog knows; did you mean hardware?"
    assert facts.unused["kv_bytes_per_tok"] == "expected a number not below zero, found 'many'"
    assert facts.unused["tp"] == "expected a whole number, found 1.5"
    assert facts.unused["dp_attention"] == "expected true or false, found 1"
    assert facts.unused["parallel.xp"] == "expected one of tp, dp, pp, ep"
    assert facts.unused["captured_batch_sizes"].startswith("expected a list of whole numbers")
    assert facts.unused["weight_bytes_per_step"].startswith("expected a number")


def test_context_from_text_yaml_and_json(tmp_path):
    (tmp_path / "facts.yaml").write_text("hardware: h100-sxm\nparallel: {tp: 2}\n")
    (tmp_path / "facts.json").write_text('{"hardware": "h100-sxm", "parallel": {"tp": 2}}')
    expected = {"hardware": "h100-sxm", "parallel": {"tp": 2}}
    for context in (' {"hardware": "h100-sxm", "parallel": {"tp": 2}}', tmp_path / "facts.yaml",
                    str(tmp_path / "facts.json"), expected):
        assert read_context(context) == expected
    assert read_context(None) == read_context("") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tp": 4', "not JSON at line 1 column"),
        ("[1, 2]", "expected an object of facts"),
        ("tp: [1", "not YAML at line"),
        ("just words", "expected an object of facts"),
        ("", "expected an object of facts"),
    ],
)
def test_unreadable_context_is_one_clear_error(tmp_path, content, message):
    file = tmp_path / "facts.yaml"
    file.write_text(content)
    with pytest.raises(LogFormatError, match=message):
        read_context(content if content.startswith(("{", "[")) else file)


def test_missing_or_binary_context_is_one_clear_error(tmp_path):
    with pytest.raises(LogFormatError, match=r"--context nosuch.yaml: .*found: No such file"):
        read_context("nosuch.yaml")
    (tmp_path / "bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LogFormatError, match="not a text file"):
        read_context(tmp_path / "bin")


def test_a_number_that_yaml_reads_as_text_is_a_number(tmp_path):
    (tmp_path / "facts.yaml").write_text(
        "weight_bytes_per_step: 16e9\nkv_pool_tokens: 1e6\nprompt_tokens: nan\noutput_tokens: many\ntp: '1.5'\n")
    facts = merge_facts({}, tmp_path / "facts.yaml")
    assert dict(facts.values) == {"weight_bytes_per_step": 16e9, "kv_pool_tokens": 1_000_000}
    assert type(facts.values["kv_pool_tokens"]) is int
    assert set(facts.unused) == {"prompt_tokens", "output_tokens", "tp"}
    assert set(merge_facts({}, {"tp": 10**400}).unused) == {"tp"}


def test_mean_context_is_a_fact_above_zero():
    assert dict(merge_facts({}, '{"context_tok": 500}').values) == {"context_tok": 500.0}
    assert merge_facts({}, {"context_tok": 500}).unused == {}
    assert merge_facts({}, {"context_tok": 0}).unused == {"context_tok": "expected a number above zero, found 0"}
