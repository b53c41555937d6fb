"""The engines that are read: one dialect each. A new engine is one file with a `Dialect`, and one line here.

docs/adding-an-engine.md shows it with a complete example.
"""

from __future__ import annotations

from helpers.ingest import ktransformers, lightllm, llamacpp, lmdeploy, ollama, sglang, tgi, trtllm, vllm
from helpers.ingest.dialect import Dialect

# LMDeploy before vLLM: its line quotes the words of vLLM's speculation line.
DIALECTS: tuple[Dialect, ...] = (
    sglang.DIALECT,
    lmdeploy.DIALECT,
    vllm.DIALECT,
    tgi.DIALECT,
    ollama.DIALECT,
    ktransformers.DIALECT,
    lightllm.DIALECT,
    llamacpp.DIALECT,
    trtllm.DIALECT,
)
"""In the order in which they claim a line."""

TITLES = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "trtllm": "TensorRT-LLM",
    "llamacpp": "llama.cpp",
    "lmdeploy": "LMDeploy",
    "tgi": "TGI",
    "ollama": "Ollama",
    "ktransformers": "KTransformers",
    "lightllm": "LightLLM",
}
"""Engine as in SAMPLES -> name as its makers write it."""
