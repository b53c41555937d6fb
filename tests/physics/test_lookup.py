"""Names as people, drivers and logs write them; a name that is not certain is an error that lists the candidates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.physics.catalogue.lookup import Match, find_name, path_tails
from helpers.schema import RooflogError

NAMES = {
    "Qwen3-1.7B": ["Qwen/Qwen3-1.7B"],
    "Qwen3-17B": [],
    "Qwen3-17B-FP8": [],
    "Llama-3.1-8B": ["meta-llama/Llama-3.1-8B-Instruct"],
    "Kimi-K2-Instruct": [],
    "Kimi-K2-Thinking": [],
}
NOISE = {"instruct", "thinking", "hf"}


def find(asked, **options):
    return find_name(asked, NAMES, what="model", where="the list", **{"noise": NOISE, **options})


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("Qwen3-17B", "Qwen3-17B"),
        ("qwen3_17b", "Qwen3-17B"),
        ("QWEN3 17B", "Qwen3-17B"),
        ("Qwen3-1.7B", "Qwen3-1.7B"),  # the point of a number is part of it: 1.7B is not 17B
        ("qwen3 1.7b", "Qwen3-1.7B"),
        ("/data/models/qwen3-17b-fp8", "Qwen3-17B-FP8"),
        ("/data/models/Qwen3-17B/", "Qwen3-17B"),
        ("D:\\models\\Qwen3-17B", "Qwen3-17B"),
        ("/root/.cache/hub/models--Qwen--Qwen3-1.7B/snapshots/0123abcd", "Qwen3-1.7B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("somewhere/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("kimi-k2-thinking", "Kimi-K2-Thinking"),
    ],
)
def test_a_name_in_another_spelling(asked, name):
    match = find(asked)
    assert (match.name, match.ignored) == (name, ())


def test_the_alias_that_fits_is_told():
    assert find("x/Llama-3.1-8B-Instruct") == Match("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct")


def test_noise_is_left_out_and_said():
    assert find("Llama-3.1-8B-hf").ignored == ("hf",)
    assert find("Qwen/Qwen3-17B-Instruct").ignored == ("instruct",)
    with pytest.raises(RooflogError, match="no such model"):
        find("Llama-3.1-8B-hf", noise=())


@pytest.mark.parametrize(
    "asked", ["Qwen3-17B-AWQ", "Qwen3-7B", "Llama-3-8B", "Llama-3.1-8B/talker", "Qwen3", "", "/", "hf"]
)
def test_another_size_generation_or_format_never_fits(asked):
    with pytest.raises(RooflogError, match="no such model"):
        find(asked)


def test_several_are_listed_in_the_order_of_the_catalogue():
    with pytest.raises(RooflogError, match="expected one model, found 2: Kimi-K2-Instruct; Kimi-K2-Thinking$"):
        find("kimi-k2")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("Qwen3-17C", "did you mean Qwen3-17B"),
        ("17b", "did you mean Qwen3-17B or Qwen3-17B-FP8?"),  # all its words, in these only
        ("zzzz", "it is not in the catalogue"),
    ],
)
def test_a_miss_suggests(asked, hint):
    with pytest.raises(RooflogError) as error:
        find(asked)
    assert hint in str(error.value) and "(names: the list)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_long_list_of_suggestions_is_cut():
    many = {f"m-{i}": () for i in range(20)}
    with pytest.raises(RooflogError, match="m-5 or 14 more"):
        find_name("m", many, what="model", where="the list")


def test_a_part_of_a_name_is_enough_only_where_descriptions_are_given():
    described = {"Board 80GB SXM": "Board 80GB SXM HBM3", "Board 80GB PCIe": "Board 80GB PCIe HBM2e"}
    names = dict.fromkeys(described, ())
    assert find_name("board hbm3", names, what="hardware", where="x", described=described).name == "Board 80GB SXM"
    assert find_name("80gbpcie", names, what="hardware", where="x", described=described).name == "Board 80GB PCIe"
    with pytest.raises(RooflogError, match="expected one accelerator, found 2: Board 80GB SXM; Board 80GB PCIe"):
        find_name("board", names, what="hardware", where="x", described=described)
    with pytest.raises(RooflogError, match="no such accelerator"):
        find_name("board hbm3", names, what="hardware", where="x")


def test_tails_of_a_path():
    assert path_tails("Qwen3-8B") == ("Qwen3-8B",)
    assert path_tails("a/b/c") == ("a/b/c", "c")
    assert path_tails("/m/models--org--a--b/snapshots/main") == (
        "/m/models--org--a--b/snapshots/main", "org/a--b", "a--b", "main",
    )


@given(
    st.sampled_from(sorted(NAMES)),
    st.sampled_from([str.lower, str.upper, lambda name: name.replace("-", "_"), lambda name: name.replace("-", " ")]),
    st.sampled_from(["{}", "/a/b/{}", "org/{}", "/c/models--org--{}/snapshots/1f", "./{}/"]),
)
def test_every_name_finds_itself_in_any_spelling_and_place(name, change, place):
    assert find(place.format(change(name))).name == name
