"""Files given for what they are not: one line in words that names the file, what was found, and what to give."""

from __future__ import annotations

import json

import pytest

from helpers.evidence.clients import read_clients
from helpers.evidence.clients.files import NotAClient
from helpers.evidence.profiles import read_profile
from helpers.evidence.reading import binary_kind
from helpers.evidence.telemetry import read_telemetry
from helpers.schema import LogFormatError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
CLIENT = {"date": "x", "endpoint_type": "vllm", "output_throughput": 1.0, "ttfts": [0.1] * 900}


def refused(read, path) -> str:
    with pytest.raises(LogFormatError) as error:
        read(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    for raw in ("Errno", "Expecting", "^", "new-line character", "csv", "(char "):
        assert raw not in text.removeprefix(str(path)).replace("--format=csv", "").replace("--format csv", "").replace(
            "--csv", ""), raw
    return text


@pytest.mark.parametrize("read", [read_clients, read_profile, read_telemetry])
@pytest.mark.parametrize(("content", "what"), [(PNG, "a PNG image"), (b"\x01\x02\x00\x05" * 2000, "binary file"),
                                               (b"\x01\x00\x00\x00 1,2\n" + b"\x00\x03" * 3000, "binary file")])
def test_an_image_or_a_binary_is_called_what_it_is(tmp_path, read, content, what):
    file = tmp_path / "f.bin"
    file.write_bytes(content)
    assert what in refused(read, file)


def test_text_is_no_binary_whatever_its_encoding(tmp_path):
    table = "timestamp, power.draw [W], Ä\n2026/01/01 00:00:00.000, 5.00 W, \x1b[31m\n"
    for encoding in ("utf-8", "utf-16", "latin-1", "utf-8-sig"):
        file = tmp_path / "f.csv"
        file.write_bytes(table.encode(encoding))
        assert binary_kind(file) == ""
    file.write_bytes(b"")
    assert binary_kind(file) == ""
    file.write_bytes(table.encode() + b"\0" * 100_000)  # what a crash leaves: zeros behind the last line
    assert binary_kind(file) == ""
    file.write_bytes(b"\0" * 5000)
    assert binary_kind(file) == "nothing but zero bytes"


def test_json_as_telemetry_is_named_with_the_parameter_it_belongs_to(tmp_path):
    file = tmp_path / "f.json"
    file.write_text(json.dumps(CLIENT))
    assert "found the result of a benchmark client: give it as -p client; record with" in refused(read_telemetry, file)
    file.write_text('{"traceEvents": []}')
    assert "a profiler trace: give it as -p profile" in refused(read_telemetry, file)
    file.write_text('{"a": 1, "b": [1, 2]}')
    assert "found JSON of no known tool (keys a, b); record" in refused(read_telemetry, file)
    file.write_text("{}")
    assert "found JSON of no known tool (without keys); record" in refused(read_telemetry, file)


def test_a_table_without_a_header_names_the_parameter(tmp_path):
    file = tmp_path / "f.csv"
    file.write_text("2026/01/01 00:00:00.000, 0, 5.00 W\n2026/01/01 00:00:01.000, 0, 5.00 W\n")
    text = refused(read_telemetry, file)
    assert 'names of its 3 columns' in text and '-p telemetry_columns "timestamp,index,power.draw"' in text
    file.write_text("0   57   41\n0   58   41\n")
    assert '-p telemetry_columns "gpu,pwr,gtemp"' in refused(read_telemetry, file)
    file.write_text(",".join(["1.5"] * 8000) + "\n")
    assert "a line of 8000 values: no tool prints so many columns" in refused(read_telemetry, file)


def test_a_cut_client_result_and_broken_json_are_said_in_words(tmp_path):
    file = tmp_path / "f.json"
    file.write_text(json.dumps(CLIENT)[:700])
    assert "found its end inside a value: it is cut off" in refused(read_clients, file)
    file.write_text('{"a": 1, oops}')
    assert "found no JSON from line 1, column 10 on" in refused(read_clients, file)


def test_a_cut_trace_is_said_in_words(tmp_path):
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "args": {"device": 0}}
    whole = json.dumps({"traceEvents": [event] * 50})
    file = tmp_path / "t.json"
    file.write_text(whole[:-40])
    assert "found the end of the file inside a value: it is cut off" in refused(read_profile, file)
    file.write_text(whole.replace('"ts": 1.0', '"ts": oops', 1))
    assert "found no JSON (" in refused(read_profile, file)


def test_a_lone_return_in_a_report_or_a_log_is_no_fault_of_the_csv_reader(tmp_path):
    file = tmp_path / "f.csv"
    file.write_bytes(b"a\rb,c\nd\n")
    assert "expected a report of nsys stats" in refused(read_profile, file)
    file.write_bytes(b"0%\r50%\r100%, x\nline\n")
    with pytest.raises(NotAClient, match="found a text or table without a result block; give the file"):
        read_clients(file)
    other = tmp_path / "folder"
    other.mkdir()
    file.rename(other / "server.log")
    (other / "image.png").write_bytes(PNG)
    (other / "c.json").write_text(json.dumps({"request_throughput": 1, **CLIENT, "duration": 1, "completed": 3,
                                              "total_output_tokens": 9, "max_concurrency": 1}))
    found = read_clients(other)
    assert len(found.runs) == 1 and len(found.others) == 2
