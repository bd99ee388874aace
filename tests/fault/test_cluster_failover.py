"""Leaders that are killed and paused again and again under load: nothing acknowledged is lost, on any store.

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

from tests.support.cluster_load import IDEMPOTENT, PROGRESS_SECONDS, JavaSender, TimedSender
from tests.support.cluster_process import STORES, ClusterBroker, ClusterProcess, coordination_store
from tests.support.confluent_client import ConfluentClient
from tests.support.history import Load, check_sender, read_everything

FAILOVERS = int(os.environ.get("TAILRACE_FAILOVERS", "5"))
SEED = int(os.environ.get("TAILRACE_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)

PARTITIONS = 3
TOPIC, JAVA_TOPIC = "orders", "payments"
LOAD = Load("exact", TOPIC, IDEMPOTENT, is_idempotent=True)


@pytest.fixture(params=STORES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterProcess]:
    with (
        coordination_store(request.param, tmp_path / "store") as url,
        ClusterProcess(tmp_path, url, min_insync_replicas="2") as cluster,
    ):
        yield cluster


def create_topics(cluster: ClusterProcess) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    wanted = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in (TOPIC, JAVA_TOPIC)]
    for created in admin.create_topics(wanted, operation_timeout=20).values():
        created.result(30)
    cluster.wait_until_whole()


def led_by(cluster: ClusterProcess, broker: ClusterBroker) -> list[int]:
    return [
        each["partition"]
        for each in cluster.status()["partitions"]
        if each["topic"] == TOPIC and each["leader"] == broker.number
    ]


def test_no_acknowledged_record_is_lost_when_leaders_are_killed_and_paused(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    create_topics(cluster)
    sender = TimedSender(cluster.bootstrap, LOAD)
    java = JavaSender(cluster.bootstrap, JAVA_TOPIC, tmp_path)
    sender.start()
    java.start()
    failovers: dict[str, list[float]] = {"kill": [], "pause": []}
    for how in [how for _ in range(FAILOVERS) for how in ("kill", "pause")]:
        cluster.wait_until_whole()
        victim = cluster.leader_of(TOPIC, chance.randrange(PARTITIONS))
        led = led_by(cluster, victim)
        moment = time.monotonic()
        if how == "kill":
            victim.kill()
        else:
            victim.pause()
        gaps = sender.wait_for_writes(sender.numbers_sent(led), moment)
        failovers[how] += gaps
        print(f"{how} of broker {victim.number}: written to again after {', '.join(f'{gap:.2f}' for gap in gaps)} s")
        if how == "kill":
            victim.start()
        else:
            victim.resume()
    cluster.wait_until_whole()
    promised = sender.finish()
    java.finish()
    logs = read_everything(cluster.bootstrap, {TOPIC: PARTITIONS, JAVA_TOPIC: PARTITIONS})
    check_sender(LOAD, promised, logs)
    java.check(JAVA_TOPIC, logs)
    for how, gaps in failovers.items():
        print(f"{how}: failover p50 {statistics.median(gaps):.2f} s, max {max(gaps):.2f} s, {len(gaps)} partitions")
    for broker in cluster.brokers:
        assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


def test_a_group_goes_on_and_keeps_its_offsets_when_its_coordinator_is_killed(cluster: ClusterProcess) -> None:
    create_topics(cluster)
    client = ConfluentClient(cluster.bootstrap)
    producer = client.producer(acks="all")
    for number in range(100):
        producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    consumer = client.consumer(group_id="workers", auto_offset_reset="earliest", session_timeout_ms=10_000)
    consumer.subscribe([TOPIC])
    read = [message.value() for message in take(consumer, 50)]
    consumer.commit(asynchronous=False)
    coordinator = next(
        each["leader"] for each in cluster.status()["partitions"] if each["topic"] == "__consumer_offsets"
    )
    cluster.wait_until_whole()
    for number in {coordinator, coordinator % 3 + 1}:
        cluster.broker(number).kill()
        read += [message.value() for message in take(consumer, 10)]
        consumer.commit(asynchronous=False)
        cluster.broker(number).start()
        cluster.wait_until_whole()
    read += [message.value() for message in take(consumer, 30)]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(read, key=int) == [str(number).encode() for number in range(100)]


def take(consumer: object, count: int) -> list[Message]:
    """So many records, however long a failover takes."""
    messages: list[Message] = []
    deadline = time.monotonic() + PROGRESS_SECONDS
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records"
        for message in consumer.consume(count - len(messages), 0.2):  # type: ignore[attr-defined]
            if message.error() is None:
                messages.append(message)
    return messages
