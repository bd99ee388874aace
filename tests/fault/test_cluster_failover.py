"""Leaders that are killed and paused again and again under load: nothing acknowledged is lost, on any store.

Three brokers, three replicas, two of which must be in sync, acks=all. TAILRACE_FAILOVERS sets how often a leader is
killed and how often it is paused. The time from the signal to the next acknowledged write is printed.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster_process import STORES, ClusterBroker, ClusterProcess, coordination_store
from tests.support.confluent_client import ConfluentClient
from tests.support.history import Load, Sender, check_sender, read_everything, record_of
from tests.support.java_client import CLASS_PATH, JVM, VERIFIABLE_PRODUCER

FAILOVERS = int(os.environ.get("TAILRACE_FAILOVERS", "5"))
SEED = int(os.environ.get("TAILRACE_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)

PARTITIONS = 3
TOPIC, JAVA_TOPIC = "orders", "payments"
#: A broker that is paused keeps its connections: only a timeout of the client's own makes it look elsewhere.
IDEMPOTENT = {
    "enable_idempotence": True,
    "acks": "all",
    "socket_timeout_ms": 3000,
    "topic_metadata_refresh_fast_interval_ms": 50,
}
LOAD = Load("exact", TOPIC, IDEMPOTENT, is_idempotent=True)
_PROGRESS_SECONDS = 90.0


class TimedSender(Sender):
    """A sender that remembers when each record was acknowledged."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        super().__init__(bootstrap, load)
        self.times: dict[int, dict[int, float]] = {partition: {} for partition in range(load.partitions)}

    def _delivered(self, error: object, message: Message) -> None:
        super()._delivered(error, message)  # type: ignore[arg-type]
        if error is None:
            self.times[message.partition()][record_of(message.value())[1]] = time.monotonic()

    def numbers_sent(self, partitions: list[int]) -> dict[int, int]:
        """How many records each partition was sent so far."""
        return {partition: self.result.sent[partition] for partition in partitions}

    def acknowledged_from(self, partition: int, number: int) -> float | None:
        """When the first record from a number on was acknowledged; None while none was."""
        times = self.times[partition]
        return next((times[each] for each in range(number, self.result.sent[partition]) if each in times), None)


class JavaSender(threading.Thread):
    """Kafka's own verifiable producer: idempotent, acks=all, retrying; remembers what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, work_dir: Path) -> None:
        super().__init__(name="java", daemon=True)
        config = work_dir / "producer.properties"
        config.write_text(
            "enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=120000\nrequest.timeout.ms=5000\n"
            "metadata.max.age.ms=5000\n"
        )
        self.acknowledged: dict[tuple[int, int], str] = {}
        self.failed: list[str] = []
        self._process = subprocess.Popen(
            [
                *(*JVM, "-cp", CLASS_PATH, VERIFIABLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic),
                *("--acks", "-1", "--throughput", "300", "--producer.config", str(config)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["name"] == "producer_send_success":
                self.acknowledged[event["partition"], event["offset"]] = event["value"]
            elif event["name"] == "producer_send_error":
                self.failed.append(line)

    def finish(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


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


def wait_for_writes(sender: TimedSender, sent: dict[int, int], moment: float) -> list[float]:
    """Wait until records sent after a moment were acknowledged by all partitions; how long after it each was."""
    deadline = time.monotonic() + _PROGRESS_SECONDS
    while True:
        found = [sender.acknowledged_from(partition, number) for partition, number in sent.items()]
        times = [each - moment for each in found if each is not None]
        if len(times) == len(found):
            return times
        if sender.error is not None:
            raise sender.error
        assert time.monotonic() < deadline, f"partitions {list(sent)} are not written to again: {found}"
        time.sleep(0.02)


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
        gaps = wait_for_writes(sender, sender.numbers_sent(led), moment)
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
    check_java(java, logs)
    for how, gaps in failovers.items():
        print(f"{how}: failover p50 {statistics.median(gaps):.2f} s, max {max(gaps):.2f} s, {len(gaps)} partitions")
    for broker in cluster.brokers:
        assert "Traceback" not in broker.all_error_output(), broker.all_error_output()[-4000:]


def check_java(java: JavaSender, logs: dict[tuple[str, int], list[bytes]]) -> None:
    assert not java.failed, java.failed[:3]
    assert java.acknowledged, "the Java client had nothing acknowledged"
    for (partition, offset), value in java.acknowledged.items():
        values = logs[JAVA_TOPIC, partition]
        assert offset < len(values), f"{JAVA_TOPIC}-{partition}: acknowledged offset {offset} is lost"
        assert values[offset] == value.encode(), f"{JAVA_TOPIC}-{partition}: offset {offset} holds another record"
    every = [value for (topic, _), values in logs.items() if topic == JAVA_TOPIC for value in values]
    assert len(every) == len(dict.fromkeys(every)), "a record of an idempotent producer is there twice"


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
    deadline = time.monotonic() + _PROGRESS_SECONDS
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records"
        for message in consumer.consume(count - len(messages), 0.2):  # type: ignore[attr-defined]
            if message.error() is None:
                messages.append(message)
    return messages
