"""`tailrace doctor` on prepared data directories: what it finds in them, and that it leaves them as they were."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tailrace.cli.main import cli
from tailrace.cli.run_broker import STORE_FILE
from tailrace.cluster.keys import MOVED_TO
from tailrace.cluster.store import Write
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.system.clock import SystemClock
from tailrace.storage.checkpoints import (
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
)
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN, META_PROPERTIES
from tailrace.storage.partition_metadata import PARTITION_METADATA
from tailrace.stores.sqlite import SqliteStore
from tests.unit.broker.brokers import TestedBroker, with_broker

#: Six of these fill a segment of the least size.
_VALUE = bytes(200_000)
_BATCHES = 14


def batch(number: int) -> bytes:
    record = NewRecord(_VALUE, timestamp=SystemClock().wall_ms())
    return bytes(build_batch([record], producer_id=5, producer_epoch=0, base_sequence=number))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was stopped: `orders` with several segments, and `empty` without records."""
    root = tmp_path_factory.mktemp("prepared")

    async def fill(tested: TestedBroker) -> None:
        await tested.create("orders", 2, segment_bytes=str(1 << 20))
        await tested.create("empty")
        for number in range(_BATCHES):
            assert (await tested.produce(data=batch(number))).error_code == 0

    (root / "data").mkdir()
    store = SqliteStore(str(root / "data" / STORE_FILE))
    with_broker(root, fill, store=store)
    asyncio.run(store.close())
    assert len(list((root / "data" / "orders-0").glob("*.log"))) >= 3
    return root / "data"


@pytest.fixture
def data(prepared: Path, tmp_path: Path) -> Path:
    """A copy to be harmed."""
    shutil.copytree(prepared, tmp_path / "data")
    return tmp_path / "data"


def doctor(data: Path, *options: str) -> Result:
    arguments = ["doctor", "--data-dir", str(data), "--port", "0", "--json", *options]
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


def findings(data: Path, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in doctor(data, *options).stdout.splitlines()]


def bad(data: Path, *options: str) -> list[dict[str, Any]]:
    """What is not fine, but for what depends on the machine that runs the test."""
    machine = ("user", "limits", "python", "clock")
    return [
        found
        for found in findings(data, *options)
        if found["status"] != "ok"
        and found["subject"] not in machine
        and not any(word in found["text"] for word in ("are free", "overlay on", "tmpfs on"))
    ]


def only(data: Path, *options: str) -> dict[str, Any]:
    found = bad(data, *options)
    assert len(found) == 1, found
    return found[0]


def segments(data: Path) -> list[Path]:
    return sorted((data / "orders-0").glob("*.log"))


def crash(data: Path) -> None:
    """Leave the directory as a broker that was killed leaves it."""
    (data / CLEAN_SHUTDOWN).unlink()


def set_recovery_point(data: Path, offset: int) -> None:
    (data / RECOVERY_POINTS).write_text(f"0\n2\norders 0 {offset}\norders 1 0\n")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything there is to know of the files of a directory."""
    return {
        str(path.relative_to(directory)): (
            path.stat().st_mtime_ns,
            path.stat().st_ino,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted([directory, *directory.rglob("*")])
    }


@pytest.mark.parametrize("options", [[], ["--deep"]], ids=["quick", "deep"])
def test_a_directory_that_was_stopped_cleanly_is_sound_and_stays_as_it_is(data: Path, options: list[str]) -> None:
    before = snapshot(data)
    assert bad(data, *options) == []
    assert snapshot(data) == before
    texts = " ".join(found["text"] for found in findings(data, *options))
    assert "the last stop was clean" in texts
    assert "2 topics, 3 partitions" in texts
    assert "it belongs to node 1 of cluster" in texts
    assert ("every batch has a valid CRC" if options else "all logs begin and end with sound batches") in texts


def test_a_crashed_directory_stays_as_it_is_too(data: Path) -> None:
    crash(data)
    with segments(data)[-1].open("ab") as log:
        log.write(batch(_BATCHES)[:100])
    before = snapshot(data)
    doctor(data, "--deep")
    assert snapshot(data) == before


def test_text_says_ok_warning_or_problem_and_what_to_do_and_counts_them(data: Path) -> None:
    crash(data)
    result = CliRunner().invoke(cli, ["doctor", "--data-dir", str(data), "--port", "0"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert all(line.startswith(("ok       ", "warning  ", "problem  ", "         to do: ")) for line in lines[:-1])
    for number, line in enumerate(lines[:-1]):
        assert line.startswith(("warning", "problem")) == lines[number + 1].startswith("         to do: ")
    assert "warning" in lines[-1]
    assert lines[-1].endswith(", 0 problems")


def test_the_exit_code_is_the_worst_of_all(data: Path) -> None:
    (data / "orders-0" / PARTITION_METADATA).write_text("version: 9\n")
    result = doctor(data)
    assert result.exit_code == 2
    assert only(data)["status"] == "problem"


def test_a_directory_that_does_not_exist_yet_is_fine_and_is_not_made(tmp_path: Path) -> None:
    assert bad(tmp_path / "new" / "data") == []
    assert not (tmp_path / "new").exists()


def test_mistakes_in_the_configuration_do_not_keep_the_rest_from_being_checked(data: Path) -> None:
    found = bad(data, "--set", "log.retention.hour=3")
    assert [(one["status"], one["subject"]) for one in found] == [("problem", "configuration")]
    assert any(
        "begin and end with sound batches" in one["text"] for one in findings(data, "--set", "log.retention.hour=3")
    )


# --- whose it is


def test_another_node_or_cluster_or_version_is_refused_as_a_broker_refuses_it(data: Path) -> None:
    found = only(data, "--set", "node.id=2")
    assert "node.id=1" in found["text"]
    assert "--data-dir" in found["advice"]
    assert "but cluster.id=another" in only(data, "--set", "cluster.id=another")["text"]
    meta = data / META_PROPERTIES
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    assert "version=2" in only(data)["text"]


def test_a_directory_without_its_store_is_not_passed_off_as_new(data: Path) -> None:
    (data / STORE_FILE).unlink()
    found = only(data)
    assert found["status"] == "problem"
    assert "the metadata store is empty but the log directories hold partitions" in found["text"]


def test_a_store_of_a_newer_format_is_refused(data: Path) -> None:
    with sqlite3.connect(data / STORE_FILE) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    found = only(data)
    assert f"{data}/{STORE_FILE} has format 99" in found["text"]
    assert "newer version" in found["advice"]


def test_a_broker_whose_metadata_was_moved_is_told_where(data: Path) -> None:
    store = SqliteStore(str(data / STORE_FILE))
    asyncio.run(store.txn([], [Write(MOVED_TO, b"etcd://127.0.0.1:2379/tailrace")]))
    asyncio.run(store.close())
    found = only(data)
    assert "was moved to etcd://127.0.0.1:2379/tailrace" in found["text"]
    assert found["advice"] == "add --coordination etcd://127.0.0.1:2379/tailrace"
    assert bad(data, "--coordination", f"sqlite:{data}/{STORE_FILE}") == []


@pytest.mark.parametrize(
    ("address", "told"),
    [("etc://h:2379/x", "not the address of a coordination store"), ("unix:relative", "is not the absolute path")],
)
def test_an_address_that_names_no_store_is_a_problem(data: Path, address: str, told: str) -> None:
    assert told in only(data, "--coordination", address)["text"]


def test_a_damaged_store_is_found(data: Path) -> None:
    path = data / STORE_FILE
    content = bytearray(path.read_bytes())
    content[4096 : 4096 + 200] = b"\xff" * 200
    path.write_bytes(content)
    found = only(data)
    assert (found["status"], found["subject"]) == ("problem", "metadata")
    path.write_bytes(b"this is not a database file, whatever its name says" * 100)
    assert "not a database" in only(data)["text"]


def test_what_a_killed_broker_had_committed_is_part_of_the_store(data: Path) -> None:
    """The last changes are in a file beside the store until SQLite moves them."""
    path = data / STORE_FILE
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("DELETE FROM entries WHERE key LIKE '/topics/%' AND instr(CAST(value AS TEXT), 'empty') > 0")
    writer.execute("DELETE FROM entries WHERE key = '/topic-names/empty'")
    aside = data.with_name("aside")
    shutil.copytree(data, aside)  # as it is while the writer has it open, and so as a killed one leaves it
    writer.close()
    assert (aside / f"{STORE_FILE}-wal").stat().st_size > 0
    before = snapshot(aside)
    found = only(aside)
    assert snapshot(aside) == before
    assert (found["status"], found["subject"]) == ("warning", "empty-0")
    assert "belongs to no topic" in found["text"]


# --- what is in it


def test_a_partition_that_lost_its_directory_is_a_problem(data: Path) -> None:
    shutil.rmtree(data / "orders-1")
    found = only(data)
    assert found["status"] == "problem"
    assert "orders-1: there is no directory" in found["text"]


def test_a_partition_in_two_directories_is_a_problem(data: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    shutil.copytree(data / "orders-1", second / "orders-1")
    result = CliRunner().invoke(cli, ["doctor", "--json", "--port", "0", "--set", f"log.dirs={data},{second}"])
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert any(one["status"] == "problem" and "are the same partition" in one["text"] for one in found)


def test_directories_of_no_topic_are_told_of(data: Path) -> None:
    shutil.copytree(data / "empty-0", data / "unknown-0")
    assert "unknown-0" in only(data)["text"]
    shutil.rmtree(data / "unknown-0")
    (data / f"old-0.{'0' * 32}-stray").mkdir()
    assert "set aside" in only(data)["text"]
    (data / f"old-0.{'0' * 32}-stray").rename(data / f"old-0.{'0' * 32}-delete")
    assert bad(data) == []
    assert any("still to be removed" in found["text"] for found in findings(data))


def test_a_directory_of_a_former_topic_of_that_name_is_told_of(data: Path) -> None:
    shutil.copy(data / "orders-0" / PARTITION_METADATA, data / "empty-0" / PARTITION_METADATA)
    found = only(data)
    assert (found["status"], found["subject"]) == ("warning", "empty-0")
    assert "another topic of that name" in found["text"]


@pytest.mark.parametrize(
    "path",
    [
        RECOVERY_POINTS,
        LOG_START_OFFSETS,
        CLEANER_OFFSETS,
        f"orders-0/{LEADER_EPOCHS}",
        "orders-0/00000000000000000014.snapshot",
    ],
)
def test_a_small_file_that_cannot_be_read_is_a_warning(data: Path, path: str) -> None:
    (data / path).write_text("nonsense")
    found = only(data)
    assert found["status"] == "warning"
    assert path.rpartition("/")[2] in found["text"]


def test_an_unclean_stop_says_how_much_the_next_start_reads(data: Path) -> None:
    crash(data)
    found = only(data)
    assert found["status"] == "warning"
    assert "the last stop was not clean" in found["text"]
    last = segments(data)[-1]
    assert f"{last.stat().st_size / 1024:.1f} KiB" in found["text"]
    set_recovery_point(data, 0)
    everything = sum(path.stat().st_size for path in segments(data))
    assert f"{everything / (1 << 20):.1f} MiB" in only(data)["text"]


# --- damage


def test_a_torn_end_after_a_crash_is_a_warning_that_says_where_it_is_cut(data: Path) -> None:
    crash(data)
    last = segments(data)[-1]
    whole = last.stat().st_size
    with last.open("ab") as log:
        log.write(struct.pack(">qi", _BATCHES, 1000) + bytes(50))
    stop, torn = bad(data)
    assert "not clean" in stop["text"]
    assert (torn["status"], torn["subject"]) == ("warning", "orders-0")
    assert f"at position {whole} (offset {_BATCHES})" in torn["text"]
    assert "drops 62 bytes" in torn["text"]


def test_a_torn_end_after_a_clean_stop_is_a_problem(data: Path) -> None:
    with segments(data)[-1].open("ab") as log:
        log.write(bytes(62))
    found = only(data)
    assert found["status"] == "problem"
    assert CLEAN_SHUTDOWN in found["advice"]


@pytest.mark.parametrize(
    ("recovery_point", "status"), [(_BATCHES, "problem"), (0, "warning")], ids=["synced", "not synced"]
)
def test_damage_is_told_from_the_traces_of_a_crash_by_the_recovery_point(
    data: Path, recovery_point: int, status: str
) -> None:
    crash(data)
    set_recovery_point(data, recovery_point)
    last = segments(data)[-1]
    flip(last, last.stat().st_size - 1)
    _, damage = bad(data)
    assert damage["status"] == status
    assert "the CRC of the batch" in damage["text"]


def test_damage_at_the_beginning_of_the_first_segment_is_found_at_once(data: Path) -> None:
    first, second = segments(data)[:2]
    flip(first, 16)
    found = only(data)
    assert found["status"] == "problem"
    assert f"{first} at position 0 (offset 0)" in found["text"]
    assert f"at offset {int(second.stem)}" in found["advice"]


def test_damage_in_the_middle_is_found_by_a_deep_check_only(data: Path) -> None:
    middle = segments(data)[1]
    flip(middle, middle.stat().st_size // 2)
    assert bad(data) == []
    found = only(data, "--deep")
    assert found["status"] == "problem"
    assert str(middle) in found["text"]
    assert doctor(data, "--deep").exit_code == 2


def test_indexes_that_are_gone_or_nonsense_are_nothing_to_worry_about(data: Path) -> None:
    """They are made anew from the log."""
    for path in (data / "orders-0").glob("*.index"):
        path.write_bytes(b"\xff" * 16)
    for path in (data / "orders-0").glob("*.timeindex"):
        path.unlink()
    assert bad(data) == []
