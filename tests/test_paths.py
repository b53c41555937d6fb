"""Where notebooks and data are found."""

from __future__ import annotations

import tomllib

import pytest

from helpers import paths
from helpers.schema import RooflogError


def test_a_checkout_uses_its_own_folders(root):
    assert paths.is_checkout()
    assert paths.data_dir() == root / "data"
    assert paths.notebooks_dir() == root / "notebooks"


def test_a_wheel_uses_the_bundled_folders(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "helpers"
    (package / "bundled" / "data").mkdir(parents=True)
    monkeypatch.setattr(paths, "PACKAGE", package)
    assert not paths.is_checkout()
    assert paths.data_dir() == package / "bundled" / "data"
    with pytest.raises(RooflogError, match=r"notebooks/: expected the folder .*bundled.notebooks, found none"):
        paths.notebooks_dir()


def test_a_source_folder_of_another_project_is_no_checkout(tmp_path, monkeypatch):
    package = tmp_path / "src" / "helpers"
    package.mkdir(parents=True)
    monkeypatch.setattr(paths, "PACKAGE", package)
    assert not paths.is_checkout()


def test_the_wheel_carries_both_folders(root):
    build = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    bundled = build["targets"]["wheel"]["force-include"]
    assert bundled == {"notebooks": "helpers/bundled/notebooks", "data": "helpers/bundled/data"}
