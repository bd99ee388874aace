"""Backups made with the commands in docs/operations.md are restored completely."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.client import Producer, read
from tests.fault.conftest import MakeBroker
from tests.support.brokers.broker_process import EXECUTABLE
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.topics import create_topic

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TOPICS = ("orders", "payments")
PARTITIONS = 3
_TIMEOUT_SECONDS = 180
#: So that segments roll during the copy: the smallest size, and a fifth of it.
_SEGMENT_BYTES = str(1 << 20)
_VALUE = "x" * 200_000


def run_from_page(name: str, **places: Path) -> None:
    """Run a block of the page, with its variables set."""
    found = re.search(rf"```sh {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"the page has no block {name}"
    path = f"{EXECUTABLE.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **{key: str(value) for key, value in places.items()}}
    done = subprocess.run(
        ["sh", "-u", "-c", found[1]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    # With exit code 1 doctor reports warnings, which a restored backup of a running broker may have.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "problem  " not in done.stdout, done.stdout


def contents(broker: WatchedBroker) -> dict[tuple[str, int], list[str]]:
    """The values in each partition, without their padding."""
    logs: dict[tuple[str, int], list[str]] = {(topic, number): [] for topic in TOPICS for number in range(PARTITIONS)}
    for topic in TOPICS:
        with read(topic, bootstrap=broker.bootstrap) as messages:
            for message in messages:
                assert message.value is not None
                assert message.offset == len(logs[topic, message.partition])
                logs[topic, message.partition].append(message.value.decode().rstrip("x"))
    return logs


class Load:
    """Two producers that run until told to stop; a record counts once it is acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(topic,)) for topic in TOPICS]
        self._errors: list[BaseException] = []
        self.rounds = dict.fromkeys(TOPICS, 0)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self._errors == []

    def _send(self, topic: str) -> None:
        try:
            with Producer(self._bootstrap) as producer:
                while not self._stop.is_set():
                    number = self.rounds[topic]
                    for partition in range(PARTITIONS):
                        producer.send(topic, f"{number}{_VALUE}", partition=partition)
                    producer.flush()
                    self.rounds[topic] = number + 1
        except BaseException as error:  # noqa: BLE001  told to the test when it ends
            self._errors.append(error)

    def wait_for(self, rounds: int) -> dict[str, int]:
        """Wait until every topic has this many more rounds; return the rounds of each."""
        goal = {topic: number + rounds for topic, number in self.rounds.items()}
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while any(self.rounds[topic] < goal[topic] for topic in TOPICS):
            assert self._errors == []
            assert time.monotonic() < deadline, f"{self.rounds} of {goal} after {_TIMEOUT_SECONDS} s"
            time.sleep(0.02)
        return dict(self.rounds)


@pytest.fixture
def broker(make_broker: MakeBroker) -> WatchedBroker:
    broker = make_broker()
    for topic in TOPICS:
        create_topic(broker.bootstrap, topic, partitions=PARTITIONS, segment_bytes=_SEGMENT_BYTES)
    return broker


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[WatchedBroker]:
    """A broker, not yet started, on the directory that a restore fills."""
    broker = WatchedBroker(tmp_path / "restored")
    yield broker
    if broker.is_running:
        broker.stop()


def test_a_copy_of_a_stopped_broker_is_the_broker(
    broker: WatchedBroker, restored: WatchedBroker, tmp_path: Path
) -> None:
    with Load(broker.bootstrap) as load:
        load.wait_for(10)
    before = contents(broker)
    broker.stop()
    run_from_page("cold-backup", DATA=broker.data_dir, BACKUP=tmp_path / "backup")
    run_from_page("restore", BACKUP=tmp_path / "backup", RESTORED=restored.data_dir)
    restored.start()
    assert contents(restored) == before


def test_a_copy_made_under_load_holds_all_that_was_acknowledged_before_it(
    broker: WatchedBroker, restored: WatchedBroker, tmp_path: Path
) -> None:
    with Load(broker.bootstrap) as load:
        promised = load.wait_for(10)
        run_from_page("hot-backup", DATA=broker.data_dir, BACKUP=tmp_path / "backup")
        load.wait_for(3)
    everything = contents(broker)
    segments = list((tmp_path / "backup" / "orders-0").glob("*.log"))
    assert len(segments) > 1, "a load under which no segment rolled"
    run_from_page("restore", BACKUP=tmp_path / "backup", RESTORED=restored.data_dir)
    restored.start()
    copied = contents(restored)
    for (topic, number), values in copied.items():
        assert values == everything[topic, number][: len(values)], "not what the broker had there"
        assert len(values) >= promised[topic]
    # Producers continue with it as with any broker, and none gets an id that is in the copied logs.
    with Producer(restored.bootstrap) as producer:
        producer.send("orders", "after the restore", partition=0)
    assert contents(restored)["orders", 0] == [*copied["orders", 0], "after the restore"]
    assert "Traceback" not in restored.all_error_output()


def test_doctor_says_what_is_wrong_with_half_a_backup(broker: WatchedBroker, tmp_path: Path) -> None:
    broker.stop()
    run_from_page("cold-backup", DATA=broker.data_dir, BACKUP=tmp_path / "backup")
    (tmp_path / "backup" / "metadata.sqlite").unlink()
    command = [str(EXECUTABLE), "doctor", "--data-dir", str(tmp_path / "backup"), "--port", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    assert done.returncode == 2
    problems = [line for line in map(json.loads, done.stdout.splitlines()) if line["status"] == "problem"]
    assert "the metadata store is empty" in problems[0]["text"]
