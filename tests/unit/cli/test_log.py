"""`tailrace log dump` shows what is in the files of a log and finds what is wrong with them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tailrace.cli.main import cli
from tailrace.records.compression import Compression
from tailrace.records.record import NewRecord, build_batch

FIRST = build_batch(
    [NewRecord(b"one", b"k", 1769860800000, (("tag", b"x"),)), NewRecord(None, b"\xff", 1769860800005)],
    base_offset=100,
    producer_id=7,
    producer_epoch=1,
    base_sequence=40,
    leader_epoch=3,
)
SECOND = build_batch([NewRecord(b"three", None, 1769860800009)], base_offset=102, compression=Compression.ZSTD)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(FIRST + SECOND)
    return path


def dump(path: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["log", "dump", str(path), *options])


def dump_json(path: Path, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(path, "--json", *options).stdout.splitlines()]


def test_batches_are_listed_with_their_positions_and_headers(log_path: Path) -> None:
    first, second = dump_json(log_path)
    assert first.pop("crc") == int.from_bytes(FIRST[17:21], "big")
    assert first == {
        "position": 0,
        "base_offset": 100,
        "last_offset": 101,
        "record_count": 2,
        "size": len(FIRST),
        "compression": "none",
        "base_timestamp": 1769860800000,
        "max_timestamp": 1769860800005,
        "producer_id": 7,
        "producer_epoch": 1,
        "base_sequence": 40,
        "leader_epoch": 3,
        "crc_valid": True,
        "flags": [],
    }
    assert (second["position"], second["compression"], second["producer_id"]) == (len(FIRST), "zstd", -1)


def test_records_are_printed_when_asked_for(log_path: Path) -> None:
    batches = dump_json(log_path, "--records")
    assert [record for batch in batches for record in batch["records"]] == [
        {"offset": 100, "timestamp": 1769860800000, "key": "k", "value": "one", "headers": {"tag": "x"}},
        {"offset": 101, "timestamp": 1769860800005, "key_base64": "/w==", "value": None, "headers": {}},
        {"offset": 102, "timestamp": 1769860800009, "key": None, "value": "three", "headers": {}},
    ]


def test_text_has_a_line_for_each_batch_and_record(log_path: Path) -> None:
    result = dump(log_path, "--records")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:5] == ["POSITION", "OFFSETS", "RECORDS", "SIZE", "CODEC"]
    assert lines[1] == [
        *("0", "100-101", "2", str(len(FIRST)), "none", "2026-01-31T12:00:00.000Z", "2026-01-31T12:00:00.005Z"),
        *("7", "1", "40", "3", "ok"),
    ]
    assert lines[2] == ["offset", "100", "2026-01-31T12:00:00.000Z", "key", "'k'", "value", "'one'", "tag='x'"]
    assert lines[3] == ["offset", "101", "2026-01-31T12:00:00.005Z", "key", "b'\\xff'", "value", "null"]
    assert lines[4][:2] == [str(len(FIRST)), "102-102"]
    assert len(lines) == 6


def test_a_changed_byte_is_found_and_what_follows_is_still_shown(log_path: Path) -> None:
    damaged = bytearray(FIRST + SECOND)
    damaged[len(FIRST) - 1] ^= 1
    log_path.write_bytes(damaged)
    result = dump(log_path, "--json", "--records")
    assert result.exit_code == 1
    assert f"{log_path} is corrupt in 1 place, first at position 0: the CRC" in result.stderr
    first, problem, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["crc_valid"] is False
    assert "records" not in first
    assert (problem["position"], "CRC" in problem["corrupt"]) == (0, True)
    assert second["crc_valid"] is True


@pytest.mark.parametrize("kept", [1, 60, 61, len(SECOND) - 1])
def test_a_batch_that_is_cut_off_is_found_at_its_position(log_path: Path, kept: int) -> None:
    log_path.write_bytes(FIRST + SECOND[:kept])
    result = dump(log_path)
    assert result.exit_code == 1
    assert f"first at position {len(FIRST)}:" in result.stderr
    assert f"\n{len(FIRST)}" in result.stdout
    assert "CORRUPT" in result.stdout


def test_bytes_that_are_no_batch_are_found(log_path: Path) -> None:
    log_path.write_bytes(FIRST + bytes(200))
    result = dump(log_path)
    assert result.exit_code == 1
    assert f"first at position {len(FIRST)}: no batch starts here" in result.stderr


def test_offsets_that_go_back_are_found(log_path: Path) -> None:
    log_path.write_bytes(SECOND + FIRST)
    result = dump(log_path)
    assert result.exit_code == 1
    assert f"first at position {len(SECOND)}: base offset 100 comes after offset 102" in result.stderr


def test_records_that_do_not_decode_are_found_though_the_crc_is_right(log_path: Path) -> None:
    # The count is under the CRC, so a wrong one needs a batch that was built wrong.
    batch = build_batch([NewRecord(b"one")], base_offset=100, compression=Compression.ZSTD, attributes=0)
    mislabelled = build_batch([NewRecord(b"one")], base_offset=100, attributes=Compression.GZIP)
    log_path.write_bytes(mislabelled + batch)
    assert dump(log_path).stdout.count("ok") == 2
    result = dump(log_path, "--records")
    assert result.exit_code == 1
    assert "first at position 0: Cannot decompress records" in result.stderr


def test_an_empty_log_is_fine(log_path: Path) -> None:
    log_path.write_bytes(b"")
    result = dump(log_path, "--json")
    assert (result.exit_code, result.stdout) == (0, "")


def test_an_offset_index_is_shown_in_whole_offsets(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.index"
    path.write_bytes(struct.pack(">iIiI", 5, 4096, 11, 8192))
    assert dump_json(path) == [{"offset": 105, "position": 4096}, {"offset": 111, "position": 8192}]
    assert dump(path).stdout == "OFFSET  POSITION\n   105      4096\n   111      8192\n"


def test_a_time_index_is_shown_in_whole_offsets(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.timeindex"
    path.write_bytes(struct.pack(">qi", 1769860800000, 5))
    assert dump_json(path) == [{"timestamp": 1769860800000, "offset": 105}]
    assert dump(path).stdout.splitlines()[1].split() == ["1769860800000", "2026-01-31T12:00:00.000Z", "105"]


def test_the_zeros_that_kafka_allocates_ahead_are_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(struct.pack(">iI", 5, 4096) + bytes(800))
    assert dump_json(path) == [{"offset": 5, "position": 4096}]


def test_an_index_that_goes_back_or_is_cut_off_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(struct.pack(">iIiI", 5, 4096, 5, 8192) + b"\x01\x02\x03")
    result = dump(path)
    assert result.exit_code == 1
    assert "corrupt in 2 places, first at position 8:" in result.stderr


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("notes.txt", [], "not a .log, .index or .timeindex file"),
        ("first.index", [], "not named after its base offset"),
        ("00000000000000000000.index", ["--records"], "--records works only with .log files"),
    ],
)
def test_a_file_that_is_none_of_a_log_is_a_usage_error(
    tmp_path: Path, name: str, options: list[str], reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    result = dump(path, *options)
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())


def test_a_reader_that_has_seen_enough_ends_the_dump_quietly(log_path: Path) -> None:
    log_path.write_bytes(b"".join(build_batch([NewRecord(b"x")], base_offset=offset) for offset in range(100, 30_000)))
    script = [sys.executable, "-c", "from tailrace.cli.main import main; main()", "log", "dump", str(log_path)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"POSITION")
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(30), errors) == (0, b"")
