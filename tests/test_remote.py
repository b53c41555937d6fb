"""URLs: listed, fetched and written whole or not at all, read as logs, and never kept with credentials in them.

No network: fsspec's memory and file systems, a web server on loopback, and a store made here that fails on demand.
"""

from __future__ import annotations

import errno
import functools
import gzip
import hashlib
import json
import logging
import shutil
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers import ingest, redact, remote
from helpers.cli.app import main
from helpers.ingest.sources import find_inputs
from helpers.parameters import NotebookParameter, convert
from helpers.remote import RemoteError, RemoteFileMissing
from helpers.remote.listing import file_system_of
from helpers.run import run
from helpers.schema import LogFormatError, RooflogError

SECRET = "wJalrXUtnFEMI/K7MDENG"
PAGE = (
    b"# HELP vllm:num_requests_running Number.\n# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{model_name="m"} 3.0\n'
)


class Flaky(MemoryFileSystem):
    """A store in memory that fails as told: what it does is in `fault`, what was written in `puts`."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: ClassVar[dict[str, Any]] = {}
    puts: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).replace("flaky://", "memory://"))

    def info(self, path, **kwargs):
        if "info" in self.fault:
            raise self.fault["info"]
        return super().info(path, **kwargs)

    def ls(self, path, detail=True, **kwargs):
        if path.endswith(self.fault.get("ls", "none at all")):
            raise ConnectionResetError("lost")
        return super().ls(path, detail, **kwargs)

    def get_file(self, rpath, lpath, **kwargs):
        data = self.store[self._strip_protocol(rpath)].getvalue()
        n_bytes = self.fault.get("n_bytes", len(data))
        with open(lpath, "wb") as file:
            file.write(data[:n_bytes])
        if "get" in self.fault and rpath.endswith(self.fault.get("get_of", "")):
            raise self.fault["get"]

    def put_file(self, lpath, rpath, **kwargs):
        if len(self.puts) == self.fault.get("n_puts", -1):
            raise ConnectionResetError("lost")
        self.puts.append(rpath)
        data = Path(lpath).read_bytes()
        self.pipe_file(rpath, data[: self.fault.get("n_bytes", len(data))])


fsspec.register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture(autouse=True)
def stores(monkeypatch, tmp_path):
    """Empty stores, no proxy, and a place of its own for temporary files."""
    for store in (Flaky, MemoryFileSystem):
        store.store.clear()
        store.pseudo_dirs[:] = [""]
    Flaky.fault.clear()
    Flaky.puts.clear()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield
    assert list((tmp_path / "tmp").iterdir()) == []  # nothing fetched outlives its reading


def write(url: str, content: bytes) -> None:
    """Put a file into one of the stores in memory."""
    file_system, path = fsspec.url_to_fs(url)
    file_system.pipe_file(path, content)


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and answers for special names as servers in trouble do."""

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        status = next((code for code in (401, 403, 410, 503) if str(code) in self.path), 0)
        if status:
            self.send_error(status)
        elif "cut" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"ten bytes.")
        else:
            super().do_GET()

    def do_HEAD(self):
        if any(word in self.path for word in ("401", "403", "410", "503", "cut")):
            self.send_error(405)
        else:
            super().do_HEAD()


@pytest.fixture
def web(tmp_path):
    """Address of a web server on loopback, and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def log_bytes(data) -> bytes:
    return (data / "samples" / "sim-field-case-a" / "server.log").read_bytes()


@pytest.mark.parametrize(("text", "is_one"), [
    ("s3://bucket/x.log", True), ("gs://b", True), ("file:///x", True), ("memory://x", True), ("https://h/x", True),
    ("HTTP://h/x", True), ("git+ssh://h/x", True), ("C:\\logs\\x", False), ("C:/x", False), ("c://x", False),
    ("x.log", False), ("-", False), ("", False), ("a b://x", False), ("logs/a://b", False), ("//share/x", False),
    ("s3:/bucket/x", False),
])  # fmt: skip
def test_what_a_url_is(text, is_one):
    assert remote.is_url(text) is is_one


@pytest.mark.parametrize("url", [
    f"s3://AKIAX:{SECRET}@bucket/x.log", "s3://AKIAX:wJalrXUtnFEMI@bucket/runs/", f"https://{SECRET[:13]}@host/x.log",
    f"https://host/x.log?token={SECRET}", f"https://host/x.log?a=1&X-Amz-Signature={SECRET}",
    f"https://host/x.log?unknown={SECRET[:13]}0123456789", f"https://host/x#access_token={SECRET}",
    f"https://host/x.log?a=1#id_token={SECRET}", f"sftp://user:{SECRET}@host/x.log", f"memory://k:{SECRET}@b/x.csv",
])  # fmt: skip
def test_credentials_are_refused_and_never_shown(url, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "run.json").write_text("{}")
    calls = [
        lambda: remote.list_files(url), lambda: remote.fetch(url, tmp_path), lambda: remote.read_text(url),
        lambda: remote.exists(url), lambda: remote.is_whole(url), lambda: remote.size_bytes(url),
        lambda: remote.put_folder(tmp_path / "folder", url), lambda: ingest.read_log(url), lambda: find_inputs(url),
        lambda: convert(NotebookParameter("p", "str", "", "[path]"), url), lambda: run(url, out=tmp_path / "runs"),
        lambda: ingest.read_log(Path(url)), lambda: ingest.read_table(Path(url)),
    ]
    calls.append(lambda: find_inputs(str(Path(url))))
    for call in calls:
        with pytest.raises(RooflogError) as caught:
            call()
        assert SECRET[:13] not in str(caught.value) and "***" in str(caught.value)
    assert not (tmp_path / "runs").exists()
    for words in (["ingest", url], ["fit", url, "--json"], ["run", url, "--out", str(tmp_path / "runs")]):
        assert main(words) == 3
    out, err = capsys.readouterr()
    assert SECRET[:13] not in out + err and out == "" and err.count("***") == 3
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("url", [
    "s3://bucket/a@b.log", "s3://bucket/rank?.log", "abfs://container@account.dfs.core.windows.net/x.log",
    "https://host:8000/x.log?download=1&version=3", "sftp://user@host/x.log", "gs://b/x y.log", "http://[::1]:80/x",
    "s3://arn:aws:s3:eu-1:1:accesspoint/a/b@c.log", "plain@name?token=x", "memory://logs/2026-11-30/x.log#1",
])  # fmt: skip
def test_a_url_without_credentials_passes_unchanged(url):
    remote.refuse_credentials(url)
    assert remote.shown(url) == url
    assert convert(NotebookParameter("p", "list[str]", [], "[path]"), ["s3://b/x", url])[0] == "s3://b/x"


@pytest.mark.parametrize("store", ["memory://", "flaky://deep/er/", "file://"])
def test_files_are_listed_in_natural_order_and_by_pattern(store, tmp_path):
    root = store if store != "file://" else f"file://{tmp_path}/"
    for name in ("logs/rank10.log", "logs/rank2.log", "logs/3.log", "logs/sub/a.log.gz", "logs/[x].log", "logs/.h.log",
                 "else/b.log"):
        if store == "file://":
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x")
        else:
            write(root + name, b"x")
    names = ["3.log", ".h.log", "[x].log", "rank2.log", "rank10.log", "sub/a.log.gz"]
    for url in (root + "logs", root + "logs/"):
        assert remote.list_files(url) == [f"{root}logs/{name}" for name in names]
    assert remote.list_files(root + "logs/rank2.log") == [root + "logs/rank2.log"]
    assert remote.list_files(root + "logs/[x].log") == [root + "logs/[x].log"]  # a name before a pattern
    assert remote.list_files(root + "logs/rank*.log") == [f"{root}logs/{name}" for name in names[3:5]]
    assert remote.list_files(root + "*/b.log") == [root + "else/b.log"]
    found = remote.list_files(root + "logs/**/*.gz")
    assert found == [root + "logs/sub/a.log.gz"]
    assert remote.list_files(root + "logs/**/rank?.log") == [root + "logs/rank2.log"]
    for nothing in ("none", "none/", "logs/*.txt", "none/*.log"):
        with pytest.raises(RemoteFileMissing):
            remote.list_files(root + nothing)


def test_a_folder_that_cannot_be_listed_is_no_shorter_list():
    """fsspec's own search leaves such folders out without a word."""
    write("flaky://logs/a.log", b"x")
    write("flaky://logs/sub/b.log", b"x")
    assert len(remote.list_files("flaky://logs")) == 2
    Flaky.fault["ls"] = "/sub"
    for url in ("flaky://logs", "flaky://logs/**/*.log"):
        with pytest.raises(RemoteError, match="no connection"):
            remote.list_files(url)


def test_a_link_that_leads_back_is_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.log").write_bytes(b"x")
    for name, target in {"again": tmp_path / "a", "y.log": tmp_path / "a" / "x.log", "z.log": tmp_path / "no"}.items():
        (tmp_path / "a" / name).symlink_to(target)
    assert remote.list_files(f"file://{tmp_path}/a") == [f"file://{tmp_path}/a/{name}" for name in ("x.log", "y.log")]


@pytest.mark.parametrize(("name", "local"), [
    ("server.log.2.gz", "server.log.2.gz"), ("a b.log", "a b.log"), ("x:y*.log", "x_y_.log"),
    ("n" * 300 + ".log", "n" * 196 + ".log"),
])
def test_a_fetched_file_keeps_its_name(name, local, tmp_path):
    write(f"memory://logs/{name}", b"text")
    heard = []
    path = remote.fetch(f"memory://logs/{name}", tmp_path, heard.append)
    assert (path.name, path.read_bytes(), heard[-1]) == (local, b"text", 4)


@pytest.mark.parametrize(("fault", "said"), [
    ({"n_bytes": 3}, "expected 10 bytes, received 3"),
    ({"n_bytes": 3, "get": ConnectionResetError("peer said: raw words")}, "no connection, or it was lost"),
    ({"n_bytes": 3, "get": TimeoutError()}, "no connection, or it was lost"),
    ({"n_bytes": 3, "get": OSError(errno.ENOSPC, "raw words")}, "no space left"),
    ({"info": PermissionError("raw words")}, "access refused"),
    ({"info": type("NoCredentialsError", (Exception,), {})("raw words")}, "no valid credentials"),
    ({"get": KeyError("raw words")}, r"cannot be fetched \(KeyError\)"),
])  # fmt: skip
def test_a_file_is_fetched_whole_or_not_at_all(fault, said, tmp_path):
    write("flaky://b/x.log", b"0123456789")
    (tmp_path / "to").mkdir()
    assert remote.fetch("flaky://b/x.log", tmp_path / "to").read_bytes() == b"0123456789"
    (tmp_path / "to" / "x.log").unlink()
    Flaky.fault |= fault
    with pytest.raises(RemoteError, match=said) as caught:
        remote.fetch("flaky://b/x.log", tmp_path / "to")
    assert "raw words" not in str(caught.value) and str(caught.value).startswith("flaky://b/x.log: ")
    assert not isinstance(caught.value, RemoteFileMissing)
    assert list((tmp_path / "to").iterdir()) == []


def test_what_does_not_fit_the_disk_is_not_begun(tmp_path, monkeypatch):
    write("flaky://b/x.log", b"0123456789")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 91, 9))
    Flaky.fault["get"] = AssertionError("begun")
    with pytest.raises(RemoteError, match="expected room for 10 bytes.*found 9"):
        remote.fetch("flaky://b/x.log", tmp_path)


def test_a_folder_is_no_file(tmp_path):
    write("memory://b/sub/x.log", b"x")
    with pytest.raises(RemoteError, match="found a folder"):
        remote.fetch("memory://b/sub", tmp_path)


@pytest.fixture
def run_folder(tmp_path):
    """A folder of four files; the marker is neither the first nor the last by name."""
    folder = tmp_path / "a-run"
    (folder / "files").mkdir(parents=True)
    for name in ("00.ipynb", "files/a.parquet", "scorecard.json"):
        (folder / name).write_text(f"content of {name}")
    (folder / "run.json").write_text('{"status": "good"}')
    return folder


@pytest.mark.parametrize("n_puts", range(4))
def test_an_upload_cut_short_is_never_whole(n_puts, run_folder):
    """Cut before each of the four files: first in an empty place, then over an older whole folder."""
    url = "flaky://bucket/runs/r1"
    for is_again in (False, True):
        assert remote.is_whole(url) is is_again
        Flaky.puts.clear()
        Flaky.fault["n_puts"] = n_puts
        with pytest.raises(RemoteError, match="cannot be written: no connection"):
            remote.put_folder(run_folder, url)
        assert not remote.is_whole(url) and len(Flaky.puts) == n_puts
        Flaky.fault.clear()
        Flaky.puts.clear()
        remote.put_folder(run_folder, url + "/")
        assert remote.is_whole(url) and Flaky.puts[-1].endswith("/r1/run.json")
        assert len(remote.list_files(url)) == 4
    assert remote.read_text(url + "/files/a.parquet") == "content of files/a.parquet"


def test_a_file_that_arrived_short_leaves_no_marker(run_folder):
    Flaky.fault["n_bytes"] = 5
    with pytest.raises(RemoteError, match="00.ipynb: expected 19 bytes there, found 5"):
        remote.put_folder(run_folder, "flaky://bucket/r1")
    assert not remote.is_whole("flaky://bucket/r1")


def test_uploads_to_a_plain_folder(run_folder, tmp_path):
    url = f"file://{tmp_path}/store/r1"
    remote.put_folder(run_folder, url)
    assert remote.is_whole(url) and len(remote.list_files(url)) == 4
    marker = tmp_path / "store" / "r1" / "run.json"
    for half in ("", '{"status": "go', "[1]"):
        marker.write_text(half)
        assert not remote.is_whole(url)
    marker.unlink()
    assert not remote.is_whole(url) and not remote.is_whole(url + "/none", "x") and remote.is_whole(url, "00.ipynb")


def test_what_cannot_be_uploaded(run_folder):
    with pytest.raises(RemoteError, match="found a web page"):
        remote.put_folder(run_folder, "http://127.0.0.1:1/r1")
    (run_folder / "run.json").unlink()
    with pytest.raises(RemoteError, match="found none; it is not whole"):
        remote.put_folder(run_folder, "flaky://bucket/r1")
    assert Flaky.puts == []


def test_a_text_too_large_for_memory_is_refused(monkeypatch):
    write("flaky://b/x", b"12345")
    monkeypatch.setattr(remote.files, "MAX_TEXT_BYTES", 5)
    assert remote.read_text("flaky://b/x") == "12345"
    monkeypatch.setattr(remote.files, "MAX_TEXT_BYTES", 4)
    with pytest.raises(RemoteError, match="at most 4 bytes, found more"):
        remote.read_text("flaky://b/x")


def test_whether_something_is_there_is_not_guessed():
    assert not remote.exists("flaky://b/x") and not remote.is_whole("flaky://b")
    write("flaky://b/x", b"\xff\xfe")
    assert remote.exists("flaky://b/x") and remote.exists("flaky://b") and remote.size_bytes("flaky://b/x") == 2
    assert remote.read_start("flaky://b/x", 1) == b"\xff"
    with pytest.raises(RemoteError, match="UTF-8"):
        remote.read_text("flaky://b/x")
    Flaky.fault["info"] = ConnectionResetError()
    for ask in (remote.exists, remote.is_whole, remote.size_bytes):
        with pytest.raises(RemoteError, match="no connection"):
            ask("flaky://b/x")


@pytest.mark.parametrize(("url", "said"), [
    ("s3://b/x.log", "pip install s3fs"), ("gs://b/x.log", "pip install gcsfs"), ("abfs://b/x", "pip install adlfs"),
    ("dropbox://x", "install the package that fsspec needs for dropbox"), ("nope://x", "no such kind of URL as nope"),
    ("zip://x.log::memory://a.zip", "chains several"),
])  # fmt: skip
def test_a_kind_of_url_that_cannot_be_read(url, said, monkeypatch):
    for module in ("s3fs", "gcsfs", "adlfs", "dropboxdrivefs"):
        monkeypatch.setitem(sys.modules, module, None)
    for scheme in ("s3", "gs", "abfs", "dropbox"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, False)
    for call in (ingest.read_log, remote.exists, lambda url: find_inputs(url, takes_urls=True)):
        with pytest.raises(RemoteError, match=said):
            call(url)


def test_the_web(web, tmp_path):
    address, folder = web
    (folder / "sub").mkdir()
    for name in ("rank10.log", "rank2.log", "sub/a b.log"):
        (folder / name).write_bytes(b"0123456789" * 20_000)
    assert remote.list_files(address + "/rank2.log?download=1") == [address + "/rank2.log?download=1"]
    names = ["rank2.log", "rank10.log", "sub/a%20b.log"]
    assert remote.list_files(address + "/") == [f"{address}/{name}" for name in names]
    assert remote.list_files(address + "/rank*.log") == [f"{address}/{name}" for name in names[:2]]
    (folder / "sub" / "index.html").write_text(  # as some servers write them
        '<a href="?C=N;O=D">Name</a><a href="../">up</a><a href="/">top</a><a href="/rank2.log">elsewhere</a>'
        '<a href="x.log">x</a><a href="./../y.log">y</a><a href="x.log#end">end</a>'
    )
    assert remote.list_files(address + "/sub/") == [address + "/sub/x.log"]
    path = remote.fetch(address + "/sub/a%20b.log", tmp_path)
    assert (path.name, path.stat().st_size) == ("a b.log", 200_000)
    assert remote.fetch(address + "/rank2.log?download=1", tmp_path).name == "rank2.log"
    assert remote.read_start(address + "/rank2.log", 12) == b"012345678901"
    assert remote.size_bytes(address + "/rank2.log") == 200_000
    assert remote.exists(address + "/rank2.log") and not remote.exists(address + "/rank3.log")


@pytest.mark.parametrize(("name", "said"), [
    ("none.log", "no such file"), ("410.log", "no such file"), ("401.log", "no valid credentials.*netrc"),
    ("403.log", "access refused.*netrc"), ("503.log", "status 503"), ("cut.log", "no connection, or it was lost"),
])
def test_a_web_server_in_trouble(name, said, web, tmp_path):
    with pytest.raises(RemoteError, match=said) as caught:
        remote.fetch(f"{web[0]}/{name}", tmp_path)
    assert isinstance(caught.value, RemoteFileMissing) is (said == "no such file")
    assert not (tmp_path / name).exists()


def test_a_long_transfer_is_not_cut_and_proxies_are_used(monkeypatch):
    """aiohttp gives a transfer five minutes in all and overlooks proxies, unless told otherwise."""
    monkeypatch.setitem(fsspec.config.conf, "https", {"client_kwargs": {"headers": {"X": "1"}}})
    settings = file_system_of("https://host/x.log")[0].client_kwargs
    assert settings["timeout"].total is None and settings["timeout"].sock_read > 0
    assert settings["trust_env"] is True and settings["headers"] == {"X": "1"}  # the user's own stay


def test_a_store_says_nothing_of_its_own(monkeypatch):
    monkeypatch.setattr(Flaky, "__module__", "loudstore.core")
    assert not remote.exists("flaky://x")
    assert [type(handler) for handler in logging.getLogger("loudstore").handlers] == [logging.NullHandler]
    assert not remote.exists("flaky://y") and len(logging.getLogger("loudstore").handlers) == 1


def test_no_web_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.server_close()
    with pytest.raises(RemoteError, match="no connection"):
        ingest.read_log(f"http://127.0.0.1:{server.server_port}/server.log")


@pytest.mark.parametrize("kind", ["memory", "file", "web"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_is_the_same_wherever_it_lies(kind, packed, log_bytes, tmp_path, web):
    stored = gzip.compress(log_bytes) if packed else log_bytes
    name = "server.log.gz" if packed else "server.log"
    (tmp_path / name).write_bytes(stored)
    (web[1] / name).write_bytes(stored)
    write(f"memory://b/{name}", stored)
    url = {"memory": f"memory://b/{name}", "file": f"file://{tmp_path}/{name}", "web": f"{web[0]}/{name}"}[kind]
    heard = []
    log = ingest.read_log(url, progress=lambda done, total: heard.append((done, total)))
    local = ingest.read_log(tmp_path / name)
    assert log.sources == (ingest.Source(url, hashlib.sha256(stored).hexdigest(), len(stored)),)
    assert heard == sorted(heard) and heard[-1] == (len(stored), len(stored))
    assert kind == "file" or max(done for done, _ in heard[:-1]) <= len(stored) / 2  # received, and nothing read
    assert set(log.samples["file"]) == {url} and log.accounting.lines == local.accounting.lines
    assert log.samples.drop(columns="file").equals(local.samples.drop(columns="file"))
    assert log.facts == local.facts and str(tmp_path / "tmp") not in repr(log.accounting)


def test_a_folder_behind_a_url_is_searched_as_a_local_one(log_bytes, tmp_path):
    files = {
        "b.log": log_bytes, "deep/a.txt.gz": gzip.compress(log_bytes.replace(b"2026-", b"2025-")), "result.json": b"{}",
        ".hidden.log": b"x", "empty.log": b"", "notes.txt": b"nothing of interest\n", "plot.png": b"\x89PNG",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).write_bytes(content)
        write(f"memory://runs/{name}", content)
    n_copies = []

    def count(done: int, total: int) -> None:
        n_copies.append(len(list((tmp_path / "tmp").glob("rooflog-*/*"))))

    log, local = ingest.read_log("memory://runs", progress=count), ingest.read_log(tmp_path / "runs")
    assert max(n_copies) == 1  # never two files on the local disk at once
    assert [source.path for source in log.sources] == [
        source.path.replace(str(tmp_path / "runs"), "memory://runs") for source in local.sources
    ]
    notes = [note.replace(str(tmp_path / "runs"), "memory://runs") for note in local.accounting.notes]
    assert sorted(log.accounting.notes) == sorted(notes) and len(notes) >= 5
    assert log.samples["server_life"].tolist() == local.samples["server_life"].tolist()
    assert [source.path for source in ingest.read_log("memory://runs/b*").sources] == ["memory://runs/b.log"]


def test_messages_name_the_url_and_not_the_copy(log_bytes, tmp_path):
    first = next(i for i, line in enumerate(log_bytes.splitlines()) if b"Decode batch" in line)
    lines = log_bytes.splitlines()
    lines[first] = lines[first][: lines[first].index(b"#running-req: ") + 14] + b"many"
    write("memory://b/odd.log", b"\n".join(lines) + b"\n")
    log = ingest.read_log("memory://b/odd.log")
    assert [line.file for line in log.accounting.malformed] == ["memory://b/odd.log"]
    lines = [b"2026-11-02T09:00:00.5Z " + line.partition(b"] ")[2] for line in log_bytes.splitlines()]
    write("memory://b/wrapped.log", b"\n".join(lines) + b"\n")
    (note,) = [n for n in ingest.read_log("memory://b/wrapped.log").accounting.notes if "wrapper" in n]
    assert note.startswith("memory://b/wrapped.log: the records carry no time stamp")
    for name, content, said in (
        ("a.log", b"", "the file is empty"), ("b.log.gz", gzip.compress(log_bytes)[:-20], "truncated or damaged"),
        ("c.log", b"nothing\n" * 5, "expected"), ("d.csv", b"running_req,decode_tok_per_s\n1,2.5\n", "rooflog fit"),
    ):
        write(f"memory://b/{name}", content)
        with pytest.raises(LogFormatError, match=said) as caught:
            ingest.read_log(f"memory://b/{name}")
        assert f"memory://b/{name}" in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_a_lost_connection_is_no_skipped_file(log_bytes):
    """In a searched folder a damaged file is left out; one that could not be fetched must not be."""
    write("flaky://runs/a.log", log_bytes)
    write("flaky://runs/b.prom", PAGE)
    assert ingest.read_log("flaky://runs/a.log").sources
    for name in ("a.log", "b.prom"):
        Flaky.fault.update(get=ConnectionResetError(), get_of=name)
        with pytest.raises(RemoteError, match=rf"flaky://runs/{name}: .*no connection"):
            ingest.read_log("flaky://runs")


def test_an_export_behind_a_url_is_told_from_a_log(data, tmp_path):
    rows = [{"timestamp": 1.7e9 + i, "x": i} for i in range(3)]
    write("memory://b/x.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    write("memory://b/page.prom.gz", gzip.compress(PAGE))
    export = ingest.log.find_export("memory://b/page.prom.gz")
    assert export is not None and "scrape" in export.name.lower()
    assert ingest.log.find_export("memory://b/x.jsonl") is None
    assert ingest.is_table("memory://b/x.jsonl") is False


def test_a_real_log_from_a_store(shared):
    path = next(path for path in sorted((shared / "logs").rglob("*")) if path.suffix in (".gz", ".zst", ".log"))
    write(f"memory://b/{path.name}", path.read_bytes())
    log, local = ingest.read_log(f"memory://b/{path.name}"), ingest.read_log(path)
    assert log.sources[0].sha256 == local.sources[0].sha256
    assert log.samples.drop(columns="file").equals(local.samples.drop(columns="file"))


def test_fit_and_ingest_take_urls(log_bytes, tmp_path, capsys):
    write("memory://b/server.log", log_bytes)
    (tmp_path / "server.log").write_bytes(log_bytes)
    answers = []
    for place in ("memory://b/server.log", str(tmp_path / "server.log")):
        assert main(["fit", place, "--json"]) in (0, 1, 2)
        answers.append(json.loads(capsys.readouterr().out.replace(place, "LOG")))
    assert answers[0]["run"]["log_sha256"] == [hashlib.sha256(log_bytes).hexdigest()]
    assert answers[0]["levels"] == answers[1]["levels"] and answers[0]["levels"]
    assert main(["ingest", "memory://b/server.log", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][0]["path"] == "memory://b/server.log"


def test_redact_reads_local_files_only(tmp_path):
    write("memory://b/server.log", b"x")
    with pytest.raises(LogFormatError, match="expected a local path, found a URL"):
        redact.redact("memory://b/server.log", tmp_path / "out.log")
    assert not (tmp_path / "out.log").exists()
