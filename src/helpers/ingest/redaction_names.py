"""File names that are safe to share: what tells kind, rank and part of a log stays."""

from __future__ import annotations

import re

from helpers.ingest.redaction_arguments import Names

_WORDS = frozenset(
    "server log logs txt out err stdout stderr gz zst zstd csv tsv json jsonl prom metrics node rank worker prefill "
    "decode router engine vllm sglang trtllm llamacpp ollama tgi lmdeploy run replica dp tp pp ep part loads head tail "
    "redacted text path name host ip id key mail url model".split()
)
_PART = re.compile(r"redacted_[a-z]+_[0-9]+|[^\W\d_]+[0-9]{0,4}(?![^\W_])|[0-9]{1,4}(?![^\W_])|[^\W_]+")


def redacted_name(name: str, names: Names) -> str:
    """Return a file name with every word replaced that could tell whose it is.

    Parameters
    ----------
    name : str
        One part of a path.
    names : Names
        Gives the replacements.

    Examples
    --------
    >>> from helpers.ingest.redaction import Redactor
    >>> redacted_name("alice-node3.log.2.gz", Redactor())
    'redacted_name_1-node3.log.2.gz'
    """
    return _PART.sub(lambda match: _part(match[0], names), name)


def _part(text: str, names: Names) -> str:
    is_kept = text.rstrip("0123456789").lower() in _WORDS or text.isdigit() and len(text) <= 4
    return text if is_kept or text.startswith("redacted_") else names.replace("name", text)
