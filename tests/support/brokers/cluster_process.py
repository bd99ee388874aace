"""A cluster of real brokers, each in its own process, over a real coordination store: local, etcd or ZooKeeper.

Owns the processes. It ends only what it started, by its pid. It must not know pytest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tailrace.client.cluster import ClusterState, describe_cluster
from tailrace.client.errors import ClientError
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.stores.etcd_process import EtcdCluster
from tests.support.stores.store_process import READY
from tests.support.stores.zookeeper_process import ZooKeeperEnsemble

#: The output of `tailrace cluster status --json`, without pids.
Status: TypeAlias = dict[str, Any]

STORES = ("local", "etcd", "zookeeper")
SESSION_TIMEOUT_MS = 3000
#: Much more than necessary, even on a busy machine: it only ends endless waits.
_PATIENCE_SECONDS = 180.0
_POLL_SECONDS = 0.05


class NobodyAnswersError(AssertionError):
    """No broker reports the state of the cluster."""


class ClusterBroker(WatchedBroker):
    """One broker of a cluster."""

    def __init__(self, number: int, data_dir: Path, coordination: str, config: Mapping[str, str]) -> None:
        settings = {"node.id": str(number), "tailrace.coordination": coordination, **config}
        super().__init__(data_dir, config=settings)
        self.number = number
        self.is_paused = False

    def configure(self, **config: str) -> None:
        """Set more keys from the next start on, with `_` for `.` in names."""
        self._config.update({name.replace("_", "."): value for name, value in config.items()})

    def pause(self) -> None:
        """Stop the process with SIGSTOP: its connections stay, and nobody answers."""
        self.is_paused = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        super().kill()
        self.is_paused = False


class ClusterProcess:
    """Three brokers, or another number."""

    def __init__(self, directory: Path, coordination: str, brokers: int = 3, **config: str) -> None:
        names = {
            "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "default.replication.factor": str(min(brokers, 3)),
            "offsets.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        self.coordination = coordination
        self.brokers = [
            ClusterBroker(number, directory / f"broker-{number}", coordination, names)
            for number in range(1, brokers + 1)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def __enter__(self) -> ClusterProcess:
        # If one does not start, the running ones are ended.
        with ExitStack() as stack:
            stack.push(self.__exit__)
            for broker in self.brokers:
                broker.start()
            self.wait_for(lambda state: len(state["brokers"]) == len(self.brokers) and state["controller"] is not None)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # Each is ended, even if an earlier one does not end properly.
        with ExitStack() as stack:
            for broker in reversed(self.brokers):
                stack.callback(_end, broker)

    def heal(self) -> None:
        """Start brokers that do not run, resume paused ones, and wait until all replicas are in sync."""
        for broker in self.brokers:
            if broker.is_running:
                broker.resume()
            else:
                broker.start()
        self.wait_until_whole()

    def broker(self, number: int) -> ClusterBroker:
        return self.brokers[number - 1]

    def status(self) -> Status:
        """What `tailrace cluster status --json` says, of the first broker that knows; asked as that command asks.

        One that is cut off from the store, as after a pause, tells what it knew: it is believed where all are.
        """
        failure = "no broker runs"
        outdated: Status | None = None
        for broker in self.brokers:
            if not broker.is_running or broker.is_paused:
                continue
            try:
                state = _as_json(describe_cluster(broker.bootstrap))
            except ClientError as error:
                failure = str(error)
                continue
            if state["warning"] is None:
                return state
            outdated = outdated or state
        if outdated is not None:
            return outdated
        raise NobodyAnswersError(f"nobody says how the cluster is: {failure}")

    def wait_for(self, condition: Callable[[Status], bool], what: str = "all brokers to be there") -> Status:
        """Wait until a condition on the cluster's status holds; return the status."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                state = self.status()
                if condition(state):
                    return state
                seen = str(state)
            except NobodyAnswersError as error:  # on a busy machine an answer may take too long once
                seen = str(error)
            if time.monotonic() > deadline:
                output = "\n".join(f"--- broker {b.number}\n{b.error_output()[-1500:]}" for b in self.brokers)
                raise AssertionError(f"waited in vain for {what}; it is {seen}\n{output}")
            time.sleep(_POLL_SECONDS)

    def wait_until_whole(self) -> Status:
        """Wait until every broker runs and all replicas are in sync."""
        return self.wait_for(
            lambda state: (
                len(state["brokers"]) == sum(broker.is_running for broker in self.brokers)
                and not state["under_replicated"]
                and not state["offline"]
            ),
            "all replicas to be in sync",
        )

    def leader_of(self, topic: str, partition: int) -> ClusterBroker:
        """The broker that leads a partition; waits for one."""

        def leader(state: Status) -> int | None:
            for each in state["partitions"]:
                if (each["topic"], each["partition"]) == (topic, partition):
                    found: int | None = each["leader"]
                    return found
            return None

        return self.broker(leader(self.wait_for(lambda state: leader(state) is not None, "a leader")) or 0)


def _end(broker: ClusterBroker) -> None:
    if broker.is_running:
        os.kill(broker.pid, signal.SIGCONT)
        broker.stop()


def _as_json(state: ClusterState) -> Status:
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "warning": state.warning,
        "brokers": [
            {"id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
            for broker in state.brokers
        ],
        "topics": state.topics,
        "leaders": {str(broker_id): count for broker_id, count in state.leaders.items()},
        "under_replicated": [f"{each.topic}-{each.partition}" for each in state.partitions if each.is_under_replicated],
        "offline": [f"{each.topic}-{each.partition}" for each in state.partitions if each.is_offline],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
            }
            for each in state.partitions
        ],
    }


@contextmanager
def coordination_store(kind: str, directory: Path) -> Iterator[str]:
    """A coordination store of a kind, and its address."""
    with ExitStack() as stack:
        if kind == "etcd":
            etcd = stack.enter_context(EtcdCluster(directory / "etcd"))
            yield f"etcd://{','.join(etcd.endpoints)}/tailrace"
        elif kind == "zookeeper":
            ensemble = stack.enter_context(ZooKeeperEnsemble(directory / "zookeeper"))
            yield f"zookeeper://{','.join(ensemble.endpoints)}/tailrace"
        else:
            directory.mkdir(parents=True, exist_ok=True)
            with _served_store(directory / "metadata.sqlite", directory / "store.sock"):
                yield f"unix://{directory / 'store.sock'}"


@contextmanager
def _served_store(database: Path, socket_path: Path) -> Iterator[None]:
    """The store of a local cluster, as its supervisor serves it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.stores.store_process", "serve", str(database), str(socket_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
