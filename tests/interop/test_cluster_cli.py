"""`tailrace cluster` and `tailrace store` as a person uses them: real processes, real stores."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess
from tests.support.brokers.cluster_process import ClusterBroker, coordination_store
from tests.support.brokers.local_cluster import free_ports, running_cluster
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.topics import create_topic, eventually, topic_names

TIMEOUT_SECONDS = 180


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(EXECUTABLE), *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


def ok(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(port: int) -> dict[str, Any]:
    done = run("cluster", "status", "--bootstrap", f"127.0.0.1:{port}", "--json")
    assert done.stdout, done.stderr
    state: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if state["offline"] or state.get("refusing_writes") else 0)
    return state


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool]) -> None:
    failure: list[AssertionError] = []

    def holds() -> bool:
        failure.clear()
        try:
            return condition()
        except AssertionError as error:  # a broker that is busy, or about to go, may once not answer in time
            failure.append(error)
            return False

    assert eventually(holds, timeout_seconds=TIMEOUT_SECONDS), failure


def test_a_local_cluster_is_started_looked_at_and_stopped(tmp_path: Path) -> None:
    port = free_ports(3)
    with running_cluster(tmp_path / "cluster", port):
        state = status(port)
        assert [(each["id"], each["port"]) for each in state["brokers"]] == [(n, port + n - 1) for n in (1, 2, 3)]
        pids = [each["pid"] for each in state["brokers"]]
        assert all(is_alive(pid) for pid in pids)
        assert state["controller"] in (1, 2, 3)
        bootstrap = f"127.0.0.1:{port},127.0.0.1:{port + 1},127.0.0.1:{port + 2}"
        ok("topic", "create", "orders", "--partitions", "6", "--bootstrap", bootstrap)
        wait_for(lambda: len(status(port)["partitions"]) == 6 and not status(port)["under_replicated"])
        state = status(port)
        assert all(len(each["replicas"]) == 3 for each in state["partitions"]), "three copies by default"
        assert sorted(state["leaders"].values()) == [2, 2, 2]
        text = ok("cluster", "status", "--bootstrap", bootstrap)
        assert "3 brokers" in text
        assert "all partitions have a leader, and all replicas are in sync" in text
        sent = [Record(value=str(number).encode()) for number in range(300)]
        ConfluentClient(bootstrap).produce("orders", sent)
    assert not any(is_alive(pid) for pid in pids)


def test_a_broker_of_a_local_cluster_that_is_killed_is_missed_and_may_come_back(tmp_path: Path) -> None:
    port = free_ports(3)
    directory = tmp_path / "cluster"
    with running_cluster(directory, port) as cluster:
        bootstrap = f"127.0.0.1:{port},127.0.0.1:{port + 1},127.0.0.1:{port + 2}"
        ok("topic", "create", "orders", "--partitions", "6", "--bootstrap", bootstrap)
        wait_for(lambda: not status(port)["under_replicated"])
        victim = next(each for each in status(port)["brokers"] if each["id"] == 2)
        os.kill(victim["pid"], signal.SIGKILL)
        wait_for(lambda: [each["id"] for each in status(port)["brokers"]] == [1, 3])
        wait_for(lambda: not status(port)["offline"])
        wait_for(lambda: len(status(port)["under_replicated"]) == 6)
        said_status = ok("cluster", "status", "--bootstrap", bootstrap)
        assert "under-replicated" in said_status
        assert "broker 2 is missing: it holds replicas of 6 partitions" in said_status
        assert status(port)["missing_brokers"] == [2]
        ok("config", "set", "topic", "orders", "min.insync.replicas=3", "--bootstrap", bootstrap)
        wait_for(lambda: len(status(port)["refusing_writes"]) == 6)
        done = run("cluster", "status", "--bootstrap", bootstrap)
        assert done.returncode == 1
        assert "6 partitions refusing writes with acks=all" in done.stdout
        done = run("produce", "orders", "--value", "too few", "--timeout", "4", "--bootstrap", bootstrap)
        assert done.returncode == 1
        why = "refuses writes: 2 of 3 replicas are in sync, and min.insync.replicas=3; not running: broker 2"
        warning, _, failure = done.stderr.splitlines()
        assert warning.startswith("Warning: 1 not acknowledged yet: orders-")
        assert why in warning
        assert failure.startswith("Error: 1 record was not acknowledged: ")
        assert why in failure
        logs = [(directory / f"broker-{number}.log").read_text() for number in (1, 3)]
        assert any("refuses writes with acks=all: 2 of 3 replicas are in sync" in log for log in logs)
        ok("config", "set", "topic", "orders", "--delete", "min.insync.replicas", "--bootstrap", bootstrap)
        assert cluster.stderr is not None
        # A busy machine may have given it other things to say before.
        said = next(line for line in cluster.stderr if " exited: " in line)
        assert f"broker 2 (pid {victim['pid']}) exited: killed by SIGKILL" in said
        ConfluentClient(bootstrap).produce("orders", [Record(value=b"still there")])
        again = ClusterBroker(2, directory / "broker-2", f"unix://{directory / 'store.sock'}", {})
        again.port = port + 1
        with again:
            wait_for(lambda: not status(port)["under_replicated"])
            assert ok("cluster", "elect-leaders", "--bootstrap", bootstrap)
            wait_for(lambda: sorted(status(port)["leaders"].values()) == [2, 2, 2])


def test_a_local_cluster_goes_on_where_it_was_and_may_grow(tmp_path: Path) -> None:
    port = free_ports(4)
    directory = tmp_path / "cluster"
    with running_cluster(directory, port, 2):
        create_topic(f"127.0.0.1:{port}", "orders", partitions=2)
        ConfluentClient(f"127.0.0.1:{port}").produce("orders", [Record(value=b"kept", partition=1)])
    done = run("cluster", "start", "--brokers", "1", "--data-dir", str(directory), "--port", str(port))
    assert done.returncode == 1
    assert "has the records of 2 brokers: start all of them with --brokers 2" in done.stderr
    with running_cluster(directory, port, 3):
        assert topic_names(f"127.0.0.1:{port}") == ["orders"]
        (received,) = ConfluentClient(f"127.0.0.1:{port}").consume("orders", 1, 1)
        assert received.value == b"kept"
        assert len(status(port)["brokers"]) == 3


def test_features_are_shown_downgraded_and_upgraded(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        to = ("--bootstrap", broker.bootstrap)
        create_topic(broker.bootstrap, "orders", partitions=2)
        shown = [line.split() for line in ok("cluster", "features", *to).splitlines() if line]
        assert shown == [
            ["FEATURE", "SUPPORTED", "FINALIZED"],
            ["tailrace.version", "1", "to", "3", "3"],
            ["transaction.version", "0", "to", "2", "2"],
            ["epoch", "0"],
        ]
        assert ok("cluster", "features", "downgrade", "tailrace.version=1", "--dry-run", *to) == (
            "tailrace.version=1 can be finalized\n"
        )
        assert ok("cluster", "features", "downgrade", "tailrace.version=1", *to) == "finalized tailrace.version=1\n"
        state = {"name": "tailrace.version", "lowest": 1, "highest": 3, "level": 1}
        other = {"name": "transaction.version", "lowest": 0, "highest": 2, "level": 2}
        assert json.loads(ok("cluster", "features", "--json", *to)) == {"epoch": 1, "features": [state, other]}
        for level, reason in (
            (
                "9",
                "=9 failed: Invalid update version 9 for feature tailrace.version. Broker 1 only supports",
            ),
            ("x", "'x' is not a level"),
        ):
            done = run("cluster", "features", "upgrade", f"tailrace.version={level}", *to)
            assert done.returncode != 0
            assert reason in done.stderr
        assert ok("cluster", "features", "upgrade", "tailrace.version=3", *to) == "finalized tailrace.version=3\n"
        assert json.loads(ok("cluster", "features", "--json", *to))["epoch"] == 2


def test_ports_in_use_are_refused_before_anything_is_started(tmp_path: Path) -> None:
    port = free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        done = run("cluster", "start", "--data-dir", str(tmp_path / "cluster"), "--port", str(port))
    assert done.returncode == 1
    assert f"cannot use port {port + 1} of 127.0.0.1 (Address already in use)" in done.stderr
    assert not list((tmp_path / "cluster").glob("broker-*"))


def test_brokers_end_with_their_supervisor_however_that_ends(tmp_path: Path) -> None:
    port = free_ports(3)
    with running_cluster(tmp_path / "cluster", port) as cluster:
        pids = [each["pid"] for each in status(port)["brokers"]]
        cluster.kill()
        cluster.wait()
        wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_two_brokers_with_one_id_are_refused(tmp_path: Path) -> None:
    port = free_ports(3)
    directory = tmp_path / "cluster"
    # The second waits for the session of the first, which a busy machine must not let end.
    session = ("--set", "broker.session.timeout.ms=10000")
    with running_cluster(directory, port, 2, *session):
        done = run(
            *("serve", "--node-id", "2", "--data-dir", str(tmp_path / "other"), "--port", str(port + 2)),
            *("--coordination", f"unix://{directory / 'store.sock'}", *session),
        )
        assert done.returncode == 1
        assert f"node.id=2 is already registered by a broker at 127.0.0.1:{port + 1}" in done.stderr
        assert "give this one another --node-id" in done.stderr
        assert len(status(port)["brokers"]) == 2


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_a_single_broker_moves_to_a_cluster_with_all_it_has(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as alone:
        create_topic(alone.bootstrap, "orders", partitions=3, retention_ms="86400000")
        ConfluentClient(alone.bootstrap).produce("orders", [Record(value=b"kept", partition=2)])
        consumer = ConfluentClient(alone.bootstrap).consumer(group_id="workers", auto_offset_reset="earliest")
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while consumer.poll(0.2) is None:
            assert time.monotonic() < deadline
        consumer.commit(asynchronous=False)
        consumer.close()
        running = run("store", "migrate", "--data-dir", str(data), "--to", "etcd://127.0.0.1:1/never")
        assert running.returncode == 1
        assert "another broker is running on" in running.stderr
    with coordination_store(kind, tmp_path / "store") as url:
        printed = ok("store", "migrate", "--data-dir", str(data), "--to", url)
        assert f"tailrace serve --data-dir {data} --coordination {url}" in printed
        again = run("store", "migrate", "--data-dir", str(data), "--to", url)
        assert again.returncode == 1
        assert "already has the metadata of this cluster" in again.stderr
        old = run("serve", "--data-dir", str(data), "--port", "0")
        assert old.returncode == 1
        assert f"was moved to {url}" in old.stderr
        first = ClusterBroker(1, data, url, {})
        second = ClusterBroker(2, tmp_path / "second", url, {})
        with first, second:
            (received,) = ConfluentClient(first.bootstrap).consume("orders", 2, 1)
            assert received.value == b"kept"
            assert "86400000" in ok("topic", "describe", "orders", "--bootstrap", first.bootstrap)
            features = json.loads(ok("cluster", "features", "--json", "--bootstrap", second.bootstrap))["features"]
            assert all(each["level"] == each["highest"] for each in features), "not those of a new cluster"
            described = ok("group", "describe", "workers", "--bootstrap", second.bootstrap)
            assert "orders" in described
            wait_for(lambda: not status(first.port)["under_replicated"])
            offsets = [each for each in status(first.port)["partitions"] if each["topic"] == "__consumer_offsets"]
            assert all(sorted(each["isr"]) == [1, 2] for each in offsets), "internal topics get copies by themselves"
