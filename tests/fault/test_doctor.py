"""`tailrace doctor` on real brokers: one that runs, one that was killed, and one with damaged files.

The tests compare its predictions with what a broker then does.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tailrace.storage.directory_identity import CLEAN_SHUTDOWN
from tests.fault.conftest import MakeBroker
from tests.support.brokers.broker_process import EXECUTABLE, BrokerFailedError, free_port
from tests.support.brokers.local_cluster import free_ports, running_cluster
from tests.support.brokers.watched_broker import WatchedBroker, small_batch

TOPIC = "orders"
_TIMEOUT_SECONDS = 180


class Examination(NamedTuple):
    """What doctor printed, and how it ended."""

    code: int
    findings: list[dict[str, Any]]

    def texts(self, status: str) -> list[str]:
        return [f"{found['subject']}: {found['text']}" for found in self.findings if found["status"] == status]

    def about(self, *words: str) -> list[dict[str, Any]]:
        return [found for found in self.findings if all(word in found["text"] for word in words)]


def doctor(data_dir: Path, port: int, *options: str) -> Examination:
    command = [str(EXECUTABLE), "doctor", "--data-dir", str(data_dir), "--port", str(port), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    assert done.stderr == ""
    return Examination(done.returncode, [json.loads(line) for line in done.stdout.splitlines()])


def names_in(directory: Path) -> list[str]:
    """Every name below a directory, except the files that a running broker writes periodically."""
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
    return [name for name in names if not name.endswith(("-checkpoint", ".tmp"))]


@pytest.fixture
def broker(make_broker: MakeBroker) -> WatchedBroker:
    """A broker with a topic and a few records."""
    broker = make_broker()
    broker.create_topic(TOPIC)
    for number in range(20):
        assert broker.produce(TOPIC, small_batch(b"%d" % number)).error_code == 0
    return broker


def test_a_running_broker_is_recognised_and_goes_on(broker: WatchedBroker) -> None:
    before = names_in(broker.data_dir)
    for options in ([], ["--deep"]):
        found = doctor(broker.data_dir, broker.port, *options)
        assert found.texts("problem") == []
        assert found.about(f"a broker is using it (pid {broker.pid})")
        assert found.about(f"the running broker listens on it (pid {broker.pid})")
        assert found.about("metadata.sqlite is sound", "1 topic, 1 partition")
        assert not found.about("last stop")
    assert names_in(broker.data_dir) == before
    assert broker.end_offset(TOPIC) == 20
    broker.serve_once(TOPIC)
    broker.restart()
    assert broker.end_offset(TOPIC) == 21
    assert "Traceback" not in broker.all_error_output()


def test_a_broker_under_load_shows_no_damage(broker: WatchedBroker) -> None:
    """A batch that is being written looks torn and is not."""
    done = threading.Event()
    failures: list[object] = []

    def load() -> None:
        batch = small_batch(bytes(100_000))
        while not done.is_set():
            answer = broker.produce(TOPIC, batch)
            if answer.error_code != 0:
                failures.append(answer)

    sender = threading.Thread(target=load)
    sender.start()
    try:
        for _ in range(5):
            assert doctor(broker.data_dir, broker.port, "--deep").texts("problem") == []
    finally:
        done.set()
        sender.join()
    assert failures == []
    assert broker.end_offset(TOPIC) > 20


def test_another_brokers_port_is_a_problem_before_the_start_is(broker: WatchedBroker, tmp_path: Path) -> None:
    found = doctor(tmp_path / "other", broker.port)
    assert found.code == 2
    (problem,) = found.texts("problem")
    assert f"(pid {broker.pid})" in problem
    with pytest.raises(BrokerFailedError, match="is in use"):
        WatchedBroker(tmp_path / "other", port=broker.port).start()


def test_a_killed_broker_is_told_from_a_stopped_one(broker: WatchedBroker) -> None:
    broker.kill()
    found = doctor(broker.data_dir, broker.port)
    assert found.texts("problem") == []
    assert found.about("the last stop was not clean")
    assert found.about("it is writable, and no broker is using it")
    assert found.about(f"127.0.0.1:{broker.port} is free")
    broker.start()
    assert broker.end_offset(TOPIC) == 20
    broker.stop()
    assert doctor(broker.data_dir, broker.port).about("the last stop was clean")


def test_a_torn_write_is_cut_where_doctor_said(broker: WatchedBroker) -> None:
    broker.kill()
    log = broker.data_dir / f"{TOPIC}-0" / f"{0:020d}.log"
    whole = log.stat().st_size
    with log.open("ab") as stream:
        stream.write(small_batch(b"lost")[:70])
    found = doctor(broker.data_dir, broker.port)
    assert found.texts("problem") == []
    (torn,) = found.about(f"at position {whole} (offset 20)")
    assert "drops 70 bytes" in torn["text"]
    broker.start()
    assert f"at position {whole} (offset 20): dropped 70 bytes of an unfinished write" in broker.error_output()
    assert broker.end_offset(TOPIC) == 20


def test_damage_after_a_clean_stop_is_a_problem_and_the_advice_helps(broker: WatchedBroker) -> None:
    broker.stop()
    log = broker.data_dir / f"{TOPIC}-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    batch = len(small_batch(b"0"))
    content[10 * batch + 16] = 77  # the magic number of a batch in the middle
    log.write_bytes(content)
    found = doctor(broker.data_dir, broker.port)
    assert found.code == 2
    (damage,) = [one for one in found.findings if one["status"] == "problem"]
    assert f"at position {10 * batch}" in damage["text"]
    assert str(broker.data_dir / CLEAN_SHUTDOWN) in damage["advice"]
    # The advice without a backup: give up what follows the damage.
    os.remove(broker.data_dir / CLEAN_SHUTDOWN)
    broker.start()
    assert broker.end_offset(TOPIC) == 10
    broker.serve_once(TOPIC)


def test_a_directory_of_another_node_is_refused_by_both_with_the_same_words(broker: WatchedBroker) -> None:
    broker.stop()
    port = free_port()
    found = doctor(broker.data_dir, port, "--set", "node.id=2")
    assert found.code == 2
    (problem,) = found.texts("problem")
    with pytest.raises(BrokerFailedError) as refusal:
        WatchedBroker(broker.data_dir, port=port, config={"node.id": "2"}).start()
    assert problem.partition(": ")[2] in str(refusal.value)


def test_brokers_of_a_cluster_are_checked_against_its_store(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    port = free_ports(2)
    coordination = ("--coordination", f"unix://{directory}/store.sock")
    broker_2 = ("--node-id", "2", *coordination)
    with running_cluster(directory, port, 2):
        create = [*(str(EXECUTABLE), "topic", "create", TOPIC, "--replication-factor", "2")]
        subprocess.run([*create, "--bootstrap", f"127.0.0.1:{port}"], check=True, capture_output=True)
        running = doctor(directory / "broker-1", port, "--node-id", "1", *coordination, "--log-format", "json")
        assert running.texts("problem") == []
        assert running.about(f"unix://{directory}/store.sock is sound", "1 topic, 1 partition")
        of_another = doctor(directory / "broker-1", 0, *broker_2)
        assert of_another.code == 2
        assert of_another.about("node.id=1", "node.id=2")
        new = doctor(tmp_path / "new", 0, "--node-id", "3", *coordination, "--set", "min.insync.replicas=2")
        assert new.texts("problem") == []
        assert new.texts("warning") == []
    away = doctor(directory / "broker-2", 0, *broker_2)
    assert away.code == 2
    (problem,) = away.texts("problem")
    assert problem.startswith(f"metadata: cannot read unix://{directory}/store.sock: ")
    assert not away.about("metadata store is empty")


def test_a_replica_without_a_directory_is_a_problem_only_where_no_other_replica_can_fill_it(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    port = free_ports(2)
    with running_cluster(directory, port, 2):
        for topic, replicas in (("alone", "1"), ("copied", "2")):
            create = [str(EXECUTABLE), "topic", "create", topic, "--partitions", "2", "--replication-factor", replicas]
            subprocess.run([*create, "--bootstrap", f"127.0.0.1:{port}"], check=True, capture_output=True)
        # The empty directory of a broker that lost its disk.
        (tmp_path / "lost").mkdir()
        found = doctor(tmp_path / "lost", 0, "--coordination", f"unix://{directory}/store.sock", "--node-id", "2")
        (problem,) = found.texts("problem")
        assert problem.startswith("partitions: alone-")
        assert "copied" not in problem
        (warning,) = found.texts("warning")
        assert warning.startswith("partitions: copied-0, copied-1: ")
        assert "copies the leader's records" in warning
