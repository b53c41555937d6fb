"""The engines that are read: one dialect each. A new engine is one file with a `Dialect`, and one line here."""

from __future__ import annotations

from helpers.ingest import sglang, vllm
from helpers.ingest.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (sglang.DIALECT, vllm.DIALECT)
