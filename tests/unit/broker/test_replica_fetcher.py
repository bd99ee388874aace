"""A fetcher against a leader that the test plays: which answers count, which partitions wait, what starts over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from tailrace.cluster.broker_proof import NONCE_BYTES, Challenge, is_proof
from tailrace.cluster.features import OLDEST, SUPPORTED, SupportedFeatures
from tailrace.errors import ErrorCode
from tailrace.records.batch import assign_offset, read_header
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime.disk import DiskFullError
from tailrace.runtime.transport import Receiver, Transport
from tailrace.storage.checkpoints import LOG_START_OFFSETS
from tailrace.storage.producer_state import ProducerState
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_request_header
from tailrace.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.wire.messages.prove_broker import ProveBrokerRequest, ProveBrokerResponse
from tailrace.wire.messages.replica_start import EpochStart, ReplicaStartRequest, ReplicaStartResponse
from tests.support.response_header import encode_response_header
from tests.unit.broker.clusters import PORT, Cluster, simulate

LEADER = 9
SESSION = 77
NO_CONFIGS: Mapping[str, str] = {}
ARCHIVED = {"tailrace_archive_enable": "true", "tailrace_archive_uri": "/archive"}
_KINDS: dict[ApiKey, type[Message]] = {
    ApiKey.FETCH: FetchRequest,
    ApiKey.LIST_OFFSETS: ListOffsetsRequest,
    ApiKey.REPLICA_START: ReplicaStartRequest,
    ApiKey.PROVE_BROKER: ProveBrokerRequest,
}


class PlayedLeader:
    """Takes the requests of one follower after another, and answers when the test does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._requests: asyncio.Queue[tuple[_Connection, RequestHeader, Any]] = asyncio.Queue()
        self.connections: list[_Connection] = []

    async def listen(self) -> None:
        def accept(transport: Transport) -> Receiver:
            self.connections.append(_Connection(transport, self._requests))
            return self.connections[-1]

        await self._cluster.network.host(f"broker-{LEADER}").listen("", PORT, accept)

    async def next(self, seconds: float = 30.0) -> tuple[Any, Callable[[Message], None]]:
        """The next request, and how to answer it."""
        connection, header, request = await asyncio.wait_for(self._requests.get(), seconds)
        return request, lambda response: connection.answer(header, response)

    async def fetch(self, seconds: float = 30.0) -> tuple[FetchRequest, Callable[..., None]]:
        """The next Fetch request, and how to answer it with partitions."""
        request, answer = await self.next(seconds)
        assert isinstance(request, FetchRequest)
        topic_id = self._cluster.brokers[1].metadata.image.topics["orders"].topic_id

        def respond(*partitions: PartitionData, session_id: int = SESSION, error: ErrorCode = ErrorCode.NONE) -> None:
            topics = [FetchableTopicResponse(topic_id=topic_id, partitions=list(partitions))] if partitions else []
            answer(FetchResponse(session_id=session_id, error_code=error, responses=topics))

        return request, respond

    async def nothing_for(self, seconds: float) -> None:
        """Nobody asks for anything."""
        with pytest.raises(TimeoutError):
            await self.next(seconds)


class _Connection:
    """The leader's side of a connection."""

    def __init__(self, transport: Transport, requests: asyncio.Queue[tuple[_Connection, RequestHeader, Any]]) -> None:
        self.transport = transport
        self._requests = requests
        self._buffer = bytearray(1 << 16)
        self._received = bytearray()
        self.is_lost = False

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self._received += self._buffer[:size]
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            frame = memoryview(bytes(self._received[4:end]))
            del self._received[:end]
            header, position = decode_request_header(frame, dict.fromkeys(_KINDS, 0))
            if header.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
                continue  # by a broker that stops, and wants to know whether this one is there
            kind = _KINDS[ApiKey(header.api_key)]
            self._requests.put_nowait((self, header, kind.decode(header.api_version, frame[position:])))

    def answer(self, header: RequestHeader, response: Message) -> None:
        body = encode_response_header(header.correlation_id, flexible=True) + bytes(response.encode(header.api_version))
        self.transport.send([len(body).to_bytes(4, "big") + body])

    def drained(self) -> None:
        pass

    def disconnected(self, reason: Exception | None) -> None:
        self.is_lost = True


def records(first: int, *what: bytes, epoch: int = 0) -> bytes:
    """A batch as a leader has it in its log."""
    batch = build_batch([NewRecord(value, timestamp=1_700_000_000_000) for value in what])
    assign_offset(batch, first, epoch)
    return bytes(batch)


def data(number: int = 0, content: bytes = b"", high_watermark: int = 0, **fields: Any) -> PartitionData:
    return PartitionData(
        partition_index=number, records=content, high_watermark=high_watermark, log_start_offset=0, **fields
    )


def wanted(request: FetchRequest) -> dict[int, int]:
    """The positions that a request tells, by partition."""
    return {one.partition: one.fetch_offset for one in details(request)}


def details(request: FetchRequest) -> list[FetchPartition]:
    return [one for topic in request.topics for one in topic.partitions]


def forgotten(request: FetchRequest) -> list[int]:
    return [number for topic in request.forgotten_topics_data for number in topic.partitions]


def with_leader(
    test: Callable[[Cluster, PlayedLeader], Coroutine[Any, Any, None]],
    *,
    partitions: int = 1,
    configs: Mapping[str, str] = NO_CONFIGS,
    features: SupportedFeatures = OLDEST,
    **settings: str,
) -> None:
    """Run a test with broker 1 as a follower of what the test plays."""

    async def run(cluster: Cluster) -> None:
        await cluster.register_stranger(LEADER, features=features)
        leader = PlayedLeader(cluster)
        await leader.listen()
        await cluster.create("orders", [[LEADER, 1]] * partitions, **configs)
        await test(cluster, leader)

    simulate(run, brokers=1, **settings)


def values_of(cluster: Cluster, number: int = 0) -> list[bytes | None]:
    return [value for _, _, value in cluster.log(1, number=number)]


# --- which broker it is


async def asked_to_prove(leader: PlayedLeader, *, answers: bool, **answered: Any) -> ProveBrokerRequest:
    """The next request, which proves something, answered or left alone."""
    request, answer = await leader.next()
    assert isinstance(request, ProveBrokerRequest)
    if answers:
        answer(ProveBrokerResponse(**answered))
    return request


def test_nothing_is_fetched_before_the_leader_has_accepted_the_proof() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        broker = cluster.brokers[1]
        first = await asked_to_prove(leader, answers=True, nonce=bytes(range(NONCE_BYTES)))
        assert (first.broker_id, first.broker_epoch, bytes(first.proof)) == (1, broker.registration.epoch, b"")
        second, accept = await leader.next()
        challenge = Challenge(
            broker.metadata.image.cluster_id,
            1,
            first.broker_epoch,
            LEADER,
            bytes(first.nonce),
            bytes(range(NONCE_BYTES)),
        )
        assert is_proof(bytes(second.proof), broker.identity.verifier, challenge)
        await leader.nothing_for(1.0)
        accept(ProveBrokerResponse())
        await leader.fetch()

    with_leader(test, features=SUPPORTED)


def test_a_leader_that_does_not_know_this_broker_yet_is_asked_again_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        nonces = set()
        for _ in range(3):
            request = await asked_to_prove(leader, answers=True, error_code=ErrorCode.STALE_BROKER_EPOCH)
            nonces.add(bytes(request.nonce))
        assert len(nonces) == 3
        assert caplog.text == ""
        await asked_to_prove(leader, answers=True, nonce=bytes(NONCE_BYTES))
        await asked_to_prove(leader, answers=True)
        _, respond = await leader.fetch()
        respond(data())
        # Where it lasts it is said, once.
        leader.connections[-1].transport.close()
        for _ in range(20):
            await asked_to_prove(leader, answers=True, error_code=ErrorCode.STALE_BROKER_EPOCH)
        assert caplog.text.count("cannot fetch from") == 1

    with_leader(test, features=SUPPORTED)


def test_a_leader_that_does_not_answer_a_challenge_is_given_up_and_asked_again() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        for answered in (False, True):
            await asked_to_prove(leader, answers=answered, nonce=bytes(NONCE_BYTES))
            if answered:
                await asked_to_prove(leader, answers=False)
            began = cluster.loop.time()
            await cluster.until(lambda: bool(leader.connections[-1].is_lost))
            assert cluster.loop.time() - began < 2.5
        await asked_to_prove(leader, answers=True, nonce=bytes(NONCE_BYTES))

    with_leader(test, features=SUPPORTED, replica_socket_timeout_ms="2000")


def test_a_leader_that_wants_a_proof_gets_one_on_another_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, respond = await leader.fetch()
        respond(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        await leader.fetch()
        assert len(leader.connections) == 2
        assert "refused the connection, on which this broker has not proved its identity" in caplog.text

    with_leader(test)


def test_a_proof_that_is_refused_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        await asked_to_prove(leader, answers=True, nonce=bytes(NONCE_BYTES))
        await asked_to_prove(leader, answers=True, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        await asked_to_prove(leader, answers=True, nonce=bytes(NONCE_BYTES))
        assert "refused the proof that this is broker 1" in caplog.text

    with_leader(test, features=SUPPORTED)


# --- sessions


def test_the_first_request_names_everything_and_later_ones_what_changed() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        request, answer = await leader.fetch()
        broker = cluster.brokers[1]
        assert (request.session_id, request.session_epoch, wanted(request)) == (0, 0, {0: 0, 1: 0, 2: 0})
        assert request.replica_state.replica_id == 1
        assert request.replica_state.replica_epoch == broker.registration.epoch
        assert (request.max_wait_ms, request.min_bytes) == (500, 1)
        assert {one.current_leader_epoch for one in details(request)} == {0}
        answer(data(1, records(0, b"a", b"b"), high_watermark=1))
        request, answer = await leader.fetch()
        assert (request.session_id, request.session_epoch, wanted(request)) == (SESSION, 1, {1: 2})
        assert [one.last_fetched_epoch for one in details(request)] == [0]
        answer()
        request, answer = await leader.fetch()
        assert (request.session_epoch, wanted(request), forgotten(request)) == (2, {}, [])
        assert values_of(cluster, 1) == [b"a", b"b"]
        assert cluster.partition(1, number=1).high_watermark == 1

    with_leader(test, partitions=3)


def test_without_a_session_everything_is_named_every_time() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        for position in range(3):
            request, answer = await leader.fetch()
            assert (request.session_id, request.session_epoch) == (0, 0)
            assert wanted(request) == {0: position, 1: 0}
            answer(data(0, records(position, b"x")), data(1), session_id=0)

    with_leader(test, partitions=2)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_session_that_is_lost_is_begun_anew(error: ErrorCode) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer(data(0, records(0, b"a")))
        _, answer = await leader.fetch()
        answer(session_id=0, error=error)
        request, answer = await leader.fetch()
        # With the id of the former one, which the leader need not keep any longer.
        assert (request.session_id, request.session_epoch, wanted(request)) == (SESSION, 0, {0: 1, 1: 0})
        answer(session_id=SESSION + 1)
        request, answer = await leader.fetch()
        assert (request.session_id, request.session_epoch) == (SESSION + 1, 1)

    with_leader(test, partitions=2)


def test_after_a_lost_connection_a_new_session_goes_on_from_the_log_end() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer(data(0, records(0, b"a")))
        await leader.fetch()
        leader.connections[-1].transport.abort()
        request, _ = await leader.fetch()
        assert (request.session_epoch, wanted(request)) == (0, {0: 1})

    with_leader(test)


def test_a_partition_that_comes_while_a_request_is_held_back_is_told_at_once() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer()
        held, answer_held = await leader.fetch()
        assert wanted(held) == {}
        await cluster.move(numbers=[1], leader=1)
        await cluster.move(numbers=[1], leader=LEADER)
        request, answer = await leader.fetch(1.0)
        assert (request.session_epoch, wanted(request)) == (2, {1: 0})
        # Not more than two at once, whatever happens.
        await cluster.move(numbers=[2], leader=1)
        await cluster.move(numbers=[2], leader=LEADER)
        await leader.nothing_for(1.0)
        answer_held()
        await leader.nothing_for(1.0)
        answer(data(1, records(0, b"a", epoch=2)))
        request, _ = await leader.fetch(1.0)
        assert (request.session_epoch, wanted(request)) == (3, {1: 1, 2: 0})
        assert values_of(cluster, 1) == [b"a"]

    with_leader(test, partitions=3)


# --- answers that do not count


def test_records_that_come_twice_are_appended_once() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer()
        _, first = await leader.fetch()
        await cluster.move(numbers=[1], leader=1)
        await cluster.move(numbers=[1], leader=LEADER)
        _, second = await leader.fetch()
        # Both were asked for when the log was empty.
        first(data(0, records(0, b"a")))
        second(data(0, records(0, b"a", b"b")))
        request, _ = await leader.fetch()
        assert wanted(request) == {0: 1}
        assert values_of(cluster) == [b"a"]
        assert cluster.brokers[1].fetchers.failed_count == 0

    with_leader(test, partitions=2)


def test_an_answer_of_a_former_leader_epoch_is_for_nobody() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer()
        _, answer = await leader.fetch()
        await cluster.move(leader=LEADER)
        request, second = await leader.fetch()
        assert [(one.current_leader_epoch, one.fetch_offset) for one in details(request)] == [(1, 0)]
        answer(data(0, records(0, b"of epoch 0")))
        second(data(0, records(0, b"of epoch 1", epoch=1)))
        await leader.fetch()
        assert values_of(cluster) == [b"of epoch 1"]

    with_leader(test)


def test_what_is_followed_no_more_takes_no_answer() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer()
        _, answer = await leader.fetch()
        await cluster.move(leader=1)
        answer(data(0, records(0, b"late")))
        request, _ = await leader.fetch()
        assert forgotten(request) == [0]
        assert values_of(cluster) == []

    with_leader(test, partitions=2)


# --- partitions that wait


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        12345,
    ],
)
def test_a_partition_with_an_error_waits_alone_and_longer_each_time(error: int) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer(data(0, records(0, b"a")), data(1, error_code=error))
        pauses = []
        for turn in range(8):
            failed_at = cluster.loop.time()
            request, answer = await leader.fetch()
            assert forgotten(request) == [1]
            assert 1 not in wanted(request)
            answer(data(0, records(turn + 1, b"x")))
            while True:
                request, answer = await leader.fetch()
                if 1 in wanted(request):
                    break
                answer()
            pauses.append(cluster.loop.time() - failed_at)
            answer(data(1, error_code=error))
        assert cluster.brokers[1].fetchers.failed_count == 1
        assert pauses[0] < 0.3
        assert 0.7 < pauses[-1] < 2.5
        assert len(values_of(cluster)) == 9

    with_leader(test, partitions=2)


def test_damaged_records_are_not_appended_but_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        damaged = bytearray(records(0, b"sound"))
        damaged[-1] ^= 1
        answer(data(0, bytes(damaged), high_watermark=1))
        request, answer = await leader.fetch()
        assert wanted(request) in ({0: 0}, {})
        if not wanted(request):
            answer()
            request, answer = await leader.fetch()
        assert wanted(request) == {0: 0}
        assert (values_of(cluster), cluster.partition(1).high_watermark) == ([], 0)
        answer(data(0, records(0, b"sound"), high_watermark=1))
        await leader.fetch()
        assert values_of(cluster) == [b"sound"]
        assert cluster.brokers[1].fetchers.failed_count == 0

    with caplog.at_level(logging.WARNING, logger="tailrace.replication"):
        with_leader(test)
    assert any("cannot fetch orders-0 from broker 9" in line for line in caplog.messages)


# --- logs that differ


async def filled(leader: PlayedLeader, count: int = 5) -> None:
    """Give the follower records of epoch 0, each a batch of its own."""
    _, answer = await leader.fetch()
    batches = b"".join(records(number, f"{number}".encode()) for number in range(count))
    answer(data(0, batches, high_watermark=1))


async def until_named(leader: PlayedLeader) -> tuple[FetchRequest, Callable[..., None]]:
    """The next request that tells a position; those before it are answered with nothing."""
    while True:
        request, answer = await leader.fetch()
        if wanted(request):
            return request, answer
        answer()


def test_a_log_is_cut_where_it_parts_from_the_leaders_and_goes_on_there() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        await filled(leader)
        _, answer = await until_named(leader)
        await cluster.move(leader=LEADER)
        answer()
        request, answer = await until_named(leader)
        assert [(one.fetch_offset, one.last_fetched_epoch) for one in details(request)] == [(5, 0)]
        answer(data(0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=3)))
        request, answer = await until_named(leader)
        assert [(one.fetch_offset, one.last_fetched_epoch) for one in details(request)] == [(3, 0)]
        answer(data(0, records(3, b"new", epoch=1)))
        await leader.fetch()
        assert values_of(cluster) == [b"0", b"1", b"2", b"new"]

    with_leader(test)


async def ends(leader: PlayedLeader, start: int, end: int) -> None:
    """Answer the two questions for the ends of the log."""
    for timestamp, offset in ((-1, end), (-4, start)):
        while True:
            request, answer = await leader.next()
            if isinstance(request, ListOffsetsRequest):
                break
        (partition,) = request.topics[0].partitions
        assert (request.replica_id, partition.timestamp) == (1, timestamp)
        found = ListOffsetsPartitionResponse(partition_index=partition.partition_index, offset=offset)
        answer(ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[found])]))


@pytest.mark.parametrize(
    ("start", "end", "position", "kept"),
    [
        (0, 2, 2, [b"0", b"1"]),
        (0, 0, 0, []),
        (9, 20, 9, []),
    ],
    ids=["the leader ends before", "the leader is empty", "the leader starts after"],
)
def test_a_log_out_of_the_leaders_range_is_made_to_fit(start: int, end: int, position: int, kept: list[bytes]) -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        await filled(leader)
        _, answer = await until_named(leader)
        answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        await ends(leader, start, end)
        if start > len(values_of(cluster)):
            await start_asked(leader, start_offset=start, producers=ProducerState().snapshot())
        request, _ = await until_named(leader)
        assert wanted(request) == {0: position}
        assert values_of(cluster) == kept
        log = cluster.partition(1).log
        assert (log.start_offset, log.end_offset) == (position if start else 0, position)

    with_leader(test)


def test_a_position_that_is_refused_though_it_is_in_range_is_tried_again_later() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        await filled(leader)
        _, answer = await until_named(leader)
        answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        await ends(leader, 0, 20)
        request, _ = await until_named(leader)
        assert wanted(request) == {0: 5}
        assert len(values_of(cluster)) == 5
        assert cluster.brokers[1].fetchers.failed_count == 1

    with_leader(test)


async def start_asked(leader: PlayedLeader, **answered: Any) -> ReplicaStartRequest:
    """Answer the question for where the leader's own log starts."""
    request, answer = await leader.next()
    assert isinstance(request, ReplicaStartRequest)
    answer(ReplicaStartResponse(**answered))
    return request


def test_a_follower_of_what_is_archived_begins_where_the_leaders_own_log_does_and_knows_what_was_before() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        await filled(leader)
        _, answer = await until_named(leader)
        answer(data(0, error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
        # By the time that it asks for more the leader has given up another segment: that answer counts.
        await ends(leader, 9, 20)
        producers = ProducerState()
        known = build_batch([NewRecord(b"x")], producer_id=7, producer_epoch=2, base_sequence=4)
        producers.update(read_header(known), 3, 1_700_000_000_000)
        epochs = [EpochStart(epoch=0, start_offset=0), EpochStart(epoch=3, start_offset=7)]
        asked = await start_asked(leader, start_offset=12, leader_epochs=epochs, producers=producers.snapshot())
        assert (asked.lineage, asked.partition_index, asked.current_leader_epoch) == (
            cluster.partition(1).lineage,
            0,
            0,
        )
        request, answer = await until_named(leader)
        assert [(one.fetch_offset, one.log_start_offset) for one in details(request)] == [(12, 12)]
        answer(data(0, records(12, b"new", epoch=3), high_watermark=13))
        await leader.fetch()
        log = cluster.partition(1).log
        assert (log.start_offset, log.end_offset, values_of(cluster)) == (12, 13, [b"new"])
        assert log.leader_epochs.entries == ((0, 0), (3, 7))
        assert [producer_id for producer_id, _ in log.producers.entries()] == [7]

    with_leader(test, configs=ARCHIVED)


def test_a_follower_of_what_is_archived_keeps_its_log_while_the_leader_does_not_say_where_its_own_starts() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        await filled(leader)
        _, answer = await until_named(leader)
        answer(data(0, error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
        await ends(leader, 9, 20)
        await start_asked(leader, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        request, _ = await until_named(leader)
        assert wanted(request) == {0: 5}
        assert len(values_of(cluster)) == 5

    with_leader(test, configs=ARCHIVED)


def test_a_leaders_log_start_is_taken_over_and_told() -> None:
    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer(data(0, records(0, b"a", b"b", b"c"), high_watermark=3))
        request, answer = await until_named(leader)
        assert [one.log_start_offset for one in details(request)] == [0]
        moved = data(0, high_watermark=3)
        moved.log_start_offset = 2
        answer(moved)
        request, answer = await until_named(leader)
        assert [(one.fetch_offset, one.log_start_offset) for one in details(request)] == [(3, 2)]
        assert values_of(cluster) == [b"c"]

    with_leader(test)


def test_a_log_start_that_the_disk_refuses_for_now_is_told_once_it_is_saved() -> None:
    """Nothing else may ever happen in the partition, and a replica that has not told it cannot join the ISR."""

    async def test(cluster: Cluster, leader: PlayedLeader) -> None:
        _, answer = await leader.fetch()
        answer(data(0, records(0, b"a", b"b", b"c"), high_watermark=3))
        request, answer = await until_named(leader)
        full = cluster.disks[1].fail(
            lambda path: path.endswith(LOG_START_OFFSETS), "replace_file", DiskFullError, times=None
        )
        moved = data(0, high_watermark=3)
        moved.log_start_offset = 2
        answer(moved)
        told = []
        for second in range(20):
            if second == 5:
                full.lift()
            request, answer = await leader.fetch()
            told += [(one.fetch_offset, one.log_start_offset) for one in details(request)]
            await asyncio.sleep(1)
            answer()  # the leader has nothing more to say
        assert told == [(3, 2)]

    with_leader(test)
