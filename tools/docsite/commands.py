"""Commands of a page, executed where the data of the project lie beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BLOCK = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
"""A block that is executed; "```sh not run" is not."""

EXIT_CODE = re.compile(r"# exit code (\d+)")
MAX_SHOWN_LINES = 36
COLUMNS = 100
LIMIT_S = 300


@dataclass(frozen=True)
class Printed:
    """What a block of commands printed: text, and the exit code of its last command."""

    text: str
    exit_code: int


class CommandFailed(Exception):
    """A command of a page ended with another exit code than the page says."""


def split(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a page: text before and with a block, and its commands ("" for the last piece)."""
    end = 0
    for block in BLOCK.finditer(markdown):
        yield markdown[end:block.end()], block[1]
        end = block.end()
    yield markdown[end:], ""


class Workplace:
    """A folder with the project's data in it, in which the blocks of one page are executed in order."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="docs-")
        self.path = Path(self._folder.name)
        (self.path / "data").symlink_to(ROOT / "data")

    def __enter__(self) -> Workplace:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the folder."""
        self._folder.cleanup()

    def run(self, commands: str) -> Printed:
        """Execute a block by bash.

        Parameters
        ----------
        commands : str
            Lines of a shell. The last command has to end with 0, or with what a comment says: "# exit code 1".

        Raises
        ------
        CommandFailed
            It ended with another code.
        """
        said = EXIT_CODE.findall(commands)
        expected = int(said[-1]) if said else 0
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "ROOFLOG_NO_CACHE": "1",
                       "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        done = subprocess.run(["bash", "-eu", "-c", commands], cwd=self.path, env=environment, text=True,
                              capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode != expected:
            raise CommandFailed(f"{commands.strip()}\nexpected exit code {expected}, found {done.returncode}\n"
                                f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return Printed(self._shown(done.stdout), done.returncode)

    def _shown(self, text: str) -> str:
        """Shorten what was printed, and take this machine's folders out of it."""
        printed = text.replace(str(self.path), ".").replace(str(ROOT), ".").splitlines()
        lines = [part for line in printed for part in _folded(line)]
        left = len(lines) - MAX_SHOWN_LINES
        return "\n".join([*lines[:MAX_SHOWN_LINES], f"... ({left} more lines)"] if left > 1 else lines)


def _folded(line: str) -> list[str]:
    """Fold a long sentence; a row of a table keeps its form, and the page scrolls it."""
    if len(line) <= COLUMNS or "  " in line.strip():
        return [line]
    return textwrap.wrap(line, COLUMNS, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
