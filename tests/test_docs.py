"""What README.md tells a reader to type exists."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from helpers.cli.app import app

COMMANDS = typer.main.get_command(app)


def typed(root) -> list[str]:
    """Return the command lines in README's code blocks, without their comments."""
    blocks = (root / "README.md").read_text(encoding="utf-8").split("```")[1::2]
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def faults(line: str, targets: set[str]) -> list[str]:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        return [f"make {word}" for word in words[1:] if word not in targets]
    command = COMMANDS.commands.get(words[1])
    if words[0] != "rooflog" or command is None:
        return [" ".join(words[:2])]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in words[2:] if re.match(r"--?[a-z]", word) and word not in known]


@pytest.fixture(scope="module")
def targets(root) -> set[str]:
    text = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, flags=re.MULTILINE))


def test_every_command_of_the_readme_exists(root, targets):
    lines = typed(root)
    assert len(lines) >= 8 and {"make demo", "make test"} <= {line.partition("  ")[0] for line in lines}
    assert {line: bad for line in lines if (bad := faults(line, targets))} == {}


@pytest.mark.parametrize(
    "line", ["make tset", "rooflog explain a.log", "rooflog run a.log --notbook 04", "roflog run a.log"]
)
def test_a_command_that_does_not_exist_is_seen(line, targets):
    assert faults(line, targets)


def test_every_file_the_readme_links_exists(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) >= 9
    assert [link for link in links if not (root / link).exists()] == []


def test_the_makefile_explains_its_targets(root, targets):
    text = (root / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[1].split())
    assert phony == targets
