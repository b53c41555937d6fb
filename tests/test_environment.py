"""The three lists of dependencies agree, and no tracked file names a machine or a registry."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def test_environment_yml_is_in_step_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge"]
    plain = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    found = {canonicalize_name(r.name): r.specifier for r in map(Requirement, plain)}
    assert str(found.pop("python")) == PROJECT["requires-python"]
    del found["pip"], found["c-compiler"]  # of conda only: with pip, the system has a compiler or not
    # What conda-forge does not have comes from PyPI.
    (by_pip,) = (entry["pip"] for entry in environment["dependencies"] if not isinstance(entry, str))
    assert by_pip[0] == "-e ."
    found |= {canonicalize_name(r.name): r.specifier for r in map(Requirement, by_pip[1:])}
    assert found == {canonicalize_name(r.name): r.specifier for r in DIRECT}


def test_constraints_are_names_and_versions_only():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)] == []
    assert "rooflog" not in constraints()


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda r: r.name)
def test_constraints_pin_every_direct_dependency_within_its_bounds(requirement):
    assert requirement.specifier.contains(constraints()[canonicalize_name(requirement.name)])


def test_constraints_pin_what_the_dependencies_need():
    """Everything that an installed direct dependency needs, all the way down, has a pin."""
    pins, seen, todo = constraints(), set(), [canonicalize_name(r.name) for r in DIRECT]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(needed.name))
    assert len(seen) > len(DIRECT)
    assert sorted(seen - set(pins) - {"pip", "setuptools"}) == []


def test_pins_install_on_the_first_python_3_11():
    """Debian 12 has 3.11.2: a pin that wants a later patch release would break `make` there."""
    strict = {}
    for distribution in metadata.distributions():
        needs = distribution.metadata.get("Requires-Python")
        is_pinned = constraints().get(canonicalize_name(distribution.name)) == distribution.version
        if is_pinned and needs and not SpecifierSet(needs).contains("3.11.0"):
            strict[distribution.name] = needs
    assert strict == {}


def project_files() -> list[Path]:
    """Return every file that is or would be tracked."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files are tracked is not known")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# Spelt in pieces, so that this file does not name them.
REGISTRY = re.compile("|".join([
    "index" + "-url", "find-" + "links", r"https?://[^ ]*/sim" + "ple/", r"https?://reg" + r"istry\.",
    r"pypi\.o" + "rg", "python" + r"hosted\.org", r"anaconda\.o" + "rg",
]))  # fmt: skip
HOME = re.compile(r"""(?:^|[\s"'(=:])(/(?:home|root|work|Users)/[a-z]+)""", re.MULTILINE)
# Logs of real servers print such paths; they were neutralised and are evidence, not settings.
EVIDENCE = ("data/samples/", "tests/data/", "tests/test_redact.py")  # planted secrets, too
BINARY = {".png", ".gz", ".zst", ".parquet"}


def faults(text: str, name: str, checkout_parent: str) -> list[str]:
    found = [match[0] for match in REGISTRY.finditer(text)]
    if not name.startswith(EVIDENCE):
        found += [match[1] for match in HOME.finditer(text)]
    if len(checkout_parent) > 1:
        found += [checkout_parent] * text.count(checkout_parent + "/")
    return found


def test_no_tracked_file_names_a_machine_or_a_registry():
    found = {}
    for path in project_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix not in BINARY and name != Path(__file__).relative_to(ROOT).as_posix():
            text = path.read_text(encoding="utf-8", errors="replace")
            if bad := faults(text, name, str(ROOT.parent)):
                found[name] = bad
    assert found == {}


def test_settings_hold_no_address():
    for name in ("pyproject.toml", "environment.yml", "constraints.txt", "Makefile", ".ci/run", "README.md"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8"), name


@pytest.mark.parametrize(
    "text",
    ["pip --index" + "-url x", "https://host/sim" + "ple/", "see /home/someone/x", "at /root/x", "x = '/build/y'"],
)
def test_the_rule_sees_a_machine_or_a_registry(text):
    assert faults(text, "src/a.py", "/build")


def test_evidence_may_hold_the_paths_of_its_server():
    assert faults("/home/user/.cache/x", "data/samples/a/server.log", "/build") == []


def test_ci_fails_when_a_step_fails():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in text and "make test" in text
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
