"""What llama.cpp prints: the timings of the server's slots in every era, those of its command line, and its events.

One finished request is a block of lines: prompt time, eval time, total time, graphs reused, draft acceptance. Up to
build 8000 the block follows a header and has no prefix; since 2026 every line names slot and task. `llamacpp_slots`
joins the lines of a block to one record.
"""

from __future__ import annotations

from helpers.ingest.dialect import HOLE, Dialect, EventRule, Family, Key, Reading
from helpers.ingest.llamacpp_slots import join_blocks

ENGINE = "llamacpp"

_V = r"(-?(?:[0-9][0-9.e+-]*|inf|nan))"
_PER_TOKEN = rf"\( *{_V} ms per token, *{_V} tokens per second\)"
_OF = rf" *{_V} ms / *{_V} (?:tokens|runs) *"

_CLOCK = r"([0-9]+)\.([0-9]{2})\.([0-9]{3})\.([0-9]{3}) [A-Z] "
_UPTIME = (
    (rf"\[([0-9]+)\] +{_CLOCK}", "[00:00:00 PORT${1} MINUTES${2} SECONDS${3} MICROSECONDS${4}${5}]"),
    (_CLOCK, "[00:00:00 MINUTES${1} SECONDS${2} MICROSECONDS${3}${4}]"),
)
"""Minutes, seconds, milliseconds and microseconds since the start (minutes grow without end), which is no time of
day: they travel as tags and `join_blocks` makes a time of them. A router puts its child's port in front."""

_PIECES: dict[str, tuple[tuple[str, str], ...]] = {
    "prompt eval time =": (
        (rf"{_OF}{_PER_TOKEN}", "prompt time: ${1} ms, new tokens: ${2}, new ms/token: ${3}, new tokens/s: ${4}"),
        (rf"{_OF}\( *{_V} ms per token\)", "prompt time: ${1} ms, new tokens: ${2}, new ms/token: ${3}"),
    ),
    "eval time =": (
        (rf"{_OF}{_PER_TOKEN}", "decode time: ${1} ms, tokens: ${2}, ms/token: ${3}, tokens/s: ${4}"),
        (rf"{_OF}\( *{_V} ms per token\)", "decode time: ${1} ms, tokens: ${2}, ms/token: ${3}"),
    ),
    "total time =": (
        (rf" *{_V} ms / *{_V} tokens", "total time: ${1} ms, total tokens: ${2}"),
        (rf" *{_V} ms\s*$", "total time: ${1} ms"),
    ),
    "graphs reused =": ((rf" *{_V}", "graphs reused: ${1}"),),
    **{
        words: ((
            rf" *{_V} \( *{_V} accepted / *{_V} generated\)",
            "draft acceptance: ${1}, draft accepted: ${2}, draft generated: ${3}",
        ),)
        for words in ("draft acceptance rate =", "draft acceptance =")
    },
}
"""Words that name a line of the block -> what follows them, and the same as ``key: value``; old builds print less."""

_DRAFT_PARTS = (
    (rf"#?mean (?:len|acceptance length|acc len) = *{_V}", "mean length: ${1}"),
    (r"#?(?:acceptance rate per position|acc per pos|acc rate/pos) = \(([^)]*)\)", "accepted per position: [${1}]"),
    (rf"dur\(b,g,a\) = *{_V}, *{_V}, *{_V} ms", "durations: [${1}, ${2}, ${3}]"),
)
_STATISTICS = (
    (rf"(?:^|statistics) *([\w-]+): #calls\(b,g,a\) = *{_V} +{_V} +{_V}", "${1} calls: [${2}, ${3}, ${4}]"),
    (rf"(?:^|statistics) *([\w-]+): #calls = *{_V}", "${1} calls: [${2}]"),
    *_DRAFT_PARTS,
    (rf"(#[a-z][a-z ]*) = *{_V}", "${1}: ${2}"),
)
# a key of one word, known or not; more words before the sign are a line that was cut
_ANY = (rf"(^|, )([a-z]\w*) = *{_V}", "${1}${2}: ${3}")

_COLUMNS = {
    "decode time": Key("span_s", "ms", " ms"),
    "tokens": Key("out_tok"),
    "runs": Key("n_steps"),
    "new tokens": Key("new_tok"),
    "tg": Key("decode_tok_per_s", "rate", " t/s"),
    "draft acceptance": Key("accept_rate_frac", "rate"),
    "mean length": Key("accept_len", "rate"),
}
_UNITS = frozenset(("", "%", " ms", " s", " t/s"))

SLOT = Family(
    engine=ENGINE,
    kind="request",
    literal="slot print_timing:",
    keys=_COLUMNS,
    required=(("slot",),),
    begins=("slot: ",),
    units=_UNITS,
    stamps=_UPTIME,
    rewrite=(
        (r" +", " "),
        (r"^ ?id (-?[0-9]+) \| task (-?[0-9]+) \| ?", "slot: ${1}, task: ${2}, "),
        *((words + after, named) for words, pieces in _PIECES.items() for after, named in pieces),
        *_STATISTICS,
        (rf"prompt processing, n_tokens = {_V}, progress = {_V}", "prompt tokens done: ${1}, progress: ${2}"),
        (rf", t = {_V} s / {_V} tokens per second", ", so far: ${1} s, new tokens/s: ${2}"),
        _ANY,
    ),
)


def _piece(words: str) -> Family:
    """Return the family of an unprefixed line of the block."""
    return Family(
        engine=ENGINE,
        kind="request",
        literal=words,
        keys=_COLUMNS,
        required=(("tokens", "new tokens", "total time", "graphs reused", "draft acceptance"),),
        head=rf"(?=[a-z/ ]+: | *{HOLE}|\s*$)",
        begins=("",),
        units=_UNITS,
        stamps=_UPTIME,
        rewrite=(*((f"^{after}", named) for after, named in _PIECES[words]), *_DRAFT_PARTS),
    )


def _command_line(literal: str) -> Family:
    """Return the family of the sums that llama.cpp's programs print at their end."""
    as_runs = (
        rf"^ *eval time = *{_V} ms / *{_V} runs *{_PER_TOKEN}",
        "decode time: ${1} ms, runs: ${2}, ms/token: ${3}, tokens/s: ${4}",
    )
    older = (rf"^ *eval time = *{_V} ms / *{_V} runs *\( *{_V} ms per token\)", "decode time: ${1} ms, runs: ${2}")
    other = (
        (rf"^ *(load|sampling|sample|samplers|total|unaccounted) time = *{_V} ms[^\r\n]*", "${1} time: ${2} ms"),
        (rf"^ *graphs reused = *{_V}", "graphs reused: ${1}"),
    )
    prompt = tuple((f"^ *prompt eval time ={after}", named) for after, named in _PIECES["prompt eval time ="])
    return Family(
        engine=ENGINE,
        kind="request",
        literal=literal,
        keys=_COLUMNS,
        required=(("runs", "new tokens", "load time", "sampling time", "sample time", "samplers time", "total time",
                   "unaccounted time", "graphs reused"),),
        head=r"(?= *[a-z/ ]+(?::| time =))",
        begins=("",),
        flags={" (sum)": "is_sum"},
        units=_UNITS,
        stamps=_UPTIME,
        rewrite=(as_runs, older, *prompt, *other, (r"(: [^\r\n]*)", "${1} (sum)")),
    )


STATISTICS = Family(
    engine=ENGINE,
    kind="aux",
    literal="statistics ",
    keys=_COLUMNS,
    required=(("#gen tokens",), ("#acc tokens",)),
    head=r"(?=[\w-]+ calls: )",
    begins=("",),
    units=_UNITS,
    stamps=_UPTIME,
    rewrite=(*_STATISTICS, _ANY),
)

EVENTS = (
    # it names no version, so it begins a server life as an empty list of arguments
    EventRule("args", "srv  llama_server: initializing"),
    EventRule("banner", "build: ", r"^(?:.* [A-Z] )?build: (?P<engine_version>\d+) \([0-9a-f]{7,}\) with "),
    EventRule("fact", "load_model: loading model", r"load_model: loading model '(?P<model>[^']+)'"),
    EventRule("fact", "threadpool init, n_threads", r"threadpool init, n_threads = (?P<n_threads>\d+)"),
    EventRule("fact", "system_info: n_threads", r"system_info: n_threads = (?P<n_threads>\d+)"),
    EventRule(
        "kv_allocated", "load_model: initializing, n_slots",
        r"initializing, n_slots = (?P<max_running_requests>\d+), n_ctx_slot = (?P<context_len>\d+)",
    ),
    EventRule(
        "kv_allocated", "initializing slots, n_slots", r"initializing slots, n_slots = (?P<max_running_requests>\d+)"
    ),
    EventRule(
        "kv_allocated", "llama_kv_cache", r"llama_kv_cache\w*: +size = +(?P<size>[\d.]+) (?P<unit>MiB) "
        r"\( *(?P<tokens>\d+) cells",
    ),
    EventRule(
        "kv_allocated", "new slot", r"\| new slot,? n_ctx(?:_slot)? = (?P<context_len>\d+)"
    ),
    EventRule(
        "weights_loaded", "model buffer size",
        r"(?P<device>\S+) model buffer size = +(?P<size>[\d.]+) (?P<unit>MiB)",
    ),
    EventRule("weights_loaded", ": model loaded", r"(?:llama_server|main): model loaded"),
    EventRule("ready", "listening on http", r"(?:llama_server|main|srv)[^|]*: (?:server is )?listening on http"),
    EventRule("idle", "all slots are idle"),
    EventRule("context_shift", "slot context shift", r"n_left = (?P<n_left>\d+), n_discard = (?P<n_discard>\d+)"),
    EventRule(
        "out_of_memory", "cudaMalloc failed",
        r"allocating (?P<size>[\d.]+) (?P<unit>MiB) on device (?P<device>\d+): cudaMalloc failed",
    ),
    EventRule(
        "out_of_memory", "failed to allocate", r"failed to allocate (?P<device>\w+) buffer of size (?P<size_bytes>\d+)"
    ),
    EventRule("out_of_memory", "Device memory allocation of size", r"allocation of size (?P<size_bytes>\d+) failed"),
    EventRule("crash", "GGML_ASSERT("),
    EventRule("crash", "error loading model", r"(?:llama_model_load|load_model)\w*: (?:error|failed)"),
    EventRule("crash", "failed to load model", r"load_model: failed to load model"),
    EventRule("shutdown", "cleaning up before exit"),
)

READS = (
    Reading(
        source="slot print_timing: id .. | task .. | prompt eval time, eval time, total time, graphs reused, draft ..",
        kind="request",
        versions="server builds of 2024 to 2026: a header and bare lines, then every line with slot and task",
        gives={
            "span_s": "eval time of one request: from its first token to its last, wall time of its slot",
            "out_tok": "tokens in that time: those generated less the first, which the prompt's last step gives",
            "n_steps": "out_tok less the accepted draft tokens",
            "new_tok": "prompt tokens computed; those from the cache are not in it",
            "prompt_s": "prompt eval time, in extra",
            "decode_tok_per_s": "out_tok / span_s of this slot; k busy slots decode about k times as much",
            "t_s": "end of the request, since the first line (the stamps are uptimes); missing where none is printed",
        },
        traps=(
            "a slot's eval time contains the prompts of the other slots",
            "older builds divide by all tokens, newer ones leave the first out: out_tok and the rate here always do",
        ),
    ),
    Reading(
        source="slot print_timing: .. n_gen (n_decoded) = .., tg = .., tg_3s = ..; prompt processing, n_tokens = ..",
        kind="aux",
        versions="2026",
        gives={
            "decode_tok_per_s": "mean rate of this slot since its first token",
            "n_gen": "tokens of the request so far, in extra (n_decoded before the middle of 2026)",
        },
        traps=("printed at most every 3 s and only from 100 tokens on",),
    ),
    Reading(
        source="statistics draft-..: #calls(b,g,a) = .., #gen tokens = .., #acc tokens = ..",
        kind="aux",
        versions="2026, under speculation",
        gives={"accept_len": "mean length of what a round kept, since the start"},
        traps=("sums since the start, over all slots",),
    ),
    Reading(
        source="llama_perf_context_print, llama_print_timings, common_perf_print",
        kind="request",
        versions="all: llama-cli and the other programs, at their end",
        gives={"span_s": "time of all steps of one token", "n_steps": "those steps (the printed runs)",
               "new_tok": "tokens computed in larger batches"},
        traps=("0.00 ms / 1 runs means that nothing was decoded", "in a server's log it is the sum over all requests"),
    ),
)

_COMMAND_LINES = (
    "llama_perf_context_print:", "llama_perf_sampler_print:", "llama_print_timings:", "common_perf_print:"
)

DIALECT = Dialect(
    ENGINE,
    (SLOT, *(_command_line(literal) for literal in _COMMAND_LINES), STATISTICS, *(_piece(words) for words in _PIECES)),
    EVENTS,
    READS,
    join_blocks,
)
