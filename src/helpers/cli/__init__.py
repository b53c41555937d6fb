"""The command line: `rooflog --help` is the manual."""

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line as `app.main` does; Ctrl-C while that is imported, for 0.3 s, ends it as later."""
    try:
        from helpers.cli import app
    except KeyboardInterrupt:
        return say_interrupted()
    return app.main(arguments)


def say_interrupted() -> int:
    """Say that nothing was kept; return the exit code."""
    print("interrupted: nothing was kept", file=sys.stderr)
    return INTERRUPTED
