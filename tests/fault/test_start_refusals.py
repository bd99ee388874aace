"""A broker that cannot start says why in one line that tells what to do, ends with another code than 0, and harms
nothing: the data is served by the next broker that is started rightly."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.storage.directory_identity import CLEAN_SHUTDOWN, META_PROPERTIES
from tests.support.brokers.broker_process import EXECUTABLE, BrokerFailedError, free_port
from tests.support.brokers.small_disk import SmallDisk
from tests.support.brokers.watched_broker import WatchedBroker, small_batch

TOPIC = "kept"
_TIMEOUT_SECONDS = 180


def refusal_of(data_dir: Path, *settings: str, port: int | None = None) -> str:
    """Start a broker that must not start; return its only line."""
    command = [str(EXECUTABLE), "serve", "--data-dir", str(data_dir), "--port", str(port or free_port())]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    assert done.returncode not in (0, -6, -9, -11, -15), f"ended with {done.returncode}\n{done.stderr}"
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[WatchedBroker]:
    """A stopped broker with a topic and records."""
    broker = WatchedBroker(tmp_path / "data")
    broker.start()
    try:
        broker.create_topic(TOPIC)
        for _ in range(3):
            assert broker.produce(TOPIC, small_batch()).error_code == 0
        broker.stop()
        yield broker
    finally:
        if broker.is_running:
            broker.kill()


@contextmanager
def unharmed(broker: WatchedBroker) -> Iterator[None]:
    """Check that the block leaves the broker's data unchanged."""
    yield
    broker.start()
    assert broker.end_offset(TOPIC) == 3
    assert broker.produce(TOPIC, small_batch()).base_offset == 3
    broker.stop()


def test_a_port_in_use(stopped: WatchedBroker) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with unharmed(stopped):
            line = refusal_of(stopped.data_dir, port=port)
    assert str(port) in line
    assert "is in use" in line
    assert "--port" in line


def test_a_data_directory_that_another_broker_uses(stopped: WatchedBroker) -> None:
    stopped.start()
    line = refusal_of(stopped.data_dir)
    assert "another broker is running" in line
    assert "--data-dir" in line
    assert stopped.produce(TOPIC, small_batch()).base_offset == 3
    stopped.stop()


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0:  # as root, only a read-only file system prevents writes
        with SmallDisk(tmp_path / "disk", 1) as disk:
            disk.make_read_only()
            line = refusal_of(disk.path / "data")
    else:
        (tmp_path / "disk").mkdir(mode=0o500)
        line = refusal_of(tmp_path / "disk" / "data")
    assert "cannot use the data directory" in line


def test_a_data_directory_that_became_read_only(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 8) as disk:
        with WatchedBroker(disk.path / "data"):
            pass
        disk.make_read_only()
        line = refusal_of(disk.path / "data")
    assert "cannot use the data directory" in line


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("not a directory")
    command = [str(EXECUTABLE), "serve", "--data-dir", str(path), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "is a file" in done.stderr


def test_a_data_directory_of_another_node(stopped: WatchedBroker) -> None:
    with unharmed(stopped):
        line = refusal_of(stopped.data_dir, "node.id=2")
    assert "node.id=1" in line
    assert "--data-dir" in line


def test_a_data_directory_of_another_cluster(stopped: WatchedBroker) -> None:
    other = WatchedBroker(stopped.data_dir, config={"cluster.id": "another-cluster"})
    try:
        with pytest.raises(BrokerFailedError, match="another-cluster"):
            other.start()
    finally:
        if other.is_running:
            other.stop()


def test_a_newer_format_of_the_data_directory(stopped: WatchedBroker) -> None:
    path = stopped.data_dir / META_PROPERTIES
    content = path.read_text()
    path.write_text(content.replace("version=1", "version=2"))
    line = refusal_of(stopped.data_dir)
    assert "version=2" in line
    assert "newer version" in line
    path.write_text(content)
    with unharmed(stopped):
        pass


def test_a_newer_format_of_the_metadata_store(stopped: WatchedBroker) -> None:
    path = stopped.data_dir / "metadata.sqlite"
    with unharmed(stopped):
        before = set_store_format(path, 99)
        line = refusal_of(stopped.data_dir)
        set_store_format(path, before)
    assert "format 99" in line
    assert "newer version" in line


def set_store_format(path: Path, version: int) -> int:
    """Write another format into the store; return the previous one."""
    store = sqlite3.connect(path)
    (before,) = store.execute("PRAGMA user_version").fetchone()
    store.execute(f"PRAGMA user_version={version}")
    store.close()
    found: int = before
    return found


def test_a_metadata_store_that_is_something_else(stopped: WatchedBroker) -> None:
    path = stopped.data_dir / "metadata.sqlite"
    path.write_bytes(b"this is not a database file, whatever its name says" * 100)
    assert "metadata.sqlite" in refusal_of(stopped.data_dir)


def test_a_refused_start_does_not_pass_a_crashed_directory_off_as_cleanly_stopped(stopped: WatchedBroker) -> None:
    """A start that is refused before recovery must leave recovery to the next one."""
    stopped.start()
    stopped.kill()
    with (stopped.data_dir / f"{TOPIC}-0" / f"{0:020d}.log").open("ab") as log:
        log.write(b"\0" * 30)  # what an interrupted write may leave
    refusal_of(stopped.data_dir, "node.id=2")
    assert not (stopped.data_dir / CLEAN_SHUTDOWN).exists()
    with unharmed(stopped):
        pass
