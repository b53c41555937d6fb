"""The command that repeats what a panel shows, without a notebook server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.levels import LevelRule
from helpers.parameters import absolute
from helpers.segment import CleanRule

DEFAULTS: dict[str, float] = {
    "stall_factor": CleanRule().stall_factor, "prefill_slack_s": CleanRule().prefill_slack_s,
    "min_clean": LevelRule().min_clean, "min_steps": LevelRule().min_steps, "confidence": 0.95,
}
"""Parameters that a command need not name: notebook 09 has them so, and where others have one, it is the same."""


@dataclass(frozen=True)
class Command:
    """What every line of one notebook begins with.

    Attributes
    ----------
    logs : tuple of str
        Files, folders or globs, relative to the notebook.
    context : str
        Facts as JSON text, or a file.
    given : mapping
        Further parameters of the notebook that stay as they are; empty ones are not written.
    """

    logs: tuple[str, ...]
    context: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)

    def line(self, notebook: str, **parameters: Any) -> str:
        """Write the line for a shell.

        Parameters
        ----------
        notebook : str
            Its number.
        **parameters
            As the notebook declares them; what is empty, or as notebook 09 has it by default, is not written.

        Returns
        -------
        str
            ``rooflog run LOG .. --notebook NN -p NAME VALUE ..``: numbers with all their digits, paths absolute.
        """
        words = ["rooflog", "run", *(absolute(log) for log in self.logs), "--notebook", notebook]
        for name, value in {**self.given, **parameters}.items():
            is_default = value == DEFAULTS[name] if name in DEFAULTS else value in ("", 0, [], (), None)
            if not is_default:  # a threshold of zero is a choice
                words += ["-p", name, _text(value)]
        if self.context:
            words += ["--context", self.context]
        return shlex.join(words)


def command(logs: Sequence[str], *, context: Mapping[str, Any] | None = None, **given: Any) -> Command:
    """Return the command of a notebook.

    Parameters
    ----------
    logs : sequence of str
        As in `Command`.
    context : mapping, optional
        Facts as the notebook passed them on; a model's configuration among them as an absolute path.
    **given
        As in `Command`.
    """
    facts = {name: absolute(value) if name == "model_config" and _is_file(value) else value
             for name, value in (context or {}).items()}
    return Command(tuple(logs), json.dumps(facts, default=str) if facts else "", given)


def _is_file(text: Any) -> bool:
    try:
        return isinstance(text, str) and bool(text) and Path(text).expanduser().exists()
    except (OSError, ValueError):  # no path: too long, or with characters that none can have
        return False


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(list(value)) if isinstance(value, list | tuple) else repr(value)
