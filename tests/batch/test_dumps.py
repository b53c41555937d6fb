"""What a batch takes for a dump, and what names it.

Would catch: logs in hidden folders or in the batch's own folder taken for dumps, the logs of ranks run one by one, two
dumps that share a folder of runs, facts of one dump used for another, a dump that is run twice or dropped in silence.
"""

import json
import os

import fsspec
import pytest

from helpers.batch import keys
from helpers.batch.dumps import dump_name, find_dumps
from helpers.batch.keys import Settings, hash_file, read_notebook
from helpers.batch.store import LocalStore, RemoteStore
from helpers.batch.work import do, prepare
from helpers.schema import RooflogError


def put(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}: Decode batch")
    return folder


def found(*paths, **how):
    dumps, notes = find_dumps([str(path) for path in paths], **how)
    return dumps, notes


def test_every_log_of_a_folder_is_a_dump_in_natural_order(tmp_path):
    put(tmp_path, "rank10.log", "rank2.log.gz", "b/server.out", "b/.hidden.log", ".git/x.log", "b/metrics.prom",
        "a.csv", "out/run-1/x.log")
    dumps, notes = found(tmp_path, out=str(tmp_path / "out"))
    assert [dump.path for dump in dumps] == [str(tmp_path / name) for name in
                                             ("rank2.log.gz", "rank10.log", "b/server.out")]
    assert [dump.logs for dump in dumps] == [(dump.path,) for dump in dumps]
    assert len(notes) == 1 and "1 files of scrapes" in notes[0]


def test_small_texts_without_a_server_in_them_are_left_out_of_a_folder_and_named(tmp_path):
    put(tmp_path, "a/server.log")
    texts = {f"a/note{n}.txt": "read me first\n" for n in range(12)} | {
        "empty.log": "", "access.log": 'INFO: 1.2.3.4:5 - "GET /health HTTP/1.1" 200 OK\n',
        "large.log": "read me first\n" * 80_000,
        "start.log": "[2026-02-03 04:00:00] server_args=ServerArgs(tp_size=1)\n",
        "broken.log": "x" + "Decode batch. #running-req: ?, gen throughput (token/s): ?\n",
        "keys.log": "[2026-02-03 04:00:00 TP0] #running-req: 5, #token: 5, gen throughput\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.log").write_bytes(bytes(range(256)))
    dumps, notes = found(tmp_path)
    assert {dump.name for dump in dumps} == {"server", "empty", "access", "large", "start", "broken", "keys",
                                               "binary"}
    assert len(notes) == 1 and "12 texts have nothing of a server in them and were left out: a/note0.txt" in notes[0]
    assert "note9.txt and 2 more" in notes[0]
    by_folder, notes = found(tmp_path, group="folder")
    assert {dump.path for dump in by_folder} == {str(tmp_path), str(tmp_path / "a")} and len(notes) == 1
    named, notes = found(tmp_path / "a/note0.txt")
    assert [dump.name for dump in named] == ["note0"] and notes == []
    with pytest.raises(RooflogError, match="expected logs"):
        found(put(tmp_path / "none", "x").parent / "none", out=str(tmp_path / "none"))


def test_a_folder_of_ranks_is_one_dump(tmp_path):
    put(tmp_path, "run1/rank0.log", "run1/rank1.log", "run1/scrape.prom", "run2/server.log", "run2/old/server.log")
    dumps, notes = found(tmp_path, group="folder")
    assert notes == []
    assert {dump.path: dump.logs for dump in dumps} == {
        str(tmp_path / "run1"): (str(tmp_path / "run1"),),  # whole: the scrape too
        str(tmp_path / "run2"): (str(tmp_path / "run2/server.log"),),  # not what the dump below holds
        str(tmp_path / "run2/old"): (str(tmp_path / "run2/old"),),
    }
    named, _ = found(tmp_path / "run1/rank0.log", tmp_path / "run1/rank1.log", group="folder")
    assert [(dump.path, len(dump.logs)) for dump in named] == [(str(tmp_path / "run1"), 2)]


def test_what_cannot_be_named_is_said(tmp_path):
    put(tmp_path, "a.log")
    (tmp_path / os.fsdecode(b"b\xff.log")).write_text("x")
    dumps, notes = found(tmp_path)
    assert [dump.name for dump in dumps] == ["a"]
    assert notes == [f"{tmp_path}: 1 names are not UTF-8 and were left out; rename them"]


def test_globs_links_and_repeats(tmp_path):
    put(tmp_path, "a/server.log", "b/server.log", "c/odd.name")
    os.symlink(tmp_path / "a/server.log", tmp_path / "b/same.log")
    dumps, _ = found(tmp_path / "*/server.log", tmp_path / "a", tmp_path / "b", tmp_path / "c/odd.name")
    assert [dump.path for dump in dumps] == [str(tmp_path / name) for name in
                                             ("a/server.log", "b/server.log", "c/odd.name")]
    with pytest.raises(RooflogError, match="no match"):
        found(tmp_path / "*.log")
    with pytest.raises(RooflogError, match="no such file"):
        found(tmp_path / "none.log")
    with pytest.raises(RooflogError, match="found none"):
        found(put(tmp_path / "empty", "x.csv"))
    with pytest.raises(RooflogError, match="--group ranks"):
        found(tmp_path, group="ranks")


def test_facts_beside_a_dump_are_its_own(tmp_path):
    put(tmp_path, "a/server.log", "a/facts.yaml", "a/facts.json", "b/server.log", "c/ranks/rank0.log", "c/facts.json")
    own = {dump.path.rsplit("/", 2)[1]: dump.facts for dump in found(tmp_path)[0]}
    assert own == {"a": str(tmp_path / "a/facts.yaml"), "b": "", "ranks": ""}
    grouped = {dump.path.rsplit("/", 1)[1]: dump.facts for dump in found(tmp_path, group="folder")[0]}
    assert grouped == {"a": str(tmp_path / "a/facts.yaml"), "b": "", "ranks": str(tmp_path / "c/facts.json")}


@pytest.mark.parametrize(("path", "name"), [
    ("/logs/server.log.2.gz", "server"), ("s3://bucket/run 7/", "run_7"), ("/x/<script>.log", "_script_"),
    ("/x/.log", "log"), ("/", "dump"), ("/x/v0.11.2.log", "v0.11.2"), ("/x/" + "a" * 300 + ".log", "a" * 80),
    ("/x/server.2.LOG", "server.2"), ("/x/sérveur.txt", "s_rveur"),
])
def test_names_are_plain(path, name):
    assert dump_name(path) == name


def test_urls_are_listed_like_folders():
    memory = fsspec.filesystem("memory")
    for name in ("a/server.log", "a/facts.yaml", "b/rank0.log.gz", "b/rank1.log.gz", "b/notes.csv"):
        memory.pipe_file(f"/batch-dumps/{name}", name.encode())
    root = "memory://batch-dumps"
    try:
        dumps, _ = found(root)
        assert [(dump.path.rsplit("batch-dumps/", 1)[1], bool(dump.facts), dump.name) for dump in dumps] == [
            ("a/server.log", True, "server"), ("b/rank0.log.gz", False, "rank0"), ("b/rank1.log.gz", False, "rank1")]
        assert found(f"{root}/a/server.log")[0][0].facts.endswith("a/facts.yaml")
        grouped, _ = found(root, group="folder")
        assert [(dump.name, len(dump.logs), bool(dump.facts)) for dump in grouped] == [("a", 1, True), ("b", 2, False)]
    finally:
        memory.rm("/batch-dumps", recursive=True)


def test_what_lies_beside_logs_behind_a_url_is_read_or_named_as_in_a_folder_here():
    """Hidden files are none; a scrape belongs to its log's folder, a text that is no export to none."""
    memory = fsspec.filesystem("memory")
    page = b'# HELP vllm:num_requests_running n\n# TYPE vllm:num_requests_running gauge\n' \
           b'vllm:num_requests_running{model_name="m"} 3.0\n'
    for name, content in (("a/server.log", b"x"), ("a/page.prom", page), ("a/other.json", b"[]"), ("a/.b.log", b"x"),
                          (".git/c.log", b"x")):
        memory.pipe_file(f"/batch-beside/{name}", content)
    root = "memory://batch-beside"
    try:
        dumps, notes = found(root)
        assert [dump.path for dump in dumps] == [f"{root}/a/server.log"]
        assert notes == [f"{root}: 2 files of scrapes or metrics are no dumps of their own; name them, or read them "
                         "beside their log with --group folder"]
        dumps, notes = found(root, group="folder")
        assert [dump.logs for dump in dumps] == [(f"{root}/a/server.log", f"{root}/a/page.prom")] and notes == []
        for named in ("page.prom", "pag*"):  # as a file or a pattern here
            assert [dump.path for dump in found(f"{root}/a/{named}")[0]] == [f"{root}/a/page.prom"]
    finally:
        memory.rm("/batch-beside", recursive=True)


def test_a_fault_of_a_fetched_file_is_told_of_its_url(obedient, tmp_path):
    memory = fsspec.filesystem("memory")
    for name in ("server.log", "facts.json"):
        memory.pipe_file(f"/batch-fault/{name}", b"{")
    try:
        outcome = do(found("memory://batch-fault")[0][0], Settings(str(tmp_path / "out"), str(obedient)))
    finally:
        memory.rm("/batch-fault", recursive=True)
    assert (outcome.state, outcome.dump) == ("failed", "memory://batch-fault/server.log")
    assert outcome.message.startswith("facts memory://batch-fault/facts.json: not JSON at line 1")


@pytest.fixture
def key(obedient, tmp_path):
    """Compute the key of a log with a text, and of what else is given."""
    def compute(text="good", at="server.log", parameters=(), context=None, notebook=obedient):
        put(tmp_path, at)
        (tmp_path / at).write_text(text)
        dumps, _ = found(tmp_path / at)
        settings = Settings(str(tmp_path / "out"), str(notebook), tuple(parameters), context or {})
        return prepare(dumps[0], settings, read_notebook(str(notebook), settings.parameters)).key
    return compute


def test_a_key_holds_everything_that_decides_a_result_and_no_more(key, tmp_path, monkeypatch, obedient):
    base = key()
    assert len(base) == 64 and key(at="moved/elsewhere.log") == base
    others = [key("other"), key(parameters=[("confidence", "0.9")]), key(context={"tp": 2})]
    side = put(tmp_path, "gpu.csv", "again/gpu.csv")
    (side / "again/gpu.csv").write_bytes((side / "gpu.csv").read_bytes())
    with_side = key(parameters=[("telemetry", str(side / "gpu.csv"))])
    assert key(parameters=[("telemetry", str(side / "again/gpu.csv"))]) == with_side  # the contents count
    (side / "gpu.csv").write_text("changed")
    others += [with_side, key(parameters=[("telemetry", str(side / "gpu.csv"))])]
    changed = tmp_path / "91_obey.ipynb"
    changed.write_text(obedient.read_text() + "\n")
    others.append(key(notebook=changed))
    for name, value in (("METHOD_VERSION", 999), ("SCHEMA_VERSION", 999), ("__version__", "999")):
        with monkeypatch.context() as patch:
            patch.setattr(keys, name, value)
            others.append(key())
    put(tmp_path, "facts.json")
    (tmp_path / "facts.json").write_text('{"tp": 4}')
    others.append(key())
    assert len({base, *others}) == 11
    assert key(context={"tp": 4}) == key()  # the same facts, whoever said them
    assert key(context={"tp": 8}) not in others  # the batch's win


def test_facts_of_the_batch_win_over_those_of_a_dump(tmp_path, obedient):
    put(tmp_path, "server.log", "config.json")
    (tmp_path / "facts.json").write_text('{"tp": 2, "model_config": "config.json", "gpus": 2}')
    settings = Settings("out", str(obedient), (), {"parallel": {"tp": 8}, "gpus": 8})
    job = prepare(found(tmp_path / "server.log")[0][0], settings, read_notebook(str(obedient), ()))
    assert list(job.context.items()) == [("tp", 2), ("model_config", str(tmp_path / "config.json")),
                                         ("parallel", {"tp": 8}), ("gpus", 8)]  # later ones win where two mean the same


def whole_folder(folder, key, **changes):
    folder.mkdir(parents=True)
    record = {"key": key, "exit_code": 0, "message": "", "notebook": "91_obey", "log_sha256": ["a"],
              "dump_sha256": ["a", "b"]} | changes
    for name, text in (("run.json", json.dumps(record)), ("91_obey.ipynb", "{}"), ("report.html", "<p>"),
                       ("scorecard.json", "{}")):
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_only_a_whole_run_of_the_same_key_counts(tmp_path, kind):
    store = LocalStore(tmp_path) if kind == "local" else RemoteStore(f"file://{tmp_path}")
    whole_folder(tmp_path / "good", "k")
    assert store.whole_record("good", "k")["exit_code"] == 0
    assert store.whole_record("good", "other") is None and store.whole_record("none", "k") is None
    for name in ("run.json", "91_obey.ipynb", "report.html", "scorecard.json"):
        (whole_folder(tmp_path / f"no-{name}", "k") / name).unlink()
        assert store.whole_record(f"no-{name}", "k") is None, name
    for name, changes in {
        "changed while read": {"log_sha256": ["c"]},
        "a dead kernel": {"exit_code": 3, "message": "91: DeadKernelError: x"},
        "a full disk": {"exit_code": 3, "message": "91: OSError: [Errno 28] full"}, "no code": {"exit_code": None},
    }.items():
        whole_folder(tmp_path / name, "k", **changes)
        assert store.whole_record(name, "k") is None, name
    failed = whole_folder(tmp_path / "failed", "k", exit_code=3, message="91: KeyError: DeadKernelError")
    (failed / "scorecard.json").unlink()
    assert store.whole_record("failed", "k")["exit_code"] == 3
    (tmp_path / "good/run.json").write_text('{"key": "k", "exit_')
    assert store.whole_record("good", "k") is None


def test_a_run_that_is_not_whole_goes_without_a_trace(tmp_path):
    store = LocalStore(tmp_path)
    whole_folder(tmp_path / "x", "k")
    store.discard("x")
    store.discard("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_failures_are_kept_until_they_are_overtaken(tmp_path, kind):
    store = LocalStore(tmp_path) if kind == "local" else RemoteStore(f"file://{tmp_path}")
    for name, dump, notebook in (("a-1", "/a", "00"), ("b-1", "/b", "00"), ("c-1", "/c", "04")):
        store.write_failure({"name": name, "key": f"{name} key", "dump": dump, "notebook": notebook, "message": "m",
                             "is_final": True})
    assert store.failure("a-1", "a-1 key")["message"] == "m" and store.failure("a-1", "other") is None
    store.forget_failures({"/a": "", "/b": "b-1 key", "/c": ""}, "00")
    assert [bool(store.failure(name, f"{name} key")) for name in ("a-1", "b-1", "c-1")] == [False, True, True]
    store.forget_failures({"/b": "another key"}, "00")
    with store.mirror() as folder:
        assert [path.name for path in folder.glob("failures/*")] == ["c-1.json"]
    store.close()


def test_hashes_are_of_bytes(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert hash_file(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
