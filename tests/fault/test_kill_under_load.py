"""A broker that is repeatedly killed or stopped under load keeps its promises.

With the default flush policy an acknowledged record survives the end of the process. TAILRACE_FAULT_KILLS sets how
often the broker is killed, TAILRACE_FAULT_SEED the moments; the seed is printed, as is each kill.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tailrace.storage.directory_identity import CLEAN_SHUTDOWN
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.fault.conftest import MakeBroker
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.clients.raw_client import RawClient
from tests.support.history import (
    Acknowledged,
    Follower,
    Load,
    Sender,
    check_sender,
    check_unchanged,
    read_everything,
)
from tests.support.topics import create_topic

KILLS = int(os.environ.get("TAILRACE_FAULT_KILLS", "20"))
SEED = int(os.environ.get("TAILRACE_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)

PARTITIONS = 3
TOPICS = {"plain": PARTITIONS, "packed": PARTITIONS}
#: After this many kills, another one hits the broker while it recovers.
_KILL_A_RECOVERY_EVERY = 4
_PROGRESS_SECONDS = 180.0

IDEMPOTENT = {"enable_idempotence": True, "acks": "all", "max_in_flight": 5}
LOADS = (
    Load("exact", "plain", IDEMPOTENT, is_idempotent=True),
    Load("exact-lz4", "packed", {**IDEMPOTENT, "compression_type": "lz4"}, is_idempotent=True),
    # One request at a time: without idempotence a retry would otherwise overtake what was sent before it.
    Load("simple", "plain", {"acks": "1", "max_in_flight": 1}, is_idempotent=False),
)


class Siege:
    """The load on one broker, and the random moments of its faults."""

    def __init__(self, broker: WatchedBroker, seed: int) -> None:
        print(f"seed {seed}")
        self.broker = broker
        self.random = random.Random(seed)
        for topic, partitions in TOPICS.items():
            create_topic(broker.bootstrap, topic, partitions=partitions)
        self.senders = [Sender(broker.bootstrap, load) for load in LOADS]
        self.follower = Follower(broker.bootstrap, TOPICS)
        for thread in (*self.senders, self.follower):
            thread.start()

    @property
    def acknowledged(self) -> int:
        return sum(sender.acknowledged for sender in self.senders)

    def wait_for_a_moment(self) -> None:
        """Wait until every sender has made progress, and then for a random number of acknowledgements."""
        before = [sender.acknowledged for sender in self.senders]
        deadline = time.monotonic() + _PROGRESS_SECONDS
        goal = self.acknowledged + self.random.randrange(500, 8000)
        while self.acknowledged < goal or any(
            sender.acknowledged <= count for sender, count in zip(self.senders, before, strict=True)
        ):
            for thread in (*self.senders, self.follower):
                if thread.error is not None:
                    raise thread.error
            assert time.monotonic() < deadline, (
                f"{self.acknowledged} acknowledged after {_PROGRESS_SECONDS} s, {goal} wanted; "
                f"before {before}, now {[sender.acknowledged for sender in self.senders]}"
            )
            time.sleep(self.random.uniform(0.001, 0.02))

    def start_again(self, what: str) -> None:
        """Start the broker and print how long that took."""
        started = time.monotonic()
        self.broker.start()
        seconds = time.monotonic() - started
        print(f"{what}: {self.acknowledged} acknowledged so far, {self.follower.count} read, back in {seconds:.2f} s")

    def call_off(self) -> None:
        """End the load, even if requests are in flight."""
        for sender in self.senders:
            sender.send_no_more()
        self.follower.read_no_more()

    def finish(self) -> list[Acknowledged]:
        """End the load and check the whole history."""
        promised = [sender.finish() for sender in self.senders]
        logs = read_everything(self.broker.bootstrap, TOPICS)
        for load, result in zip(LOADS, promised, strict=True):
            check_sender(load, result, logs)
        followed = self.follower.finish()
        check_unchanged(followed, logs)
        assert self.follower.count > 0, "nobody read while the broker was under load"
        print(f"{self.acknowledged} acknowledged, {sum(map(len, logs.values()))} in the logs")
        return promised


@pytest.fixture
def besiege() -> Iterator[Callable[[WatchedBroker], Siege]]:
    """Starts sieges that end with the test, even if it fails."""
    begun: list[Siege] = []

    def begin(broker: WatchedBroker) -> Siege:
        begun.append(Siege(broker, SEED))
        return begun[-1]

    yield begin
    for siege in begun:
        siege.call_off()


def check_no_traceback(broker: WatchedBroker) -> None:
    output = broker.all_error_output()
    assert "Traceback" not in output, output[-4000:]


@pytest.mark.parametrize(
    ("kills", "config"),
    [
        pytest.param(KILLS, {}, id="default-flush-policy"),
        pytest.param(max(1, KILLS // 4), {"log_flush_interval_messages": "1"}, id="sync-before-acknowledgement"),
        # Small segments: kills that hit a roll, snapshots and several segments to recover.
        pytest.param(max(1, KILLS // 4), {"log_segment_bytes": str(1 << 20)}, id="small-segments"),
    ],
)
def test_a_killed_broker_has_every_acknowledged_record_once_and_in_order(
    kills: int, config: dict[str, str], make_broker: MakeBroker, besiege: Callable[[WatchedBroker], Siege]
) -> None:
    broker = make_broker(**config)
    siege = besiege(broker)
    read_before: list[dict[tuple[str, int], list[bytes]]] = []
    for number in range(1, kills + 1):
        siege.wait_for_a_moment()
        broker.kill()
        if number % _KILL_A_RECOVERY_EVERY == 0:
            after = siege.random.uniform(0.05, 0.6)
            was_ready = broker.start_and_kill(after)
            print(f"killed again {after:.2f} s into its start ({'after' if was_ready else 'before'} it was ready)")
        siege.start_again(f"kill {number}")
        if number == kills // 2:
            read_before.append(read_everything(broker.bootstrap, TOPICS))
    siege.finish()
    logs = read_everything(broker.bootstrap, TOPICS)
    for earlier in read_before:
        check_unchanged(earlier, logs)
    check_no_traceback(broker)


def test_a_stopped_broker_ends_with_0_and_starts_without_recovery(
    make_broker: MakeBroker, besiege: Callable[[WatchedBroker], Siege]
) -> None:
    broker = make_broker()
    siege = besiege(broker)
    marker = broker.data_dir / CLEAN_SHUTDOWN
    for number in range(1, 4):
        siege.wait_for_a_moment()
        epochs = leader_epochs(broker)
        broker.stop()  # raises for any exit code but 0
        assert marker.exists(), "a stop that left no marker of a clean shutdown"
        siege.start_again(f"stop {number}")
        assert not marker.exists(), "the marker must be gone before anything is written"
        # A start with recovery would begin new leader epochs.
        assert leader_epochs(broker) == epochs
    siege.finish()
    check_no_traceback(broker)
    assert "of an unfinished write" not in broker.all_error_output()


def test_a_start_after_a_kill_begins_new_leader_epochs(make_broker: MakeBroker) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, "plain")
    before = leader_epochs(broker)
    broker.kill()
    broker.start()
    assert leader_epochs(broker) == {key: epoch + 1 for key, epoch in before.items()}


def leader_epochs(broker: WatchedBroker) -> dict[tuple[str | None, int], int]:
    """The leader epoch of each partition, as clients are told."""
    with RawClient(broker.port) as client:
        response = client.ask(MetadataRequest(topics=None), 8, MetadataResponse)
    return {
        (topic.name, partition.partition_index): partition.leader_epoch
        for topic in response.topics
        for partition in topic.partitions
    }
