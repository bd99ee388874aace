"""What holds for every client library alike; each client's test file runs this specification with its own client.

A client has `produce`, `consume`, `offsets` and `offset_for_time`; see the modules in tests/support.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from tests.interop.conftest import Broker
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import ACKS, CODECS, MESSAGE_TOO_LARGE, Received, Record, RefusedError, contents
from tests.support.topics import create_topic, topic_names

HEADERS = (("trace", b"4bf92f35"), ("tag", b"checkout"), ("tag", b"refund"))
#: Compressible, so that no client sends it uncompressed.
TEXT = b"the quick brown fox jumps over the lazy dog; " * 20


class Client(Protocol):
    """The shape that the clients in tests/support share."""

    name: str
    bootstrap: str

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = ...,
        acks: str = ...,
        patience_ms: int = ...,
    ) -> list[tuple[int, int]] | None: ...

    def consume(
        self,
        topic: str,
        partition: int,
        count: int,
        *,
        start: int = ...,
        max_wait_ms: int = ...,
        after_first: Callable[[], None] | None = ...,
        timeout_seconds: int = ...,
    ) -> list[Received]: ...

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]: ...

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None: ...


def sample(count: int = 20) -> list[Record]:
    """Records with keys and headers, one of them with a null value and one with a null key."""
    records = [Record(b"%d %s" % (number, TEXT), b"key-%d" % number, HEADERS) for number in range(count)]
    records[3] = records[3]._replace(value=None)
    records[5] = records[5]._replace(key=None)
    return records


class ClientSpecification:
    """Subclassed by each client's test file, which provides the fixture `connect`."""

    #: Whether the client can give a record its timestamp.
    sets_timestamps = True

    @pytest.fixture
    def connect(self) -> Callable[[Broker], Any]:
        raise NotImplementedError

    @pytest.fixture
    def client(self, connect: Callable[[Broker], Client], broker: Broker) -> Client:
        return connect(broker)

    @pytest.mark.parametrize("acks", ACKS)
    @pytest.mark.parametrize("codec", CODECS)
    def test_records_come_back_as_they_were_sent(
        self, client: Client, topic_name: Callable[[], str], codec: str, acks: str
    ) -> None:
        topic = create_topic(client.bootstrap, topic_name())
        records = sample()
        before_ms = int(time.time() * 1000)
        positions = client.produce(topic, records, compression=codec, acks=acks)
        received = client.consume(topic, 0, len(records))
        after_ms = int(time.time() * 1000)
        assert [one.content() for one in received] == contents(records)
        assert [one.offset for one in received] == list(range(len(records)))
        assert all(before_ms <= one.timestamp_ms <= after_ms for one in received)
        assert not any(one.log_append_time for one in received)
        if acks != "0" and positions is not None:
            assert positions == [(0, offset) for offset in range(len(records))]

    def test_a_record_keeps_the_time_its_producer_gave_it(self, client: Client, topic_name: Callable[[], str]) -> None:
        if not self.sets_timestamps:
            writer: Client = ConfluentClient(client.bootstrap)
        else:
            writer = client
        topic = create_topic(client.bootstrap, topic_name())
        now_ms = int(time.time() * 1000)
        times = [now_ms - 86_400_000, now_ms - 3_600_000, now_ms - 7_200_000, now_ms]
        writer.produce(topic, [Record(b"at", timestamp_ms=at) for at in times])
        assert [one.timestamp_ms for one in client.consume(topic, 0, 4)] == times

    def test_a_topic_with_log_append_time_stamps_records_itself(
        self, client: Client, topic_name: Callable[[], str]
    ) -> None:
        topic = create_topic(client.bootstrap, topic_name(), message_timestamp_type="LogAppendTime")
        long_ago = 1_000_000_000_000 if self.sets_timestamps else None
        before_ms = int(time.time() * 1000)
        client.produce(topic, [Record(b"one", timestamp_ms=long_ago), Record(b"two", timestamp_ms=long_ago)])
        received = client.consume(topic, 0, 2)
        assert [one.value for one in received] == [b"one", b"two"]
        assert all(one.log_append_time for one in received)
        assert all(before_ms <= one.timestamp_ms <= time.time() * 1000 for one in received)

    def test_reading_starts_at_the_offset_that_is_sought(self, client: Client, topic_name: Callable[[], str]) -> None:
        topic = create_topic(client.bootstrap, topic_name())
        # One batch each time, so that the requested offset is inside a batch and not at its beginning.
        for start in (0, 50):
            client.produce(topic, [Record(b"%d" % number) for number in range(start, start + 50)])
        for start in (0, 7, 50, 93):
            received = client.consume(topic, 0, 100 - start, start=start)
            assert [(one.offset, one.value) for one in received] == [
                (number, b"%d" % number) for number in range(start, 100)
            ]

    def test_each_partition_has_its_own_offsets(self, client: Client, topic_name: Callable[[], str]) -> None:
        topic = create_topic(client.bootstrap, topic_name(), partitions=3)
        shares = {0: 5, 1: 0, 2: 11}
        client.produce(
            topic,
            [Record(b"%d" % number, partition=part) for part, count in shares.items() for number in range(count)],
        )
        assert client.offsets(topic, [0, 1, 2]) == {0: (0, 5), 1: (0, 0), 2: (0, 11)}
        assert [one.value for one in client.consume(topic, 2, 11)] == [b"%d" % number for number in range(11)]
        assert [one.partition for one in client.consume(topic, 0, 5)] == [0] * 5

    def test_a_time_is_turned_into_the_first_offset_not_older(
        self, client: Client, topic_name: Callable[[], str]
    ) -> None:
        topic = create_topic(client.bootstrap, topic_name())
        start_ms = int(time.time() * 1000) - 1_000_000
        writer = ConfluentClient(client.bootstrap)
        for first in (0, 10, 20):
            writer.produce(
                topic,
                [Record(b"x", timestamp_ms=start_ms + number * 1000) for number in range(first, first + 10)],
            )
        assert client.offset_for_time(topic, 0, start_ms - 5) == 0
        assert client.offset_for_time(topic, 0, start_ms + 13_000) == 13
        assert client.offset_for_time(topic, 0, start_ms + 13_001) == 14
        assert client.offset_for_time(topic, 0, start_ms + 29_001) is None

    def test_a_record_of_900_kilobytes_goes_through(self, client: Client, topic_name: Callable[[], str]) -> None:
        topic = create_topic(client.bootstrap, topic_name())
        value = (b"0123456789abcdef" * 57_600)[: 900 * 1024]
        client.produce(topic, [Record(b"before"), Record(value), Record(b"after")])
        assert [one.value for one in client.consume(topic, 0, 3)] == [b"before", value, b"after"]

    def test_a_record_above_the_limit_is_refused_and_leaves_nothing(
        self, client: Client, topic_name: Callable[[], str]
    ) -> None:
        topic = create_topic(client.bootstrap, topic_name())
        with pytest.raises(RefusedError) as refused:
            client.produce(topic, [Record(b"x" * 2_000_000)])
        assert refused.value.code == MESSAGE_TOO_LARGE
        assert client.offsets(topic, [0]) == {0: (0, 0)}

    def test_a_topic_may_have_its_own_limit(self, client: Client, topic_name: Callable[[], str]) -> None:
        small = create_topic(client.bootstrap, topic_name(), max_message_bytes="2000")
        large = create_topic(client.bootstrap, topic_name(), max_message_bytes="3000000")
        with pytest.raises(RefusedError) as refused:
            client.produce(small, [Record(b"x" * 3000)])
        assert refused.value.code == MESSAGE_TOO_LARGE
        client.produce(large, [Record(b"x" * 2_000_000)])
        assert [len(one.value or b"") for one in client.consume(large, 0, 1)] == [2_000_000]

    def test_producing_creates_a_topic_that_is_missing(self, client: Client, topic_name: Callable[[], str]) -> None:
        topic = topic_name()
        client.produce(topic, [Record(b"hello", partition=None)])
        assert topic in topic_names(client.bootstrap)
        assert [one.value for one in client.consume(topic, 0, 1)] == [b"hello"]

    def test_producing_creates_nothing_where_that_is_switched_off(
        self, connect: Callable[[Broker], Client], strict_broker: Broker, topic_name: Callable[[], str]
    ) -> None:
        client, topic = connect(strict_broker), topic_name()
        with pytest.raises(RefusedError):
            client.produce(topic, [Record(b"hello", partition=None)], patience_ms=2000)
        assert topic not in topic_names(strict_broker.bootstrap)

    def test_a_waiting_consumer_is_answered_when_a_record_arrives(
        self, client: Client, topic_name: Callable[[], str]
    ) -> None:
        topic = create_topic(client.bootstrap, topic_name())
        writer = ConfluentClient(client.bootstrap)
        writer.produce(topic, [Record(b"first")])
        sent_at: list[float] = []

        def produce_second() -> None:
            writer.produce(topic, [Record(b"second")])
            sent_at.append(time.monotonic())

        # The fetch may wait 20 s, so an answer long before that is due to the record.
        received = client.consume(topic, 0, 2, max_wait_ms=20_000, after_first=produce_second)
        assert [one.value for one in received] == [b"first", b"second"]
        assert time.monotonic() - sent_at[0] < 10
