"""Where notebooks/ and data/ are: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from helpers.schema import RooflogError

PACKAGE = Path(__file__).resolve().parent


def notebooks_dir() -> Path:
    """Return the folder that holds the notebooks."""
    return _find("notebooks")


def data_dir() -> Path:
    """Return the folder that holds catalog/, field/ and samples/."""
    return _find("data")


def is_checkout() -> bool:
    """Tell whether the package runs from its source tree (src/helpers beside pyproject.toml)."""
    return PACKAGE.parent.name == "src" and (PACKAGE.parent.parent / "pyproject.toml").is_file()


def _find(name: str) -> Path:
    folder = PACKAGE.parent.parent / name if is_checkout() else PACKAGE / "bundled" / name
    if not folder.is_dir():
        raise RooflogError(
            f"{name}/: expected the folder {folder}, found none; install rooflog again "
            "(pip install . in a checkout), the files are part of it"
        )
    return folder
