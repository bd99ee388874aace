"""A fleet of consumer group members, each a process of its own, and what must hold of everything they said.

Owns the processes, which it ends by their own ids, the load that is written meanwhile, and the checks. The members'
lines carry the monotonic clock, which is one for all processes of a machine, so that their ownerships can be compared.
It must not know pytest.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from confluent_kafka import Producer

from tests.support.clients.java_client import CLASS_PATH, JVM
from tests.support.clients.node_client import NODE, PROGRAMS

MEMBER_PROGRAM = Path(__file__).with_name("member.py")
ROOT = Path(__file__).resolve().parents[3]
JAVA_SOURCE = ROOT / "tests/interop/java/GroupMember.java"

#: The time limit of every wait, for a busy machine.
PATIENCE_SECONDS = 180
#: The session timeout of tests in which members die.
SESSION_TIMEOUT_MS = 10_000
#: The session timeout of tests without deaths: longer than a busy machine delays heartbeats.
CALM_SESSION_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 500

Place: TypeAlias = tuple[str, int]


class FleetError(AssertionError):
    """A member failed, or what the members said cannot be right."""


@dataclass(frozen=True)
class Kind:
    """A client with its configuration, and the kind of rebalance it takes part in."""

    name: str
    client: str
    config: Mapping[str, Any] = field(default_factory=dict)
    #: Whether its members keep reading their partitions while a rebalance waits for others.
    is_incremental: bool = False
    #: Whether its members still get fetched records, and commit them, after losing the partition.
    gives_late: bool = False
    #: Whether a rebalance may give a member its last round again of what it keeps: docs/findings.md.
    repeats_rounds: bool = False

    @property
    def is_consumer_protocol(self) -> bool:
        return self.config.get("group.protocol") == "consumer"

    def patience(self, milliseconds: int) -> dict[str, int]:
        """The configuration by which a member may be silent for so long; the broker's matter in the newer protocol."""
        return {name: milliseconds for name in self.config if name in _SESSION_TIMEOUTS}


_SESSION_TIMEOUTS = ("session.timeout.ms", "session_timeout_ms", "sessionTimeout")
_TIMES = {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS}
_PYTHON_TIMES = {name.replace(".", "_"): value for name, value in _TIMES.items()}

CONFLUENT_RANGE = Kind("confluent-range", "confluent", {"partition.assignment.strategy": "range", **_TIMES})
CONFLUENT_COOPERATIVE = Kind(
    "confluent-cooperative",
    "confluent",
    {"partition.assignment.strategy": "cooperative-sticky", **_TIMES},
    is_incremental=True,
    repeats_rounds=True,
)
CONFLUENT_CONSUMER = Kind(
    "confluent-consumer", "confluent", {"group.protocol": "consumer"}, is_incremental=True, repeats_rounds=True
)
KAFKA_PYTHON = Kind("kafka-python", "kafka-python", {"partition_assignment_strategy": "range", **_PYTHON_TIMES})
#: Keeps its partitions through a rebalance, but its polls give no records of them meanwhile: docs/findings.md.
KAFKA_PYTHON_COOPERATIVE = Kind(
    "kafka-python-cooperative",
    "kafka-python",
    {"partition_assignment_strategy": "cooperative-sticky", **_PYTHON_TIMES},
)
AIOKAFKA = Kind("aiokafka", "aiokafka", _PYTHON_TIMES)
_COOPERATIVE_ASSIGNOR = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
JAVA_COOPERATIVE = Kind(
    "java-cooperative", "java", {"partition.assignment.strategy": _COOPERATIVE_ASSIGNOR, **_TIMES}, True
)
JAVA_CONSUMER = Kind("java-consumer", "java", {"group.protocol": "consumer"}, True)
_NODE_TIMES = {"sessionTimeout": SESSION_TIMEOUT_MS, "heartbeatInterval": HEARTBEAT_INTERVAL_MS}
KAFKAJS = Kind("kafkajs", "kafkajs", _NODE_TIMES)
PLATFORMATIC = Kind("platformatic", "platformatic", _NODE_TIMES, gives_late=True)


@dataclass(frozen=True)
class Event:
    """One line of a member."""

    at: float
    name: str
    fields: dict[str, Any]

    @property
    def places(self) -> list[Place]:
        return [(topic, partition) for topic, partition in self.fields.get("partitions", ())]

    @property
    def runs(self) -> list[tuple[Place, int, int]]:
        return [((topic, partition), first, last) for topic, partition, first, last in self.fields.get("runs", ())]


class Member:
    """One process that reads as a member of a group until it is stopped or killed."""

    def __init__(self, name: str, kind: Kind, command: Sequence[str], error_path: Path) -> None:
        self.name = name
        self.kind = kind
        self.events: list[Event] = []
        self.killed_at: float | None = None
        self._error_path = error_path
        self._changed = threading.Condition()
        with error_path.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __repr__(self) -> str:
        return self.name

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # the torn last line of a killed member; it has committed nothing of it
            fields = json.loads(line)
            with self._changed:
                self.events.append(Event(fields.pop("at"), fields.pop("event"), fields))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def owned(self) -> set[Place]:
        """What the member owns, according to its lines."""
        owned: set[Place] = set()
        for event in list(self.events):
            if event.name == "assigned":
                owned.update(event.places)
            elif event.name in ("revoked", "lost"):
                owned.difference_update(event.places)
            elif event.name == "closing":
                owned.clear()
        return owned

    @property
    def rebalances(self) -> int:
        """How often it got partitions."""
        return sum(event.name in ("assigned", "revoked", "lost") for event in list(self.events))

    def processed_since(self, moment: float) -> set[Place]:
        """The partitions of which it has processed records since then."""
        return {place for event in list(self.events) if event.at > moment for place, _, _ in event.runs}

    def wait(self, what: str, condition: Callable[[], bool], *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until a condition on this member's lines holds."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: condition() or self._process.poll() is not None, timeout=timeout_seconds
            )
        if not condition():
            how = f"ended with {self._process.poll()}" if done else f"did not in {timeout_seconds} s"
            raise FleetError(f"{self.name}: {what}: it {how}\n{self.last_words()}")

    def wait_for_ownership(self, count: int | None = None) -> set[Place]:
        """Wait until it owns something, or exactly this many partitions."""
        self.wait(
            f"should own {count or 'any'} partitions",
            lambda: bool(self.owned) if count is None else len(self.owned) == count,
        )
        return self.owned

    def last_words(self) -> str:
        lines = [f"{event.at:.3f} {event.name} {event.fields}" for event in self.events[-12:]]
        return "\n".join([*lines, self._error_path.read_text(errors="replace")[-3000:]])

    def ask_to_leave(self) -> None:
        """Close its input; it then leaves the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Let it leave the group; any exit code but 0 is an error."""
        self.ask_to_leave()
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise FleetError(f"{self.name} does not end\n{self.last_words()}") from None
        self._finish()
        if code != 0 or self.events[-1].name != "closed":
            raise FleetError(f"{self.name} ended with {code}\n{self.last_words()}")

    def kill(self) -> None:
        """End it with SIGKILL: the group learns of it when its session ends."""
        self.killed_at = time.monotonic()
        self._process.kill()
        self._process.wait()
        self._finish()

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def _finish(self) -> None:
        self._reader.join()
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        self._process.stdin.close()


class Load:
    """Writes records to all partitions of a topic from a thread of its own, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, per_second: int = 600) -> None:
        self.topic = topic
        self.partitions = partitions
        self._per_second = per_second
        # Idempotent, so that few requests are under way. Without a bound they wait for minutes at a broker that a large
        # fleet leaves no processor, are sent again, and what is counted once is there twice.
        config = {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5, "enable.idempotence": True}
        self._producer = Producer(config)
        self._acknowledged: dict[int, int] = defaultdict(int)
        self._errors: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        begin = time.monotonic()
        while not self._over.is_set():
            due = int((time.monotonic() - begin) * self._per_second)
            # After a pause the load continues at its pace; it does not catch up.
            for _ in range(min(due - number, self._per_second // 4)):
                self._producer.produce(
                    self.topic, b"%d" % number, partition=number % self.partitions, callback=self._on
                )
                number += 1
            number = max(number, due)
            self._producer.poll(0)
            self._over.wait(0.02)

    def _on(self, error: Any, message: Any) -> None:
        if error is not None:
            self._errors.append(error.str())
        else:
            self._acknowledged[message.partition()] += 1

    def end(self) -> None:
        """Stop writing; records in flight still arrive."""
        self._over.set()
        self._thread.join()

    def stop(self) -> dict[Place, int]:
        """Wait for every acknowledgement and give how many records each partition has."""
        self.end()
        if self._producer.flush(PATIENCE_SECONDS) or self._errors:
            raise FleetError(f"the load was not accepted: {self._errors[:3]}")
        return {(self.topic, number): self._acknowledged[number] for number in range(self.partitions)}


class Fleet:
    """The members of one group, those that are gone included."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        work_dir: Path,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topics = list(topics)
        self.members: list[Member] = []
        self.loads: list[Load] = []
        self._work_dir = work_dir
        self._session_timeout_ms = session_timeout_ms

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.is_running]

    def start(self, kind: Kind, *, instance: str | None = None, config: Mapping[str, Any] | None = None) -> Member:
        """Start one more member, with more configuration in its client's words."""
        settings = {
            "bootstrap": self.bootstrap,
            "group": self.group,
            "topics": self.topics,
            "instance": instance,
            "config": {**kind.config, **kind.patience(self._session_timeout_ms), **(config or {})},
        }
        name = f"{kind.name}-{len(self.members)}"
        command = [*_program(kind.client), json.dumps(settings)]
        member = Member(name, kind, command, self._work_dir / f"{self.group}-{name}.stderr")
        self.members.append(member)
        return member

    def load(self, topic: str, partitions: int) -> Load:
        """Begin to write to a topic; over at the latest when the fleet is."""
        self.loads.append(Load(self.bootstrap, topic, partitions))
        return self.loads[-1]

    def wait(self, what: str, condition: Callable[[], bool], *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until a condition on the whole fleet holds."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if time.monotonic() > deadline:
                words = "\n".join(
                    f"--- {member}: owns {member.owned}\n{member.last_words()}" for member in self.running
                )
                raise FleetError(f"{what}: not in {timeout_seconds} s\n{words}")
            time.sleep(0.05)

    def wait_until_shared(self, members: Sequence[Member], places: Iterable[Place]) -> None:
        """Wait until these members together own all of these partitions, each at least one if there are enough."""
        wanted = sorted(places)
        self.wait(
            f"{members} should share {len(wanted)} partitions",
            lambda: (
                sorted(place for member in members for place in member.owned) == wanted
                and sum(bool(member.owned) for member in members) == min(len(members), len(wanted))
            ),
        )

    def processed(self) -> dict[Place, set[int]]:
        """The offsets that any member has processed."""
        found: dict[Place, set[int]] = defaultdict(set)
        for member in self.members:
            for event in list(member.events):
                for place, first, last in event.runs:
                    found[place].update(range(first, last + 1))
        return found

    def wait_until_processed(self, ends: Mapping[Place, int]) -> None:
        """Wait until every record below the end of its partition was processed at least once."""

        def is_complete() -> bool:
            found = self.processed()
            return all(len(found[place]) >= end for place, end in ends.items())

        self.wait("every record should be processed", is_complete)

    def stop(self) -> None:
        """Let all members leave at once."""
        remaining = self.running
        for member in remaining:
            member.ask_to_leave()
        for member in remaining:
            member.stop()

    def check(self, ends: Mapping[Place, int]) -> None:
        """Check everything that must hold after a run."""
        found = self.processed()
        for place, end in ends.items():
            missing = sorted(set(range(end)) - found[place])
            if missing:
                raise FleetError(f"{place}: {len(missing)} of {end} records were never processed, first {missing[:5]}")
            if max(found[place], default=-1) >= end:
                raise FleetError(f"{place}: {max(found[place])} was processed, the end is {end}")
        ownerships = [one for member in self.members for one in ownerships_of(member)]
        check_order(ownerships)
        check_exclusive(ownerships)


@dataclass
class Ownership:
    """A partition in the hands of a member, from its assignment until it was given up, taken or the member's end."""

    member: str
    place: Place
    begin: float
    end: float = float("inf")
    #: Whether the member learned too late that it had lost the partition.
    was_lost: bool = False
    runs: list[tuple[int, int]] = field(default_factory=list)
    #: After how many runs the member was told of a rebalance that may make its client repeat the last of them.
    repeats_after: set[int] = field(default_factory=set)


def ownerships_of(member: Member) -> list[Ownership]:
    """What a member owned in turn; it must have owned what it processed, unless its client gives it records late."""
    all_of_it: list[Ownership] = []
    current: dict[Place, Ownership] = {}

    def close(places: Iterable[Place], at: float, *, was_lost: bool = False) -> None:
        for place in places:
            ended = current.pop(place, None)
            if ended is not None:
                ended.end, ended.was_lost = at, was_lost

    for event in member.events:
        if event.name == "assigned":
            for place in event.places:
                if place in current:
                    raise FleetError(
                        f"{member} was assigned {place} at {event.at:.3f}, which it had\n{timeline(member)}"
                    )
                current[place] = Ownership(member.name, place, event.at)
                all_of_it.append(current[place])
        elif event.name in ("revoked", "lost"):
            close(event.places, event.at, was_lost=event.name == "lost")
        elif event.name == "closing":
            close(list(current), event.at)
        if member.kind.repeats_rounds and event.name in ("assigned", "revoked", "lost"):
            for kept in current.values():
                kept.repeats_after.add(len(kept.runs))
        for place, first, last in () if member.kind.gives_late else event.runs:
            if place not in current:
                raise FleetError(f"{member} processed {place} at {event.at:.3f} without owning it\n{timeline(member)}")
            current[place].runs.append((first, last))
    if member.killed_at is not None:
        close(list(current), member.killed_at)
    return all_of_it


def timeline(member: Member) -> str:
    """The member's lines about its partitions, for a failure's message."""
    return "\n".join(
        f"{event.at:.3f} {member} {event.name} {event.fields}"[:400]
        for event in member.events
        if event.name != "processed"
    )


def check_order(ownerships: Iterable[Ownership]) -> None:
    """In each ownership every record comes right after the one before it, but for a round that its client repeats."""
    for one in ownerships:
        for number, ((begin, last), (first, _)) in enumerate(itertools.pairwise(one.runs), start=1):
            if first != last + 1 and not (first == begin and number in one.repeats_after):
                raise FleetError(f"{one.member} processed {first} of {one.place} after {last}: {one.runs}")


def check_exclusive(ownerships: Iterable[Ownership]) -> None:
    """Check that no partition has two owners, except members that learned of their loss too late."""
    by_place: dict[Place, list[Ownership]] = defaultdict(list)
    for one in ownerships:
        by_place[one.place].append(one)
    for place, owners in by_place.items():
        owners.sort(key=lambda one: one.begin)
        for position, earlier in enumerate(owners):
            for later in owners[position + 1 :]:
                if later.begin < earlier.end and not earlier.was_lost:
                    raise FleetError(f"{place} had two owners at {later.begin:.3f}: {earlier} and {later}")


@contextmanager
def fleet(
    bootstrap: str,
    group: str,
    topics: Sequence[str],
    work_dir: Path,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
) -> Iterator[Fleet]:
    """A fleet whose processes and loads all end with the block."""
    made = Fleet(bootstrap, group, topics, work_dir, session_timeout_ms)
    try:
        yield made
    finally:
        for load in made.loads:
            load.end()
        for member in made.running:
            member.kill()


def churn(crew: Fleet, kind: Kind, *, most: int, seconds: float, seed: int) -> list[str]:
    """Let members join, leave and die at random for a while; the first to die owns partitions. Gives what was done."""
    chance = random.Random(seed)
    first = ["kill", "join", "leave", "join"]
    done: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(done) < len(first):
        running = crew.running
        # As many joins as ends, so that a large fleet stays large.
        possible = ["join", "join"] * (len(running) < most) + ["leave", "kill"] * (len(running) > 1)
        wanted = first[len(done)] if len(done) < len(first) else chance.choice(possible)
        if wanted == "join":
            crew.start(kind)
        elif wanted == "leave":
            chance.choice(running).stop()
        else:
            chance.choice(running).kill()
        done.append(wanted)
        time.sleep(chance.uniform(0.2, 1.5))
    return done


_compiled: list[str] = []


def compile_java(work_dir: Path) -> None:
    """Compile the Java member once; the fleets of this process start it from there."""
    if not _compiled:
        subprocess.run(["javac", "-cp", CLASS_PATH, "-d", str(work_dir), str(JAVA_SOURCE)], check=True, timeout=600)
        _compiled.append(str(work_dir))


def _program(client: str) -> list[str]:
    if client == "java":
        return [*JVM, "-cp", f"{_compiled[0]}:{CLASS_PATH}", "GroupMember"]
    if client in ("kafkajs", "platformatic"):
        return [str(NODE), str(PROGRAMS / f"{client}_member.mjs")]
    return [sys.executable, str(MEMBER_PROGRAM), client]
