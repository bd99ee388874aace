"""The workloads of consumer groups: the cost of a member's death, arrival or restart, and of maintaining groups.

Most of their time is spent waiting for sessions to expire and for members to learn of it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import ClassVar

from bench.clients.programs import measured, measured_from_ready, rawbench, rdbench, run_client
from bench.harness.failures import ClientFailedError
from bench.harness.suite import Metrics, OneSample
from bench.workloads.single import FEWEST_REQUESTS
from bench.workloads.target import Target

#: Kafka's minimum session timeout, so that no run waits longer than necessary; frequent heartbeats.
SESSION_MS = 6000
HEARTBEAT_MS = 500
#: Messages a second to each partition: a gap is measured to a fiftieth of a second.
RATE = 50
#: Enough for a broker that acknowledges commits together: most process only one request of a connection at a time.
CONNECTIONS = 100
#: After this many, a Java virtual machine has compiled what it needs for this kind of request.
WARM_UP_REQUESTS = 30_000


def newest_librdkafka() -> Path:
    """Return the library inside the confluent-kafka package: distributions' lack the consumer protocol."""
    package = util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        raise ClientFailedError("confluent-kafka is not installed: run make setup")
    found = sorted((Path(package.origin).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*"))
    if not found:
        raise ClientFailedError(
            "this confluent-kafka package was built without its own librdkafka; install its wheel from PyPI"
        )
    return found[0]


class GroupChange(OneSample[Target]):
    """Members in separate processes, steady traffic to every partition, and one change to the group."""

    event: ClassVar[str]
    protocol: str

    @property
    def name(self) -> str:
        return f"group-{self.event}-{self.protocol}"

    @abstractmethod
    def sizes(self, scale: float) -> tuple[int, int]:
        """Return the numbers of members and partitions."""

    def measure(self, target: Target) -> Metrics:
        members, partitions = self.sizes(target.scale)
        command = rdbench(
            "group",
            target.handle,
            self.name,
            event=self.event,
            protocol=self.protocol,
            members=members,
            partitions=partitions,
            rate=RATE,
            session_ms=SESSION_MS,
            heartbeat_ms=HEARTBEAT_MS,
        )
        return measured(target.system, ["env", f"LD_PRELOAD={newest_librdkafka()}", *command])


@dataclass(frozen=True, slots=True)
class GroupKill(GroupChange):
    """From SIGKILL of a member to the first messages that others read from each of its partitions."""

    protocol: str
    event = "kill"
    judged_by = ("takeover_s", "kept_pause_ms", "rss_mb")
    expected_seconds = 18.0

    def sizes(self, scale: float) -> tuple[int, int]:
        return 4, 12


@dataclass(frozen=True, slots=True)
class GroupJoin(GroupChange):
    """One more member: the time until it has its share, and the pause of members that keep their partitions."""

    protocol: str
    event = "join"
    judged_by = ("settled_s", "kept_pause_ms", "rss_mb")
    expected_seconds = 15.0

    def sizes(self, scale: float) -> tuple[int, int]:
        return 4, 12


@dataclass(frozen=True, slots=True)
class GroupRestart(GroupChange):
    """Ten members restarted one after the other, each when all partitions are read again."""

    protocol: str
    event = "restart"
    judged_by = ("restart_s", "longest_gap_ms", "typical_gap_ms", "rss_mb")
    expected_seconds = 60.0

    def sizes(self, scale: float) -> tuple[int, int]:
        members = max(round(10 * min(scale, 1.0)), 3)
        return members, 2 * members


@dataclass(frozen=True, slots=True)
class MemberRequests(OneSample[Target]):
    """Prepared requests of members that have joined, in turn; joining and leaving are not measured."""

    #: "heartbeat" or "commit", as the client names them.
    kind: str
    groups: int = 1
    members: int = 1
    judged_by = ("requests_s", "cpu_us_per_request", "p99_ms", "rss_mb")
    expected_seconds = 25.0

    @property
    def name(self) -> str:
        size = f"{self.groups}-groups" if self.groups > 1 else f"{self.members}-members"
        return f"{self.kind}s-{size}"

    def _options(self, target: Target) -> dict[str, object]:
        share = min(target.scale, 1.0)
        return {
            "groups": max(int(self.groups * share), min(self.groups, 10)),
            "members": max(int(self.members * share), min(self.members, 10)),
            "partitions": 50,
            "connections": CONNECTIONS,
            "in_flight": 1,
        }

    def prepare(self, target: Target) -> None:
        requests = max(int(WARM_UP_REQUESTS * min(target.scale, 1.0)), 1000)
        run_client(rawbench(self.kind, target.handle, self.name, **self._options(target), requests=requests))

    def measure(self, target: Target) -> Metrics:
        requests = max(target.count(60_000), FEWEST_REQUESTS)
        options = self._options(target)
        command = rawbench(self.kind, target.handle, self.name, **options, requests=requests, hold=True)
        return measured_from_ready(target.system, command)
