"""Fixtures for all tests, and what notebook cells need from the runner."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

# No test reads or fills the user's own cache; those of the cache itself name a folder of theirs.
os.environ["ROOFLOG_NO_CACHE"] = "1"


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """The project's data folder."""
    return ROOT / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference material beside the checkout; tests that need it are skipped, visibly, where it is not."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no reference material at ../{folder.name} beside the checkout")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """A browser's command; tests that look at a page are skipped, visibly, without one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} is here: no page is looked at")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A started browser, driven by playwright."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no page is looked at")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings are errors in the unit layer only: a kernel's libraries are not ours."""
    for item in items:
        if item.path.suffix == ".ipynb" or item.get_closest_marker("notebook"):
            item.add_marker(pytest.mark.filterwarnings("default"))
