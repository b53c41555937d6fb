"""The model catalogue: against the published configurations, published sizes, what servers allocated, and by name."""

from __future__ import annotations

import json

import pytest

from helpers import paths
from helpers.physics.catalogue import models
from helpers.physics.model.spec import ModelSpec
from helpers.physics.reading.config import read_config
from helpers.schema import LogFormatError, RooflogError

TABLE = models.catalogue().set_index("name")

# Exact counts of the published checkpoints (embedding included, vision and draft layers left out).
PUBLISHED = {
    "Meta-Llama-3.1-8B": 8_030_261_248, "Meta-Llama-3.1-70B": 70_553_706_496, "Meta-Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400, "Llama-3.2-3B": 3_212_749_824, "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen2.5-0.5B": 494_032_768, "Qwen2.5-1.5B": 1_543_714_304, "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512, "Qwen2.5-14B": 14_770_033_664, "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648, "Qwen3-0.6B": 596_049_920, "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096, "Qwen3-8B": 8_190_735_360, "Qwen3-14B": 14_768_307_200,
    "Qwen3-30B-A3B": 30_532_122_624, "Qwen3-235B-A22B": 235_093_634_560, "Mixtral-8x7B-v0.1": 46_702_792_704,
    "gpt-oss-120b": 116_829_156_672, "gpt-oss-20b": 20_914_757_184,
}
# In billions, from model cards: all parameters, one token's where a card says it.
ROUNDED = {
    "DeepSeek-V3": (671, 37), "DeepSeek-V4-Flash": (284, 13), "GLM-5": (744, 40), "Kimi-K2-Instruct": (1026, 32),
    "MiniMax-M2.5": (229, 10), "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31.6, 3.2),
    "NVIDIA-Nemotron-3-Nano-4B-BF16": (3.97, None), "gemma-2-27b": (27.2, None), "tiny-llama-512x8": (0.0579, None),
}


def test_catalogue_is_large_and_says_where_it_comes_from():
    assert len(TABLE) >= 36
    assert (TABLE["source"].str.len() > 10).all()
    assert set(TABLE["confidence"]) == {"high", "medium", "low"}
    low = TABLE.index[TABLE["confidence"] == "low"]
    assert all(models.find(name).assumptions for name in low), "a low confidence says what is doubtful"


@pytest.mark.parametrize("name", models.names())
def test_every_key_of_a_file_is_understood(name):
    spec = models.find(name)
    assert not [text for text in spec.assumptions if "not understood" in text or "not known" in text]
    assert set(models.weight_bytes(spec)) <= set(spec.formats)
    assert spec.context_length_max


@pytest.mark.parametrize(("name", "n_params"), PUBLISHED.items())
def test_parameters_equal_the_published_checkpoint(name, n_params):
    assert models.find(name).n_params == n_params


@pytest.mark.parametrize(("name", "published"), ROUNDED.items())
def test_parameters_agree_with_the_model_card(name, published):
    spec, (total, active) = models.find(name), published
    assert spec.n_params / 1e9 == pytest.approx(total, rel=0.01)
    if active is not None:  # cards differ in what they count as active
        with_embedding = spec.n_active_params + spec.hidden * spec.vocab * (not spec.is_tied)
        last_digit = 1.0 if isinstance(active, int) else 0.1  # and some round down
        assert spec.n_active_params / 1e9 - last_digit < active < with_embedding / 1e9 + last_digit


def shared_configs(shared):
    return sorted((shared / "reference" / "configs").glob("*.json"))


def test_every_published_configuration_is_the_same_model_here(shared):
    files = shared_configs(shared)
    assert len(files) == 38
    for file in files:
        ours, theirs = models.find(file.stem), read_config(file, name=file.stem)
        for field in ("hidden", "vocab", "layers", "final", "draft", "draft_extra", "is_tied", "kv"):
            assert getattr(ours, field) == getattr(theirs, field), (file.stem, field)
        assert (ours.n_params, ours.n_active_params) == (theirs.n_params, theirs.n_active_params)
        present = {*models.weight_bytes(ours), *(["draft"] if ours.draft else [])}
        assert {role: ours.formats[role] for role in present} == {role: theirs.formats[role] for role in present}, file
        assert theirs.context_length_max in (None, ours.context_length_max)


def test_counts_equal_the_parameter_check(shared):
    rows = json.loads((shared / "reference" / "param_check.json").read_text())
    assert len(rows) >= 37
    for row in rows:
        spec = models.find(row["model"])
        assert spec.n_params == row["formula"], row["model"]
        assert spec.n_active_params == row["active_no_embed"], row["model"]


def test_bytes_by_hand():
    # Llama-3.1-8B: BF16; 32 layers x 2 x 8 heads x 128 x 2 bytes of cache per token.
    llama = TABLE.loc["Meta-Llama-3.1-8B"]
    assert llama["weight_bytes"] == 2 * 8_030_261_248
    assert llama["kv_bytes_per_tok"] == 32 * 2 * 8 * 128 * 2
    assert llama["state_bytes_per_req"] == 0
    # Qwen3.6-27B: 48 layers; state 48 heads x 128 x 128 FP32; convolution of 10240 channels, 3 tokens, BF16.
    assert TABLE.loc["Qwen3.6-27B", "state_bytes_per_req"] == 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2)
    # Qwen3-8B-AWQ: 36 layers of attention (2 x 4096 x 4096 + 2 x 4096 x 1024) and MLP (3 x 4096 x 12288) at 4 bits
    # with a 16-bit scale and a 4-bit zero per 128; head, embedding and norms in BF16.
    quantised = 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)
    rest = models.find("Qwen3-8B-AWQ").n_params - quantised
    by_hand = quantised * (0.5 + 2.5 / 128) + 2 * rest
    assert TABLE.loc["Qwen3-8B-AWQ", "weight_bytes"] == pytest.approx(by_hand, rel=1e-3)


def test_roles_add_up():
    for name in models.names():
        spec = models.find(name)
        assert sum(models.n_params_by_role(spec).values()) == pytest.approx(spec.n_params, rel=1e-12), name
        assert sum(models.weight_bytes(spec).values()) == pytest.approx(TABLE.loc[name, "weight_bytes"], rel=1e-12)
        assert list(models.weight_bytes(spec).values()) == sorted(models.weight_bytes(spec).values(), reverse=True)
    assert models.draft_params(models.find("Qwen3.6-27B")) == 424_699_392
    assert models.draft_params(models.find("Qwen3-8B")) == 0


@pytest.mark.parametrize(
    ("name", "kv_bytes_per_tok"),
    [
        # What SGLang allocated, over its tokens, all ranks: two matrices of 18.96 GiB at TP 8; 5.90 GiB on every rank.
        ("zai-org/GLM-4.7-FP8", 2 * 8 * 18.96 * 2**30 / 864247),
        ("nvidia/Kimi-K2-Thinking-NVFP4", 5.90 * 2**30 / 180191),
        ("tiny-llama-512x8", 2 * 0.50 * 2**30 / 65536),
    ],
)
def test_cache_per_token_is_what_servers_allocated(name, kv_bytes_per_tok):
    assert models.kv_bytes_per_tok(models.find(name)) == pytest.approx(kv_bytes_per_tok, rel=2e-3)


def test_weights_are_what_servers_loaded():
    # 41.90 GiB on each of 8 ranks; routers and norms are on all of them.
    spec = models.find("zai-org/GLM-4.7-FP8")
    per_rank = sum(w.per_rank(8) * count * spec.formats[w.role].bytes_per_param for w, count in spec.stack())
    ends = 2 * spec.head.per_rank(8) * spec.formats["head"].bytes_per_param
    assert (per_rank + ends) / 2**30 == pytest.approx(41.90, rel=0.02)


@pytest.mark.parametrize("name", models.names())
def test_a_name_and_its_aliases_find_this_entry_only(name):
    aliases = [alias for alias in TABLE.loc[name, "aliases"].split(", ") if alias]
    for asked in (name, *aliases):
        tail = asked.split("/")[-1]
        for form in (asked, asked.lower(), tail, f"/data/models/{tail.upper()}/",
                     f"/cache/models--{asked.replace('/', '--')}/snapshots/7b3b5f81"):
            spec = models.find(form)
            assert spec.notes["catalogue"] == spec.name == name, form
        assert not [text for text in models.find(asked).assumptions if "is read as" in text], asked


def test_no_name_is_shared_by_two_entries():
    keys = {}
    for name in models.names():
        for other in (name, *TABLE.loc[name, "aliases"].split(", ")):
            key = "".join(c for c in other.split("/")[-1].lower() if c.isalnum() or c == ".")
            assert keys.setdefault(key, name) == name, key


@pytest.mark.parametrize(
    "asked",
    [
        "unsloth/Qwen3.8-27B-NVFP4", "DeepSeek-V4.1-Flash", "Qwen3-Omni-30B-A3B-Instruct/talker", "GLM-5.2-NVFP4",
        "Qwen3-8B-GPTQ-Int4", "Llama-3.1-8B-Instruct-AWQ", "Qwen3-80B", "Qwen2-7B", "models/nvfp4", "chat-model",
        "poolside/Laguna-S-2.1-INT4", "DeepSeek-R1-Distill-Llama-8B", "Qwen3-30B", "Llama-3.1",
    ],
)  # fmt: skip
def test_another_model_is_not_taken_for_it(asked):
    with pytest.raises(RooflogError, match="no such model; .*config.json, or weight_bytes_per_step") as error:
        models.find(asked)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("asked", "formats"),
    [
        ("meta-llama/Llama-3.1-70B", {"bf16"}),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", {"fp8", "bf16"}),
        ("Qwen3-8B", {"bf16"}),
        ("Qwen3-8B-FP8", {"fp8_block128", "bf16"}),
        ("deepseek-ai/DeepSeek-R1", {"fp8_block128", "bf16"}),
        ("nvidia/DeepSeek-R1-NVFP4", {"nvfp4", "bf16"}),
    ],
)
def test_a_format_in_the_name_is_a_format_of_the_weights(asked, formats):
    spec = models.find(asked)
    assert {spec.formats[role].name for role in models.weight_bytes(spec)} == formats


WORDS = {"FP8": "fp8", "NVFP4": "nvfp4", "AWQ": "int4_g128_zeros", "BF16": "bf16"}


@pytest.mark.parametrize("name", [name for name in models.names() if name.split("-")[-1] in WORDS])
def test_most_bytes_are_in_the_format_of_the_name(name):
    most = models.formats_in_short(models.find(name)).split(" + ")[0]
    assert most.startswith(WORDS[name.split("-")[-1]])


def test_an_ambiguous_name_lists_the_entries():
    with pytest.raises(RooflogError, match="found 2: Kimi-K2-Instruct; Kimi-K2-Thinking"):
        models.find("Kimi-K2")


def test_what_a_name_leaves_open_is_said():
    spec = models.find("Qwen/Qwen3-30B-A3B-Instruct")
    assert spec.name == "Qwen3-30B-A3B"
    assert "words that only one has: instruct" in spec.assumptions[0]
    other = models.find("RedHatAI/Qwen3.6-35B-A3B-NVFP4")
    assert other.name == "Qwen3.6-35B-A3B-NVFP4"
    assert "another publisher's number formats may differ" in other.assumptions[0]
    assert not models.find("/srv/deep/models/Qwen3-30B-A3B").assumptions, "a folder is no publisher"


def test_a_configuration_on_disk_wins(tmp_path):
    file = json.loads((paths.data_dir() / "catalog" / "models" / "Qwen3-8B.json").read_text())
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(file | {"num_hidden_layers": 3}))
    for asked in (folder, folder / "config.json"):
        assert models.find(str(asked)).n_layers == 3
    with pytest.raises(RooflogError, match="No such file"):
        models.find(str(tmp_path / "none.json"))
    with pytest.raises(RooflogError, match="no such model"):
        models.find("x" * 5000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a model as JSON"),
        ('{"_confidence": "high"}', "expected _source and _confidence"),
        ('{"_source": "a card", "_confidence": "sure"}', "expected _source and _confidence .*'sure'"),
    ],
)
def test_a_file_without_origin_is_refused(tmp_path, monkeypatch, content, message):
    folder = tmp_path / "catalog" / "models"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text(content)
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path)
    models._files.cache_clear()
    try:
        with pytest.raises(LogFormatError, match=f"broken.json: {message}"):
            models.find("broken")
    finally:
        models._files.cache_clear()


def test_find_returns_a_spec_with_its_origin():
    spec = models.find("gpt-oss-120b")
    assert isinstance(spec, ModelSpec)
    assert "openai/gpt-oss-120b" in spec.source and spec.confidence == "high"
    assert spec.notes["asked"] == "gpt-oss-120b"
