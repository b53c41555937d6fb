"""accept_len of vLLM's speculation lines, and its join to the statistics of the same window.

Oracle: counts chosen so that the answer is a ratio of small integers. Would catch: drafts taken as drafted tokens /
positions (wrong when drafts are short), a missing bonus token, windows joined across silence or engines.
"""

from __future__ import annotations

import json

import pytest
from logs import read, vllm_line

from helpers import ingest


def spec_line(second, accepted, drafted, rates, *, seconds=10.0, mean=9.99):
    """A current speculation line; its printed mean is not used."""
    return (
        f"(APIServer pid=7) INFO 02-03 04:05:{second:02d} [metrics.py:120] SpecDecoding metrics: Mean acceptance "
        f"length: "
        f"{mean:.2f}, Accepted throughput: {accepted / seconds:.2f} tokens/s, Drafted throughput: "
        f"{drafted / seconds:.2f} "
        f"tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: "
        f"{', '.join(f'{rate:.3f}' for rate in rates)}, Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )


def by_kind(log, kind):
    return log.samples[log.samples["kind"] == kind]["accept_len"].tolist()


def test_full_drafts(tmp_path):
    """30 rounds of 2 drafts, 45 accepted: 2.5 tokens per round; the window has (30 + 45) tokens in 10 s."""
    log = read(tmp_path, vllm_line(0), vllm_line(10, rate=7.5), spec_line(10, 45, 60, [0.9, 0.6]))
    assert by_kind(log, "spec") == [2.5]
    assert by_kind(log, "stats")[1] == 2.5
    assert log.samples["accept_len"].isna().tolist() == [True, False, False]


def test_the_printed_mean_does_not_matter_so_the_version_does_not(tmp_path):
    """0.8 prints the mean without the bonus token, and puts the draft acceptance rate first."""
    old = "INFO 02-03 04:05:10 [metrics.py:1] SpecDecoding metrics: Draft acceptance rate: 75.0%, Mean acceptance " \
        "length: 1.50, " \
        "Accepted: 45 tokens, Drafted: 60 tokens, Per-position acceptance rate: 0.900, 0.600"
    log = read(tmp_path, vllm_line(0), vllm_line(10, rate=7.5), old)
    assert by_kind(log, "spec") == [2.5]
    assert by_kind(log, "stats")[1] == 2.5
    assert log.samples["accept_rate_frac"].iloc[2] == 0.75


def test_short_drafts_are_not_taken_for_full_ones(tmp_path):
    """30 rounds, 45 drafted (not 60), 36 accepted: 1 + 36/30 = 2.2; drafted / positions would give 2.6."""
    log = read(tmp_path, vllm_line(0), vllm_line(10, rate=6.6), spec_line(10, 36, 45, [0.8, 0.4]))
    assert by_kind(log, "spec") == [2.2]
    assert by_kind(log, "stats")[1] == 2.2


def test_rounds_without_any_draft_count_too(tmp_path):
    """30 rounds with a draft (45 accepted) and 30 without: 105 tokens in 60 rounds, 1.75 each."""
    lines = []
    for second in (10, 20, 30):
        lines += [vllm_line(second, rate=10.5), spec_line(second, 45, 60, [0.9, 0.6])]
    log = read(tmp_path, vllm_line(0), *lines)
    assert by_kind(log, "spec") == [2.5] * 3
    assert by_kind(log, "stats")[1:] == pytest.approx([1.75] * 3, rel=1e-12)


def test_first_tokens_of_prompts_are_no_rounds_without_draft(tmp_path):
    """Windows with prompts hold tokens that no round made; they must not pass for n-gram gaps."""
    prompt = vllm_line(20, rate=10.5).replace("prompt throughput: 0.0", "prompt throughput: 99.0")
    log = read(
        tmp_path, vllm_line(0), vllm_line(10, rate=7.5), spec_line(10, 45, 60, [0.9, 0.6]), prompt,
        spec_line(20, 45, 60, [0.9, 0.6]),
    )
    assert by_kind(log, "stats")[1:] == [2.5, 2.5]


def test_spec_line_after_silence_covers_the_silence(tmp_path):
    """Its rates are over 50 s, the statistics over 10 s: the counts are used, not the rates."""
    log = read(
        tmp_path, vllm_line(0), vllm_line(9, rate=10.5), spec_line(9, 45, 60, [0.9, 0.6], seconds=9),
        vllm_line(49, rate=10.5), vllm_line(59, rate=10.5), spec_line(59, 45, 60, [0.9, 0.6], seconds=50),
    )
    stats = by_kind(log, "stats")
    assert stats[1] == pytest.approx(10.5 / 5.5, rel=1e-12)
    assert stats[2] != stats[2]  # no spec line, nothing joined
    assert stats[3] == 2.5


def test_nothing_accepted_is_one_token_per_round(tmp_path):
    log = read(tmp_path, vllm_line(0), vllm_line(10, rate=3.0), spec_line(10, 0, 60, [0, 0]))
    assert by_kind(log, "spec") == [1.0]
    assert by_kind(log, "stats")[1] == 1.0


def test_far_apart_lines_are_not_joined(tmp_path):
    log = read(tmp_path, vllm_line(0), vllm_line(10, rate=7.5), spec_line(13, 45, 60, [0.9, 0.6]))
    assert log.samples["accept_len"].isna().tolist() == [True, True, False]


def test_a_window_is_joined_once(tmp_path):
    """The second speculation line has no statistics of its own; it must not replace the first one's value."""
    log = read(tmp_path, vllm_line(0), vllm_line(10, rate=7.5), spec_line(10, 45, 60, [0.9, 0.6]),
               spec_line(10, 30, 60, [0.6, 0.4]))
    assert by_kind(log, "stats")[1] == 2.5
    assert by_kind(log, "spec") == [2.5, 2.0]


def test_spec_line_before_its_statistics(tmp_path):
    log = read(tmp_path, vllm_line(0), spec_line(10, 45, 60, [0.9, 0.6]), vllm_line(10, rate=7.5))
    assert log.samples["accept_len"].isna().tolist() == [True, False, False]


def test_engines_are_joined_each_to_its_own(tmp_path):
    """Each engine prints its statistics and then its speculation line."""
    one = "Engine 001"
    log = read(
        tmp_path, vllm_line(0), vllm_line(0).replace("Engine 000", one),
        vllm_line(10, rate=7.5), spec_line(10, 45, 60, [0.9, 0.6]),
        vllm_line(10, rate=6.0).replace("Engine 000", one), spec_line(10, 30, 60, [0.6, 0.4]),
    )
    assert by_kind(log, "stats")[2:] == [2.5, 2.0]


def test_real_ngram_log_against_the_client(shared):
    """Client: 16 requests decode at 317.9 tok/s with 127.1 ms a step, so 2.525 tokens per request and step.

    10 %: windows are 2 s, the client's spans other seconds, and another program shared the two cores.
    The mean of the printed lengths (2.7 to 3.2) is outside: it leaves out rounds without a draft.
    """
    folder = shared / "logs" / "own" / "vllm-spec-ngram"
    samples = ingest.read_log(folder / "server.log").samples
    full = samples[(samples["kind"] == "stats") & (samples["running_req"] == 16) & samples["accept_len"].notna()]
    clean = full[full["prefill_tok_per_s"] == 0]
    assert clean["accept_len"].mean() == pytest.approx(317.89 / 16 * 0.127097, rel=0.10)
    step_s = clean["running_req"].sum() / (clean["decode_tok_per_s"] / clean["accept_len"]).sum()
    assert step_s == pytest.approx(0.127097, rel=0.10)


@pytest.mark.parametrize("name", ["vllm.log", "qwen36.log", "qwen38-int4.log", "vllm-int4-long.log"])
def test_every_spec_line_of_a_real_log_finds_its_window(shared, name):
    """With full drafts the joined value is the printed mean (0.25.1 prints it with the bonus token)."""
    samples = ingest.read_log(shared / "logs" / "sostrowsk" / name).samples
    spec, stats = samples[samples["kind"] == "spec"], samples[samples["kind"] == "stats"]
    assert stats["accept_len"].notna().sum() == len(spec)
    printed = [json.loads(text)["Mean acceptance length"] for text in spec["extra"]]
    assert spec["accept_len"].tolist() == pytest.approx(printed, abs=0.0051)  # printed with two decimals
    assert stats["accept_len"].dropna().tolist() == spec["accept_len"].tolist()
