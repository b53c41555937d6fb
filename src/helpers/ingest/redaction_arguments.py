"""Redacting argument dumps and exports: names and numbers stay, texts only where the engine offers the choice."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from helpers.ingest.redaction_words import PLACEHOLDER, SAFE_VALUES, STAMP

MODEL_KEYS = frozenset(
    "model model_path model_tag model_name tokenizer tokenizer_path served_model_name speculative_draft_model_path "
    "draft_model hf_config_path model_id target_model".split()
)
"""Arguments that name a model: kept as far as the name is public."""

_CHOICES = re.compile(r"(?:dtype|backend|mode|quantization|method|algorithm|policy|device|_format)$")
"""Ends of arguments whose values are choices that the engine offers."""
_CHOICE = re.compile(r"(?:torch\.)?[A-Za-z][A-Za-z0-9_+-]{0,31}")
_SECRET = re.compile(r"(?i)api_?key|secret|passw|credential|auth|cookie|(?:^|_)(?:token|key|pwd)$|ssl_key")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_]*(?:[0-9]{1,3}[A-Za-z_]*){0,3}")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?%?")
_MAX_NAME = 48
_NESTED_KEYS = frozenset(
    "method model num_spec_tokens num_speculative_tokens decode prefill backend bs mode level cudagraph_mode "
    "cudagraph_capture_sizes max_cudagraph_capture_size full_cuda_graph compile_sizes splitting_ops custom_ops "
    "draft_tensor_parallel_size rope_type rope_theta factor".split()
)

_TOKEN = re.compile(
    rf"(?P<kept>{PLACEHOLDER}|(?:\\[nr])+(?=\"))"
    r"|(?P<quote>['\"])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?:(?P=quote)|$)(?P<colon>\s*:)?"
    r"|(?P<name>[A-Za-z_][\w.-]*)(?=\s*=[^=,\s)\]}])"
    r"|(?P<call>[A-Z][A-Za-z]+)(?=\()"
    r"|<(?P<enum>[A-Z]\w{0,30}(?:\.[A-Z][A-Z0-9_]{0,30})?: (?:[0-9]+|'[a-z_]{1,20}'|\([0-9, ]+\)))>"
    r"|(?P<number>(?:(?<=[=:,(\[{])|(?<=[=:,(\[{]\s))[+-]?[0-9]{1,12}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?"
    r"(?=\s*(?:[,()\[\]{}>\"]|(?:\\[nr])+\"|$)))"
    r"|(?P<word>[^\s,()\[\]{}'\"=<>:]+(?::[^\s,()\[\]{}'\"=<>]+)*)"
    r"|(?P<bracket>[(\[{)\]}])",
    re.DOTALL,
)
_PROSE = frozenset("with config non-default args engine server_args Initializing a an V1 LLM True False None".split())


class Names(Protocol):
    """What gives replacements (`redaction.Redactor`)."""

    def replace(self, kind: str, text: str) -> str:
        """Return the placeholder of a thing."""

    def model(self, text: str) -> str:
        """Return what may stay of a model's name or path."""

    def guard(self, text: str) -> str:
        """Replace everything of a secret's shape."""

    def mask(self, text: str) -> str:
        """Replace a text by its length class."""


def redact_dump(text: str, names: Names) -> str:
    """Redact what follows the literal of an argument dump: a repr, a dict, ``name=value`` pairs, whole or cut."""
    key, depth = "", 0

    def one(match: re.Match[str]) -> str:
        nonlocal key, depth
        is_quoted = match["quote"] is not None
        if match["bracket"]:
            depth += 1 if match["bracket"] in "([{" else -1
            return match[0]
        if is_quoted and match["colon"]:
            key = match["text"]
            return f"{match['quote']}{_key(key, depth, names)}{match['quote']}{match['colon']}"
        if is_quoted:
            closing = match["quote"] if match[0].endswith(match["quote"]) and len(match[0]) > 1 else ""
            of = key if _follows_name(match) or key in MODEL_KEYS or _SECRET.search(key) else ""
            return match["quote"] + _quoted(of, match["text"], names) + closing
        if match["name"]:
            key = match["name"]
            return key if _is_name(key) and key.islower() else names.replace("name", key)
        if match["number"]:
            return names.replace("key", match[0]) if _SECRET.search(key) else match[0]
        if match["call"]:
            return match["call"] if match["call"].endswith(("Config", "Args", "Namespace", "Params")) else "Redacted"
        if match["word"] and match["word"] not in _PROSE:
            is_number = _NUMBER.fullmatch(match["word"]) is not None
            of = key if _follows_name(match) or key in MODEL_KEYS else ""
            return names.replace("name", match["word"]) if is_number else redact_value(of, match["word"], names)
        return match[0]

    return _TOKEN.sub(one, text)


def _follows_name(match: re.Match[str]) -> bool:
    """Tell whether a value stands right behind the name of an argument."""
    return match.string[max(0, match.start() - 3):match.start()].rstrip().endswith(("=", ":"))


def _is_name(text: str) -> bool:
    return len(text) <= _MAX_NAME and _IDENTIFIER.fullmatch(text) is not None


def _key(key: str, depth: int, names: Names) -> str:
    """Arguments have the engine's names; what is nested deeper may be the user's own."""
    is_own = _is_name(key) and key.islower() and (depth <= 1 or key in _NESTED_KEYS)
    return key if is_own or not key else names.replace("name", key)


def _quoted(key: str, text: str, names: Names) -> str:
    """Redact a quoted value, which may itself be a dump."""
    if text.startswith(("{", "[")) and "\\" not in text:
        return redact_dump(text, names)
    return redact_value(key, text, names)


def redact_value(key: str, text: str, names: Names) -> str:
    """Return what may stay of the value of an argument.

    Parameters
    ----------
    key : str
        Its name; empty if unknown.
    text : str
        As printed, without quotes.
    names : Names
        Gives the replacement.
    """
    if not text.strip() or re.fullmatch(PLACEHOLDER, text):
        return text
    if text in ("True", "False", "None"):
        return text
    if _SECRET.search(key):
        return names.replace("key", text)
    if key in MODEL_KEYS:
        return names.model(text)
    if text.lower() in SAFE_VALUES or _NUMBER.fullmatch(text) and len(text) <= 9:
        return text
    guarded = names.guard(text)
    if guarded != text:
        return guarded if re.fullmatch(rf"{PLACEHOLDER}|[0-9.]+", guarded) else names.replace("name", text)
    if _CHOICES.search(key) and _CHOICE.fullmatch(text) or re.fullmatch(r"torch\.[a-z]+[0-9]{0,2}\w{0,8}", text):
        return text
    if "." in text and re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", text):
        return text  # an address that the guard lets pass
    return names.replace("path" if "/" in text or "\\" in text else "name", text)


_JSON_STRING = re.compile(r'"((?:\\.|[^"\\])*)("|$)(\s*:)?')


def redact_json_line(text: str, names: Names) -> str:
    """Redact a line of JSON token by token, so that it may be cut or one of many lines of one value."""
    key = ""

    def one(match: re.Match[str]) -> str:
        nonlocal key
        content, closing, colon = match[1], match[2], match[3] or ""
        if colon:
            key = content
            return f'"{content if _is_name(content) else names.replace("name", content)}{closing}{colon}'
        return f'"{_json_text(key, content, names)}{closing}'

    if not text.lstrip().startswith(("{", "[", "}", "]", '"', "-", "t", "f", "n", *"0123456789")):
        return names.mask(text)
    return _outside_strings(_JSON_STRING.sub(one, text), names)


def _outside_strings(text: str, names: Names) -> str:
    """Mask words that stand outside of strings (the line is no JSON there)."""
    def one(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') or _is_literal(match[0]) else names.mask(match[0])

    return re.sub(r'"(?:\\.|[^"\\])*(?:"|$)|[^\s\[\]{}:,"]+', one, text)


def _is_literal(text: str) -> bool:
    return text in ("true", "false", "null", "NaN", "Infinity", "-Infinity") or _NUMBER.fullmatch(text) is not None \
        or re.fullmatch(PLACEHOLDER, text) is not None


def _json_text(key: str, content: str, names: Names) -> str:
    """Redact one JSON string; one that holds JSON itself is read."""
    if content.startswith(("{", "[")):
        inner = _nested(content)
        if inner is not None:
            plain = json.dumps(_walk("", inner, names), ensure_ascii=False)
            return json.dumps(plain, ensure_ascii=False)[1:-1]
    if re.fullmatch(STAMP, content):
        return content
    return redact_value(key, content, names)


def _nested(content: str) -> Any:
    try:
        return json.loads(json.loads(f'"{content}"'))
    except (ValueError, RecursionError):
        return None


def _walk(key: str, value: Any, names: Names) -> Any:
    """Redact the strings of a JSON value."""
    if isinstance(value, dict):
        return {name if _is_name(name) else names.replace("name", name): _walk(name, item, names)
                for name, item in value.items()}
    if isinstance(value, list):
        return [_walk(key, item, names) for item in value]
    return redact_value(key, value, names) if isinstance(value, str) else value


_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:\\.|[^"\\])*)"')
_COMMENT = re.compile(r"# (HELP|TYPE|UNIT) ([A-Za-z_:][\w:]*)(.*)", re.DOTALL)
_METRIC = re.compile(r"[A-Za-z_:][\w:]*(?=[{ ])")


def redact_scrape_line(text: str, names: Names) -> str:
    """Redact a line of a Prometheus scrape: metrics and numbers stay, labels as far as arguments would."""
    if comment := _COMMENT.fullmatch(text):
        rest = comment[3] if comment[1] == "TYPE" and comment[3].strip() in SAFE_VALUES else names.mask(comment[3])
        return f"# {comment[1]} {comment[2]}{rest}"
    if text.lstrip().startswith("#"):
        return _plain_comment(text, names)
    labelled = _LABEL.sub(lambda m: f'{m[1]}="{redact_value(m[1], m[2], names)}"', text)
    metric = _METRIC.match(labelled)
    start = metric.end() if metric else 0
    return labelled[:start] + _after_metric(labelled[start:], names)


def _after_metric(text: str, names: Names) -> str:
    """Keep labels, numbers and stamps behind a metric's name."""
    def one(match: re.Match[str]) -> str:
        is_kept = match[0].startswith("{") or match[0].lower() in SAFE_VALUES or _is_literal(match[0])
        return match[0] if is_kept or re.fullmatch(STAMP, match[0]) else names.mask(match[0])

    return re.sub(r'\{(?:[A-Za-z_]\w*="(?:\\.|[^"\\])*",?)*\}|[^\s{}]+', one, text)


_COMMENT_TOKEN = re.compile(rf"{PLACEHOLDER}|{STAMP}|[^\s#=:]+")


def _plain_comment(text: str, names: Names) -> str:
    """Keep the time of a scrape in a comment, and its marks."""
    kept = frozenset("time timestamp scrape EOF t ts t_s at unix".split())

    def one(match: re.Match[str]) -> str:
        is_kept = match[0] in kept or _is_literal(match[0]) or re.fullmatch(STAMP, match[0])
        return match[0] if is_kept else names.mask(match[0])

    return _COMMENT_TOKEN.sub(one, text)


def redact_table_line(text: str, names: Names, columns: frozenset[str]) -> str:
    """Redact a line of a hand-typed table: known columns and numbers stay."""
    if text.lstrip().startswith("#"):
        return "# " + names.mask(text.lstrip()[1:].strip())
    return ",".join(_cell(cell, names, columns) for cell in text.split(","))


def _cell(cell: str, names: Names, columns: frozenset[str]) -> str:
    plain = cell.strip().lstrip("\ufeff")
    return cell if not plain or plain in columns or _is_literal(plain) else names.replace("name", plain)
