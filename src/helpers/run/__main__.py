"""``python -m helpers.run normalise [NOTEBOOK...]``: re-execute notebooks, write their normal form."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers import paths
from helpers.progress import Progress
from helpers.run.normal import normalise
from helpers.schema import RooflogError


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 done, 3 could not run."""
    if arguments[:1] != ["normalise"]:
        print("usage: python -m helpers.run normalise [NOTEBOOK...]", file=sys.stderr)
        return 3
    notebooks = [Path(name) for name in arguments[1:]] or sorted(paths.notebooks_dir().glob("*.ipynb"))
    try:
        with Progress("normalising") as say:
            changed = normalise([path.absolute() for path in notebooks], say)
    except RooflogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(f"{len(notebooks)} notebooks executed, {len(changed)} changed" + "".join(f"\n  {p.name}" for p in changed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
