"""The producer of whole batches, against brokers that refuse, move partitions and hang up: each row once, in order."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tailrace.pipeline.arrow.record_encoding import Rows, as_bytes, encode_records
from tailrace.pipeline.connections.producing import BatchProducer, DeliveryError
from tailrace.pipeline.failures import UnreachableBrokerError
from tailrace.pipeline.sink.settings import WriteSettings
from tailrace.records.compression import Compression
from tests.support.brokers.broker_process import free_port
from tests.support.brokers.faulty_broker import FAULTS, TOPIC, FaultyBrokers

PARTITIONS = 3


def settings_for(brokers: FaultyBrokers, **more: object) -> WriteSettings:
    patient = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 4, "buffer_bytes": 2_000, "delivery_timeout_ms": 60_000}
    return WriteSettings(bootstrap=brokers.bootstrap, **{**patient, **more})  # type: ignore[arg-type]


def send(producer: BatchProducer, partition: int, values: list[bytes]) -> None:
    rows = Rows(as_bytes(pa.array(values)))
    section = encode_records(rows, np.arange(len(values))).section(0, len(values))
    producer.send(TOPIC, partition, section, len(values), 1_760_000_000_000)


def produce(brokers: FaultyBrokers, seed: int, settings: WriteSettings) -> list[list[bytes]]:
    """Send batches of all sizes to partitions at random; what each partition was given."""
    chance = random.Random(seed)
    given: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    producer = BatchProducer(settings)
    try:
        assert producer.leaders.partition_count(TOPIC) == PARTITIONS
        for number in range(60):
            partition = chance.randrange(PARTITIONS)
            values = [b"%d/%d " % (number, row) + b"x" * chance.randrange(50) for row in range(chance.randrange(2, 20))]
            given[partition] += values
            send(producer, partition, values)
        producer.flush()
    finally:
        producer.close()
    return given


def taken(brokers: FaultyBrokers) -> list[list[bytes | None]]:
    return [[record.value for record in log.records] for log in brokers.logs]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_goes_wrong_each_row_is_there_once_and_in_order(seed: int) -> None:
    with FaultyBrokers(PARTITIONS, seed=seed, faults=FAULTS, rate=0.25) as brokers:
        codec = list(Compression)[seed % len(Compression)]
        given = produce(brokers, seed, settings_for(brokers, compression=codec))
        assert taken(brokers) == given
        assert set(brokers.faults_done) - {"none"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_comes_again_and_again_is_outlived(fault: str) -> None:
    with FaultyBrokers(PARTITIONS, seed=1, faults=[fault], rate=0.5) as brokers:
        given = produce(brokers, 1, settings_for(brokers))
        assert taken(brokers) == given
        assert brokers.faults_done.count(fault) > 10


def test_without_numbers_order_is_kept_where_nothing_is_appended_twice() -> None:
    with FaultyBrokers(PARTITIONS, seed=2, faults=["refuse", "move", "hang up"], rate=0.3) as brokers:
        given = produce(brokers, 2, settings_for(brokers, acks=1, max_in_flight=1))
        assert taken(brokers) == given


def test_a_topic_that_takes_smaller_batches_gets_smaller_ones_from_then_on() -> None:
    with FaultyBrokers(1, faults=["too large, even alone"], rate=1.0) as brokers:
        producer = BatchProducer(settings_for(brokers))
        assert producer.leaders.partition_count(TOPIC) == 1
        before = producer.max_batch_bytes(TOPIC)
        send(producer, 0, [b"x" * 100] * 10)
        with pytest.raises(DeliveryError, match=f"is larger than topic '{TOPIC}' accepts; raise its max.message.bytes"):
            producer.flush()
        producer.close()
        assert producer.max_batch_bytes(TOPIC) < before


def test_what_is_not_acknowledged_in_time_is_an_error_that_says_why() -> None:
    with FaultyBrokers(1, faults=["refuse"], rate=1.0) as brokers:
        producer = BatchProducer(settings_for(brokers, delivery_timeout_ms=50))
        assert producer.leaders.partition_count(TOPIC) == 1
        send(producer, 0, [b"one", b"two"])
        with pytest.raises(DeliveryError, match=r"2 rows were not acknowledged within 0\.05 s: .*NOT_ENOUGH_REPLICAS"):
            producer.flush()
        producer.close()


def test_a_refusal_that_does_not_pass_is_an_error_at_once() -> None:
    with FaultyBrokers(1, faults=["invalid"], rate=1.0) as brokers:
        producer = BatchProducer(settings_for(brokers))
        assert producer.leaders.partition_count(TOPIC) == 1
        send(producer, 0, [b"one"])
        with pytest.raises(
            DeliveryError, match=f"the broker refused rows for partition 0 of topic '{TOPIC}': INVALID_RECORD"
        ):
            producer.flush()
        producer.close()


def test_where_nobody_listens_that_is_said() -> None:
    port = free_port()
    producer = BatchProducer(WriteSettings(bootstrap=(("127.0.0.1", port),), max_block_ms=0))
    with pytest.raises(UnreachableBrokerError, match=f"cannot reach a broker at 127.0.0.1:{port}"):
        producer.leaders.partition_count(TOPIC)
