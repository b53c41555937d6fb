"""docs/ci.md: its YAML parses, and every rooflog command in it exists with the options it is given.

Would catch: an option that was renamed, a step without a command, a secret or an untrusted text put into a shell.
"""

import re
import shlex

import pytest
import typer
import yaml

from helpers.cli.app import app
from helpers.compare.overall import CANNOT_TELL, PASS, REGRESSED
from helpers.regression.gate import GATE_WORDS

COMMANDS = typer.main.get_command(app)


@pytest.fixture(scope="module")
def blocks(root):
    """The code blocks of the document: language, text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (root / "docs" / "ci.md").read_text(encoding="utf-8"), re.M | re.S)


def scripts(value):
    """Yield every script of a pipeline: what stands under run or script."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("run", "script"):
                yield from [inner] if isinstance(inner, str) else inner
            else:
                yield from scripts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scripts(inner)


def commands(script):
    """Return the rooflog commands of a shell script as words, up to the next operator."""
    found = []
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
        while "rooflog" in words:
            words = words[words.index("rooflog"):]
            end = next((i for i, word in enumerate(words) if set(word) <= set("|&;<>")), len(words))
            found.append(words[:end])
            words = words[end:]
    return found


def faults(words):
    """Say what of a command does not exist."""
    command = COMMANDS.commands.get(words[1])
    if command is None:
        return [words[1]]
    try:
        command.make_context(words[1], words[2:], resilient_parsing=False)
    except Exception as error:  # a usage error, of whichever parser typer brings
        return [str(error) or type(error).__name__]
    return []


def test_the_yaml_parses_and_its_commands_exist(blocks):
    pipelines = [yaml.safe_load(text) for language, text in blocks if language == "yaml"]
    assert len(pipelines) == 3
    threshold = pipelines[0]["jobs"]["compare"]["env"]["THRESHOLD"]
    found = [words for pipeline in pipelines for script in scripts(pipeline)
             for words in commands(script.replace("$THRESHOLD", threshold))]
    found += [words for language, text in blocks if not language for words in commands(text)]
    assert {words[1] for words in found} == {"run", "compare", "history"} and len(found) == 5
    assert {" ".join(words): bad for words in found if (bad := faults(words))} == {}


@pytest.mark.parametrize("line", ["rooflog compare a b --sumary x", "rooflog compare a", "rooflog hisotry runs",
                                  "rooflog history runs --threshold high"])
def test_a_command_that_does_not_exist_is_seen(line):
    assert faults(commands(line)[0])


def test_the_workflow_has_what_github_asks_for(blocks):
    workflow = yaml.safe_load(next(text for _, text in blocks if text.startswith("name:")))
    assert set(workflow) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads the key on as true
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] and all(("uses" in step) != ("run" in step) for step in job["steps"])
    ids = [step["id"] for step in job["steps"] if "id" in step]
    assert len(ids) == len(set(ids))
    upload = next(step for step in job["steps"] if "upload-artifact" in step.get("uses", ""))
    assert upload["if"] == "always()" and {"logs", "rooflog.xml"} <= set(upload["with"]["path"].split())


def test_nothing_that_anyone_can_choose_is_put_into_a_shell(blocks):
    """Only commit hashes: titles, branch names and comments would be run."""
    used = {name for _, text in blocks for script in (scripts(yaml.safe_load(text)) if "run:" in text else [])
            for name in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", script)}
    assert used == {"github.event.pull_request.base.sha", "github.event.pull_request.head.sha"}


def test_the_table_of_exit_codes_is_that_of_the_gate(root):
    text = (root / "docs" / "ci.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (\w+) \|", text, re.M)[:4]
    assert {int(code): word for code, word in rows} == {**GATE_WORDS, 3: "none"}
    assert (PASS, REGRESSED, CANNOT_TELL) == (0, 1, 2)
