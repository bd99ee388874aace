"""A member of a consumer group as a program of its own: confluent-kafka, kafka-python or aiokafka.

`python group_member.py CLIENT SETTINGS` reads until its standard input ends, then leaves the group and exits. It prints
one JSON line for everything that happens, each with the machine's monotonic clock: `assigned`, `revoked` and `lost`
with partitions, `processed` with runs of offsets in the order they came, `closing`, `closed`. A run is printed before
it is committed, so that what was committed was also said. SETTINGS is JSON: see `Settings`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Message

POLL_SECONDS = 0.1
#: The length of a round of reading, short enough to stay in the group.
ROUND_RECORDS = 500


@dataclass(frozen=True)
class Settings:
    """What a member is told: a topic that begins with ^ is a pattern; `config` is in the client's own words."""

    bootstrap: str
    group: str
    topics: list[str]
    instance: str | None
    config: dict[str, Any]


def say(event: str, **fields: object) -> None:
    """Print one line, flushed on return."""
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def say_partitions(event: str, partitions: Iterable[Any]) -> None:
    say(event, partitions=sorted([one.topic, one.partition] for one in partitions))


def say_processed(offsets: Iterable[tuple[str, int, int]]) -> None:
    """Print the records of one round as runs: topic, partition, first and last offset."""
    runs: list[list[Any]] = []
    latest: dict[tuple[str, int], list[Any]] = {}
    for topic, partition, offset in offsets:
        run = latest.get((topic, partition))
        if run is not None and offset == run[3] + 1:
            run[3] = offset
        else:
            run = latest[topic, partition] = [topic, partition, offset, offset]
            runs.append(run)
    if runs:
        say("processed", runs=runs)


def _place_of(record: Message) -> tuple[str, int, int]:
    """Topic, partition and offset of a record that librdkafka has read."""
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def run_confluent(settings: Settings, is_over: Callable[[], bool]) -> None:
    """librdkafka; what is processed is stored, and committed in the background and when it is taken away."""
    from confluent_kafka import Consumer, KafkaError, KafkaException

    config = {
        "bootstrap.servers": settings.bootstrap,
        "group.id": settings.group,
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": 200,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 3,
        **settings.config,
    }
    if settings.instance is not None:
        config["group.instance.id"] = settings.instance
    consumer = Consumer(config)
    consumer.subscribe(
        settings.topics,
        on_assign=lambda _, partitions: say_partitions("assigned", partitions),
        on_revoke=lambda _, partitions: say_partitions("revoked", partitions),
        on_lost=lambda _, partitions: say_partitions("lost", partitions),
    )
    while not is_over():
        messages = consumer.consume(ROUND_RECORDS, POLL_SECONDS)
        for message in messages:
            error = message.error()
            if error is not None and error.fatal():
                raise KafkaException(error)
            if error is not None:
                say("error", code=error.code(), message=error.str())
        records = [message for message in messages if message.error() is None]
        say_processed(map(_place_of, records))
        for record in records:
            try:
                consumer.store_offsets(record)
            except KafkaException as refused:
                # It was revoked while its records waited here: the next owner reads them again.
                if refused.args[0].code() != KafkaError._STATE:
                    raise
    say("closing")
    consumer.close()


def run_kafka_python(settings: Settings, is_over: Callable[[], bool]) -> None:
    """kafka-python; each poll commits the result of the previous one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.structs import MemberState

    assignors = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            say_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            say_partitions("revoked", revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            say_partitions("lost", lost)

    config = dict(settings.config)
    strategy = config.pop("partition_assignment_strategy")
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap,
        group_id=settings.group,
        group_instance_id=settings.instance,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=200,
        metadata_max_age_ms=1000,
        partition_assignment_strategy=[assignors[strategy]],
        **config,
    )
    if settings.topics[0].startswith("^"):
        consumer.subscribe(pattern=settings.topics[0], listener=Listener())
    else:
        consumer.subscribe(settings.topics, listener=Listener())
    while not is_over():
        rounds = consumer.poll(timeout_ms=int(POLL_SECONDS * 1000), max_records=ROUND_RECORDS)
        say_processed((record.topic, record.partition, record.offset) for batch in rounds.values() for record in batch)
        if consumer.group_metadata().state == MemberState.REBALANCING:
            # The join that the end of a poll interrupted is not always taken up by the next one; then the client would
            # neither finish it nor heartbeat ever again. See docs/findings.md.
            consumer._coordinator.request_rejoin()
    say("closing")
    consumer.close()


async def run_aiokafka(settings: Settings, is_over: Callable[[], bool]) -> None:
    """aiokafka; commits after each round, because automatic commits may run ahead of the work."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import CommitFailedError, IllegalStateError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            # Called while the other task processes a round: wait until it is done.
            async with working:
                if revoked:
                    say_partitions("revoked", revoked)

        async def on_partitions_assigned(self, assigned: Any) -> None:
            say_partitions("assigned", assigned)

    working = asyncio.Lock()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap,
        group_id=settings.group,
        group_instance_id=settings.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=1000,
        partition_assignment_strategy=(RangePartitionAssignor,),
        **settings.config,
    )
    if settings.topics[0].startswith("^"):
        consumer.subscribe(pattern=settings.topics[0], listener=Listener())
    else:
        consumer.subscribe(settings.topics, listener=Listener())
    await consumer.start()
    while not is_over():
        rounds = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=ROUND_RECORDS)
        async with working:
            owned = consumer.assignment()
            batches = [batch for partition, batch in rounds.items() if partition in owned]
            say_processed((record.topic, record.partition, record.offset) for batch in batches for record in batch)
            if batches:
                try:
                    await consumer.commit()
                except (CommitFailedError, IllegalStateError):
                    pass  # the group has moved on: the next owner reads them again
    say("closing")
    await consumer.stop()


def main() -> None:
    client, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    over = threading.Event()

    def watch_input() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=watch_input, daemon=True).start()
    if client == "confluent":
        run_confluent(settings, over.is_set)
    elif client == "kafka-python":
        run_kafka_python(settings, over.is_set)
    elif client == "aiokafka":
        asyncio.run(run_aiokafka(settings, over.is_set))
    else:
        raise SystemExit(f"no client {client}")
    say("closed")


if __name__ == "__main__":
    main()
