"""A cluster of real brokers, each in its own process, over a real coordination store: local, etcd or ZooKeeper.

Owns the processes. It ends only what it started, by its pid. It must not know pytest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.broker_process import EXECUTABLE
from tests.support.etcd_process import EtcdCluster
from tests.support.store_process import READY
from tests.support.watched_broker import WatchedBroker
from tests.support.zookeeper_process import ZooKeeperEnsemble

#: What `tailrace cluster status --json` says.
Status: TypeAlias = dict[str, Any]

STORES = ("local", "etcd", "zookeeper")
SESSION_TIMEOUT_MS = 3000
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05


class ClusterBroker(WatchedBroker):
    """One broker of a cluster."""

    def __init__(self, number: int, data_dir: Path, coordination: str, config: Mapping[str, str]) -> None:
        settings = {"node.id": str(number), "tailrace.coordination": coordination, **config}
        super().__init__(data_dir, config=settings)
        self.number = number

    def configure(self, **config: str) -> None:
        """Set more from the next start on, with `_` for `.` in names."""
        self._config.update({name.replace("_", "."): value for name, value in config.items()})

    def pause(self) -> None:
        """Stop the process with SIGSTOP: its connections stay, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class ClusterProcess:
    """Three brokers, or as many as asked for."""

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
        for broker in self.brokers:
            broker.start()
        self.wait_for(lambda state: len(state["brokers"]) == len(self.brokers) and state["controller"] is not None)
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            if broker.is_running:
                os.kill(broker.pid, signal.SIGCONT)
                broker.stop()

    def broker(self, number: int) -> ClusterBroker:
        return self.brokers[number - 1]

    def status(self) -> Status:
        """What `tailrace cluster status` says, asked of the first broker that answers."""
        failure = "no broker runs"
        for broker in self.brokers:
            if not broker.is_running:
                continue
            done = subprocess.run(
                [str(EXECUTABLE), "cluster", "status", "--bootstrap", broker.bootstrap, "--json"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if done.returncode == 0:
                state: Status = json.loads(done.stdout)
                return state
            failure = done.stderr
        raise AssertionError(f"nobody says how the cluster is: {failure}")

    def wait_for(self, condition: Callable[[Status], bool], what: str = "all brokers to be there") -> Status:
        """Wait until a condition on the cluster's status holds; the status then."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            state = self.status()
            if condition(state):
                return state
            if time.monotonic() > deadline:
                output = "\n".join(f"--- broker {b.number}\n{b.error_output()[-1500:]}" for b in self.brokers)
                raise AssertionError(f"waited in vain for {what}; it is {state}\n{output}")
            time.sleep(_POLL_SECONDS)

    def wait_until_whole(self) -> Status:
        """Wait until every broker is there and every partition has all its replicas in sync."""
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
        [sys.executable, "-m", "tests.support.store_process", "serve", str(database), str(socket_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
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
