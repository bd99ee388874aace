"""Idempotent producers while the broker stops and returns: every record exactly once, in order."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop.conftest import MakeBroker
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.aiokafka_client import AiokafkaClient
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.clients.java_client import JavaBridge, JavaClient
from tests.support.clients.kafka_python_client import KafkaPythonClient
from tests.support.records import Record
from tests.support.topics import create_topic, delete_topic, topic_names

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

COUNT = 20_000
PARTITIONS = 3
#: The broker stops when this many records are acknowledged …
ANNOUNCE_AT = 4_000
#: … and these are sent only after its return, so that every run has records before and after.
HOLD_FROM = 15_000
#: The time limit on a busy machine.
PATIENCE_SECONDS = 240

#: Runs a producer of the numbers from 0 to COUNT; it calls the first function when the broker may go away, and the
#: second before HOLD_FROM, which returns when the broker is back.
Run = Callable[[str, str, Callable[[], None], Callable[[], None]], None]


def run_confluent(bootstrap: str, topic: str, announce: Callable[[], None], hold: Callable[[], None]) -> None:
    producer = ConfluentClient(bootstrap).producer(
        enable_idempotence=True,
        max_in_flight=5,
        linger_ms=1,
        batch_num_messages=20,
        reconnect_backoff_max_ms=500,
    )
    acknowledged = 0
    errors = []

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        if error is not None:
            errors.append(error)
            return
        acknowledged += 1
        if acknowledged == ANNOUNCE_AT:
            announce()

    for number in range(COUNT):
        if number == HOLD_FROM:
            hold()
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
        while len(producer) > 2000:
            producer.poll(0.05)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert errors == []
    assert acknowledged == COUNT


def run_kafka_python(bootstrap: str, topic: str, announce: Callable[[], None], hold: Callable[[], None]) -> None:
    producer = KafkaPythonClient(bootstrap).producer(
        enable_idempotence=True, batch_size=400, linger_ms=1, reconnect_backoff_max_ms=500
    )
    try:
        sent = []
        for number in range(COUNT):
            if number == HOLD_FROM:
                hold()
            sent.append(producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
            if number == ANNOUNCE_AT:
                sent[0].get(timeout=PATIENCE_SECONDS)
                announce()
        producer.flush(timeout=PATIENCE_SECONDS)
        assert len([future.get(timeout=1) for future in sent]) == COUNT
    finally:
        producer.close(timeout=10)
        # kafka-python leaves the sockets of refused connections to the collector: collect them in this test.
        gc.collect()


def run_aiokafka(bootstrap: str, topic: str, announce: Callable[[], None], hold: Callable[[], None]) -> None:
    async def run() -> None:
        # How long a record may wait for the broker's return.
        producer = AiokafkaClient(bootstrap).producer(
            enable_idempotence=True, max_batch_size=400, request_timeout_ms=120_000
        )
        await producer.start()
        try:
            sent = []
            for number in range(COUNT):
                if number == HOLD_FROM:
                    await asyncio.to_thread(hold)
                sent.append(await producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
                if number == ANNOUNCE_AT:
                    await sent[0]
                    announce()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await producer.flush()
            assert len([future.result() for future in sent]) == COUNT
        finally:
            await producer.stop()

    asyncio.run(run())


def run_java(bridge: JavaBridge) -> Run:
    def run(bootstrap: str, topic: str, announce: Callable[[], None], hold: Callable[[], None]) -> None:
        def running() -> None:
            try:
                announce()
                hold()
            finally:
                # The line that the JVM waits for before the last part.
                bridge.send({})

        acknowledged = JavaClient(bootstrap, bridge).call(
            "produce_numbered",
            topic=topic,
            count=COUNT,
            partitions=PARTITIONS,
            announce_at=ANNOUNCE_AT,
            hold_from=HOLD_FROM,
            config={
                "batch.size": 400,
                "linger.ms": 0,
                "buffer.memory": 1_000_000,
                "max.in.flight.requests.per.connection": 5,
                "reconnect.backoff.max.ms": 500,
            },
            on_event=running,
        )
        assert acknowledged == COUNT

    return run


@pytest.fixture(params=["confluent", "kafka-python", "aiokafka", "java"])
def run(request: pytest.FixtureRequest) -> Run:
    runs: dict[str, Run] = {
        "confluent": run_confluent,
        "kafka-python": run_kafka_python,
        "aiokafka": run_aiokafka,
    }
    if request.param == "java":
        return run_java(request.getfixturevalue("java_bridge"))
    return runs[request.param]


def restart_while(run: Run, broker: BrokerProcess, topic: str, end: Callable[[], None]) -> None:
    """Run a producer, end the broker meanwhile with `end`, restart it, and wait for the producer."""
    may_go, is_back = threading.Event(), threading.Event()
    with ThreadPoolExecutor(max_workers=1) as executor:
        producer = executor.submit(run, broker.bootstrap, topic, may_go.set, lambda: _wait(is_back))
        # A producer that fails early must not leave the test waiting for it.
        producer.add_done_callback(lambda _: may_go.set())
        _wait(may_go)
        if producer.done():
            producer.result()
            raise AssertionError("the producer was done before the broker could go away")
        try:
            end()
            broker.start()
        finally:
            # A producer that waits for a broker which does not start would keep the test from ending.
            is_back.set()
        producer.result(2 * PATIENCE_SECONDS)


def _wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS), f"the other side did not get there within {PATIENCE_SECONDS} s"


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_an_idempotent_producer_survives_a_broker_that_is(
    way: str, run: Run, make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name(), partitions=PARTITIONS)
    restart_while(run, broker, topic, broker.stop if way == "stopped" else broker.kill)
    reader = ConfluentClient(broker.bootstrap)
    for partition, (first, end) in reader.offsets(topic, range(PARTITIONS)).items():
        expected = list(range(partition, COUNT, PARTITIONS))
        assert (first, end) == (0, len(expected))
        received = reader.consume(topic, partition, end)
        assert [int(one.value or b"-1") for one in received] == expected
        assert [one.offset for one in received] == list(range(end))


def test_topics_records_and_configuration_are_there_after_a_restart(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker()
    kept = create_topic(broker.bootstrap, topic_name(), partitions=2, message_timestamp_type="LogAppendTime")
    gone = create_topic(broker.bootstrap, topic_name())
    client = ConfluentClient(broker.bootstrap)
    client.produce(kept, [Record(b"%d" % number, b"k", partition=number % 2) for number in range(100)])
    before = {partition: client.consume(kept, partition, 50) for partition in (0, 1)}
    delete_topic(broker.bootstrap, gone)
    for _ in range(2):
        broker.restart()
        assert topic_names(broker.bootstrap) == [kept]
        assert {partition: client.consume(kept, partition, 50) for partition in (0, 1)} == before
    client.produce(kept, [Record(b"after")])
    (after,) = client.consume(kept, 0, 1, start=50)
    assert (after.value, after.log_append_time) == (b"after", True)


def test_a_consumer_goes_on_where_it_was_after_a_restart(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker()
    topic = create_topic(broker.bootstrap, topic_name())
    client = ConfluentClient(broker.bootstrap)
    client.produce(topic, [Record(b"before")])

    def restart_and_produce() -> None:
        broker.restart()
        client.produce(topic, [Record(b"after")])

    received = client.consume(topic, 0, 2, after_first=restart_and_produce, timeout_seconds=PATIENCE_SECONDS)
    assert [(one.offset, one.value) for one in received] == [(0, b"before"), (1, b"after")]
