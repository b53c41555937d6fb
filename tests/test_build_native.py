"""The C file is compiled by the installation; without a compiler, or with a stale library, everything still works."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

hatchling_wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
from hatchling.builders.sdist import SdistBuilder  # noqa: E402

import build_native  # noqa: E402
from build_native import LIBRARY, NotBuilt, compile_library, hash_of  # noqa: E402
from helpers.ingest import native  # noqa: E402

STUB = "const char *source_hash(void) { return SOURCE_HASH; }\n"
STUB_HASH = "38c6c11da332288d"  # printf of the line above | sha256sum

needs_compiler = pytest.mark.skipif(
    sys.platform == "win32" or not (os.environ.get("CC") or any(map(shutil.which, build_native.COMPILERS))),
    reason="no C compiler is here: nothing is compiled")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is compiled on Windows")


def said_hash(library: Path) -> bytes:
    source_hash = ctypes.CDLL(str(library)).source_hash
    source_hash.restype = ctypes.c_char_p
    return source_hash()


def sources(folder: Path, text: str = STUB) -> tuple[Path, Path]:
    """Write a C file; return it and the library it is to become."""
    source = folder / "lines.c"
    source.write_text(text, encoding="utf-8")
    return source, folder / LIBRARY


@needs_compiler
def test_a_library_is_made_that_tells_the_hash_of_its_source(tmp_path):
    source, library = sources(tmp_path)
    compile_library(source, library)
    assert said_hash(library) == STUB_HASH.encode() == hash_of(source).encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == [LIBRARY, "lines.c"]  # no temporary file stays
    assert os.access(library, os.R_OK | os.X_OK)


@needs_compiler
def test_the_real_source_compiles_and_is_the_one_that_runs(tmp_path, monkeypatch):
    folder = Path(native.__file__).parent
    source, library = sources(tmp_path, (folder / "lines.c").read_text(encoding="utf-8"))
    compile_library(source, library)
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    load = native.load.__wrapped__  # past the memory of the first call
    assert load()._name == str(library)
    source.write_text(source.read_text(encoding="utf-8") + "/* newer */\n", encoding="utf-8")
    assert load() is None, "a library of an older source was used"
    source.unlink()  # a package without sources: nothing to compare with
    assert load()._name == str(library)
    other = tmp_path / "other"  # the name above stays loaded in this process
    other.mkdir()
    monkeypatch.setattr(native, "_FOLDER", other)
    assert load() is None
    (other / LIBRARY).write_bytes(b"of another machine")
    assert load() is None


@needs_compiler
def test_a_library_that_was_cut_is_not_loaded(tmp_path):
    """In processes of their own: where it is loaded, the system kills them (SIGBUS)."""
    source, library = sources(tmp_path, (Path(native.__file__).parent / "lines.c").read_text(encoding="utf-8"))
    compile_library(source, library)
    whole = library.read_bytes()
    script = ("import sys, pathlib; from helpers.ingest import native; native._FOLDER = pathlib.Path(sys.argv[1]); "
              "print(native.load() is None)")
    for n_bytes in (len(whole), len(whole) - 1, 12_000, 1000, 61, 0):
        library.unlink()
        library.write_bytes(whole[:n_bytes])
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, str(n_bytes < len(whole))), (n_bytes, done.stderr)


@needs_compiler
def test_another_library_under_the_name_is_not_used(tmp_path, monkeypatch):
    source, library = sources(tmp_path, "int another(void) { return 1; }\n")
    command = [*build_native.compiler(os.environ), "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    assert native.load.__wrapped__() is None


@needs_compiler
def test_the_users_flags_are_used_and_cannot_change_how_numbers_are_read(tmp_path):
    source, library = sources(tmp_path, STUB + "int given = GIVEN;\ndouble fused(double a, double b, double c) "
                                               "{ return a * b + c; }\n")
    compile_library(source, library, dict(os.environ) | {"CFLAGS": "-DGIVEN=42 -ffp-contract=fast -march=native"})
    loaded = ctypes.CDLL(str(library))
    assert ctypes.c_int.in_dll(loaded, "given").value == 42
    loaded.fused.restype, loaded.fused.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    # (1 + 2^-30) (1 - 2^-30) = 1 - 2^-60, which rounds to 1: rounded twice the sum is 0, fused it is -2^-60.
    assert loaded.fused(1 + 2**-30, 1 - 2**-30, -1.0) == 0.0


@pytest.mark.parametrize(("environ", "text", "word"), [
    ({"CC": "/bin/false"}, STUB, "/bin/false failed with exit code 1"),
    ({"CC": "no-such-compiler -m64"}, STUB, "No such file or directory: 'no-such-compiler'"),
    ({"CC": "'unclosed"}, STUB, "No closing quotation"),
    ({"CC": "/bin/true"}, STUB, "does not work on this machine"),  # says that it did, and made nothing
    ({"CC": "", "PATH": "/nowhere"}, STUB, "none of cc, gcc, clang is on the path"),
    pytest.param({}, "int broken(\n", "error:", marks=needs_compiler),
    pytest.param({}, "#include <no_such_header.h>\n", "no_such_header.h", marks=needs_compiler),
    pytest.param({}, "int another(void) { return 1; }\n", "does not work on this machine", marks=needs_compiler),
])
def test_what_cannot_be_compiled_leaves_no_library_not_even_the_old_one(tmp_path, environ, text, word):
    source, library = sources(tmp_path, text)
    library.write_bytes(b"of an older source")
    with pytest.raises(NotBuilt) as raised:
        compile_library(source, library, dict(os.environ) | environ)
    assert word in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["lines.c"]


@pytest.fixture
def checkout(tmp_path: Path, root: Path) -> Path:
    """A copy of what a package is built from, without its large folders."""
    copy = tmp_path / "checkout"
    (copy / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "tools/build_native.py"):
        shutil.copy(root / name, copy / name)
    for name in ("data", "notebooks"):
        (copy / name).mkdir()
        (copy / name / "one.txt").write_text("1\n", encoding="utf-8")
    package = copy / "src" / "helpers" / "ingest" / "native"
    package.mkdir(parents=True)
    shutil.copy(root / "src/helpers/__init__.py", copy / "src/helpers")
    for name in ("__init__.py", "lines.c"):
        shutil.copy(root / build_native.FOLDER / name, package)
    return copy


def built(builder: Any, out: Path) -> Path:
    (made,) = builder.build(directory=str(out), versions=["standard"])
    return Path(made)


@needs_compiler
def test_the_wheel_holds_the_library_and_is_of_this_platform(checkout, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
         "--disable-pip-version-check", "-w", str(tmp_path / "wheels"), str(checkout)],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    assert wheel.name.startswith("rooflog-") and "-py3-none-" in wheel.name
    assert wheel.name.removesuffix(".whl").split("-")[-1] != "any"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL"))
        archive.extract(f"helpers/ingest/native/{LIBRARY}", tmp_path)
    assert "helpers/ingest/native/lines.c" in names
    assert [name for name in names if "liblines" in name] == [f"helpers/ingest/native/{LIBRARY}"]
    assert "Root-Is-Purelib: false" in about and "Tag: py3-none-any" not in about
    assert said_hash(tmp_path / f"helpers/ingest/native/{LIBRARY}") == hash_of(
        checkout / build_native.FOLDER / "lines.c").encode()


def test_without_a_compiler_the_wheel_is_of_no_platform_and_a_line_says_so(checkout, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CC", "/bin/false")
    (checkout / build_native.FOLDER / LIBRARY).write_bytes(b"of an older source")
    wheel = built(hatchling_wheel.WheelBuilder(str(checkout)), tmp_path / "wheels")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "helpers/ingest/native/lines.c" in archive.namelist()
        assert [name for name in archive.namelist() if "liblines" in name] == []
    captured = capsys.readouterr()
    (warning,) = (line for line in (captured.out + captured.err).splitlines() if "WARNING" in line)
    assert "/bin/false failed" in warning
    assert "several times slower" in warning and "install a C compiler" in warning


@needs_compiler
def test_an_editable_installation_has_the_library_beside_its_source(checkout, tmp_path):
    builder = hatchling_wheel.WheelBuilder(str(checkout))
    hook = build_native.NativeHook(str(checkout), {}, builder.config, builder.metadata, str(tmp_path), "wheel")
    before, changed = ({**builder.get_default_build_data(), "artifacts": []} for _ in range(2))
    hook.initialize("editable", changed)
    library = checkout / build_native.FOLDER / LIBRARY
    assert said_hash(library) == hash_of(library.parent / "lines.c").encode()
    assert changed == before  # the wheel only points here: it holds nothing of a platform
    hook.clean(["editable"])
    assert not library.exists()


def test_the_source_archive_holds_the_c_file_and_the_hook_and_no_library(checkout, tmp_path):
    (checkout / build_native.FOLDER / LIBRARY).write_bytes(b"made here")
    with tarfile.open(built(SdistBuilder(str(checkout)), tmp_path / "archives")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tools/build_native.py", f"{build_native.FOLDER}/lines.c", "pyproject.toml"} <= names
    assert [name for name in names if "liblines" in name] == []
    assert (checkout / build_native.FOLDER / LIBRARY).exists()  # a source archive compiles nothing, removes nothing
