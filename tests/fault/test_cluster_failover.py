"""Leaders that are repeatedly killed and paused under load: no acknowledged record is lost, on any store.

Three brokers, three replicas, two of which must be in sync, acks=all. TAILRACE_FAILOVERS sets how often a leader is
killed and how often it is paused. The time from the signal to the next acknowledged write is printed.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.brokers.cluster_load import IDEMPOTENT, PROGRESS_SECONDS, JavaSender, TimedSender
from tests.support.brokers.cluster_process import STORES, ClusterProcess, coordination_store
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.history import Load, check_sender, read_everything

FAILOVERS = int(os.environ.get("TAILRACE_FAILOVERS", "5"))
SEED = int(os.environ.get("TAILRACE_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)

PARTITIONS = 3
TOPIC, JAVA_TOPIC, GROUP_TOPIC = "orders", "payments", "tasks"
LOAD = Load("exact", TOPIC, IDEMPOTENT, is_idempotent=True)


@pytest.fixture(params=STORES, scope="module")
def standing_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """One for all tests of a store: each has topics of its own."""
    directory = tmp_path_factory.mktemp(f"failover-{request.param}")
    with (
        coordination_store(request.param, directory / "store") as url,
        ClusterProcess(directory, url, min_insync_replicas="2") as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(standing_cluster: ClusterProcess) -> Iterator[ClusterProcess]:
    """The cluster of a store, complete before and after each test, even if the test fails."""
    standing_cluster.wait_until_whole()
    yield standing_cluster
    standing_cluster.heal()


def create_topics(cluster: ClusterProcess, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    wanted = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in names]
    for created in admin.create_topics(wanted, operation_timeout=60).values():
        created.result(90)
    cluster.wait_for(
        lambda state: {*names} <= {each["topic"] for each in state["partitions"]}, "the topics to be known"
    )
    cluster.wait_until_whole()


def test_no_acknowledged_record_is_lost_when_leaders_are_killed_and_paused(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    create_topics(cluster, TOPIC, JAVA_TOPIC)
    failovers: dict[str, list[float]] = {"kill": [], "pause": []}
    sender = TimedSender(cluster.bootstrap, LOAD)
    java = JavaSender(cluster.bootstrap, JAVA_TOPIC, tmp_path)
    try:
        sender.start()
        java.start()
        for how in [how for _ in range(FAILOVERS) for how in ("kill", "pause")]:
            fail_over(cluster, sender, chance.randrange(PARTITIONS), how, failovers[how])
        cluster.wait_until_whole()
        promised = sender.finish()
        java.finish()
    finally:
        # Neither may run during the following tests.
        sender.send_no_more()
        java.kill()
    logs = read_everything(cluster.bootstrap, {TOPIC: PARTITIONS, JAVA_TOPIC: PARTITIONS})
    check_sender(LOAD, promised, logs)
    java.check(JAVA_TOPIC, logs)
    for how, gaps in failovers.items():
        print(f"{how}: failover p50 {statistics.median(gaps):.2f} s, max {max(gaps):.2f} s, {len(gaps)} partitions")
    for broker in cluster.brokers:
        assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


def fail_over(cluster: ClusterProcess, sender: TimedSender, partition: int, how: str, failovers: list[float]) -> None:
    """Kill or pause a leader until its partitions are writable again; record how long each of them took."""
    state = cluster.wait_until_whole()
    leaders = {each["partition"]: each["leader"] for each in state["partitions"] if each["topic"] == TOPIC}
    victim = cluster.broker(leaders[partition])
    led = [number for number, leader in leaders.items() if leader == victim.number]
    moment = time.monotonic()
    if how == "kill":
        victim.kill()
    else:
        victim.pause()
    gaps = sender.wait_for_writes(sender.numbers_sent(led), moment)
    failovers += gaps
    print(f"{how} of broker {victim.number}: written to again after {', '.join(f'{gap:.2f}' for gap in gaps)} s")
    if how == "kill":
        victim.start()
    else:
        victim.resume()


def test_a_group_goes_on_and_keeps_its_offsets_when_its_coordinator_is_killed(cluster: ClusterProcess) -> None:
    create_topics(cluster, GROUP_TOPIC)
    client = ConfluentClient(cluster.bootstrap)
    producer = client.producer(acks="all", enable_idempotence=True)
    for number in range(100):
        producer.produce(GROUP_TOPIC, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PROGRESS_SECONDS) == 0
    # Longer than another coordinator takes to be found on the busiest machine: for that long a commit waits, and who is
    # thrown out of the group meanwhile reads again what it has not committed.
    consumer = client.consumer(group_id="workers", auto_offset_reset="earliest", session_timeout_ms=120_000)
    try:
        consumer.subscribe([GROUP_TOPIC])
        read = [message.value() for message in take(consumer, 50)]
        consumer.commit(asynchronous=False)
        state = cluster.wait_until_whole()
        coordinator = next(each["leader"] for each in state["partitions"] if each["topic"] == "__consumer_offsets")
        for number in {coordinator, coordinator % 3 + 1}:
            cluster.broker(number).kill()
            read += [message.value() for message in take(consumer, 10)]
            consumer.commit(asynchronous=False)
            cluster.broker(number).start()
            cluster.wait_until_whole()
        read += [message.value() for message in take(consumer, 30)]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    assert sorted(read, key=int) == [str(number).encode() for number in range(100)]


def take(consumer: object, count: int) -> list[Message]:
    """Read this many records, however long a failover takes."""
    messages: list[Message] = []
    deadline = time.monotonic() + PROGRESS_SECONDS
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records"
        for message in consumer.consume(count - len(messages), 0.2):  # type: ignore[attr-defined]
            if message.error() is None:
                messages.append(message)
    return messages
