"""Fetch 4 to 18: returns file ranges of committed batches; waits for min_bytes up to max_wait; incremental sessions.

Odd: at least one whole batch is returned however small the limits are, otherwise a client could never read past a large
batch (KIP-74). Topics are named by id from version 13 on. Small ranges are read and sent with the response's own bytes,
large ones go by sendfile; a thread first loads ranges that are not in the page cache. Records that only the archive has
are read in the background, and the fetch that finds them ready returns them, however few they are. `replica_fetch`
serves followers, which name themselves in their requests. From version 16 on, a client that asks the wrong broker
learns the leader (KIP-951). Only a client that reads committed records is told of aborted transactions, and its wait
ends when the last stable offset moves. A tool that compares replicas (`kafka-replica-verification`) asks as replica -2;
followers answer it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from tailrace.broker import access
from tailrace.broker.fetching.answers import (
    Cold,
    FetchWaiter,
    by_topic,
    count_refused,
    describe,
    fail,
    inline_if_small,
    refuse,
    warm,
)
from tailrace.broker.fetching.sessions import FetchSession, PartitionKey, wanted_partitions
from tailrace.broker.handlers import replica_fetch
from tailrace.broker.handlers.api import Api
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience, Isolation
from tailrace.runtime.disk import FileRange
from tailrace.security.needs import each
from tailrace.security.operations import Operation, ResourceType
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

_FIRST_VERSION_WITH_IDS = 13
_FIRST_VERSION_WITH_REPLICA_STATE = 15
_FIRST_VERSION_WITH_LEADERS = 16
_LED_OTHERWISE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_DEBUGGER = -2
_READ = Operation.READ


class _Fetch(NamedTuple):
    """One resolved fetch request: what to read, and for which client."""

    services: Services
    context: RequestContext
    request: FetchRequest
    session: FetchSession | None
    wanted: list[tuple[PartitionKey, FetchPartition]]
    audience: Audience


class _Answers(NamedTuple):
    """The results of reading all requested partitions."""

    data: list[tuple[PartitionKey, PartitionData]]
    size: int
    has_error: bool
    cold: list[Cold]
    #: The results with records, and their partitions.
    found: list[tuple[Partition, PartitionData]]
    #: Brokers that the client should ask instead.
    leaders: dict[int, NodeEndpoint]
    #: Futures that end when records from the archive are ready.
    coming: list[asyncio.Future[None]]
    #: Whether there are records from the archive; these are no longer there once taken.
    has_archived: bool


def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
    version = context.version
    by_topic_id = version >= _FIRST_VERSION_WITH_IDS
    replica = request.replica_state
    replica_id = request.replica_id if version < _FIRST_VERSION_WITH_REPLICA_STATE else replica.replica_id
    if replica_id >= 0:
        return replica_fetch.handle(
            services, context, request, replica_id, replica.replica_epoch, by_topic_id=by_topic_id
        )
    try:
        session = services.fetch_sessions.resolve(request, by_topic_id)
    except KafkaError as error:
        services.counters.refused(ApiKey.FETCH, error.code)
        return FetchResponse(error_code=error.code)
    if session is None:
        wanted = wanted_partitions(request, by_topic_id)
    else:
        wanted = [(key, partition.wanted) for key, partition in session.partitions.items()]
    audience = Audience.INSPECTOR if replica_id == _DEBUGGER else Audience.CLIENT
    fetch = _Fetch(services, context, request, session, wanted, audience)
    answers = _read_all(fetch)
    is_enough = answers.has_error or answers.has_archived or answers.size >= request.min_bytes
    if answers.cold or not (is_enough or request.max_wait_ms <= 0):
        return _wait(fetch, answers)
    return _respond(fetch, answers)


async def _wait(fetch: _Fetch, answers: _Answers) -> FetchResponse:
    if not answers.cold:
        waiter = FetchWaiter(fetch.request.min_bytes - answers.size, asyncio.get_running_loop())
        partitions = _find_all(fetch)

        def end(_: asyncio.Future[None]) -> None:
            waiter.end()

        try:
            is_committed_reader = fetch.request.isolation_level == Isolation.READ_COMMITTED
            for partition in partitions:
                if is_committed_reader:
                    partition.watch_stable(waiter)
                else:
                    partition.watch(waiter)
            for read in answers.coming:
                read.add_done_callback(end)
            if _has_moved(answers, partitions, is_committed_reader=is_committed_reader):
                waiter.end()
            await waiter.wait(fetch.request.max_wait_ms / 1000)
        finally:
            for partition in partitions:
                partition.unwatch(waiter)
            for read in answers.coming:
                read.remove_done_callback(end)
        answers = _read_all(fetch)
    if answers.cold:
        await warm(fetch.services, answers.cold, answers.size)
    return _respond(fetch, answers)


def _has_moved(answers: _Answers, partitions: list[Partition], *, is_committed_reader: bool) -> bool:
    """True if there is more to read than when the answers were read: other requests ran meanwhile."""
    if is_committed_reader:
        told = sum([data.last_stable_offset for _, data in answers.data])
        return told != sum([partition.last_stable_offset for partition in partitions])
    told = sum([data.high_watermark for _, data in answers.data])
    return told != sum([partition.high_watermark for partition in partitions])


def _find_all(fetch: _Fetch) -> list[Partition]:
    """Return the partitions that this broker can read."""
    find, found = _finder(fetch), []
    for key, _ in fetch.wanted:
        try:
            found.append(find(*key))
        except KafkaError:
            continue
    return found


def _finder(fetch: _Fetch) -> Callable[[Any, int], Partition]:
    context = fetch.context
    return access.partition_finder(fetch.services, context, _READ, context.version >= _FIRST_VERSION_WITH_IDS)


def _read_all(fetch: _Fetch) -> _Answers:
    """Read every partition until the size limit is reached; the very first batch is read whatever its size."""
    services, request = fetch.services, fetch.request
    find = _finder(fetch)
    left = min(request.max_bytes, services.config.get_int("fetch.max.bytes"))
    answers: list[tuple[PartitionKey, PartitionData]] = []
    cold: list[Cold] = []
    found: list[tuple[Partition, PartitionData]] = []
    leaders: dict[int, NodeEndpoint] = {}
    coming: list[asyncio.Future[None]] = []
    size = 0
    has_error = has_archived = False
    for key, wanted in fetch.wanted:
        data = PartitionData(partition_index=key[1], records=b"", aborted_transactions=None)
        answers.append((key, data))
        try:
            partition = find(*key)
            reading = partition.reader.read(
                wanted.fetch_offset,
                min(wanted.partition_max_bytes, left),
                fetch.audience,
                isolation=request.isolation_level,
                leader_epoch=wanted.current_leader_epoch,
                last_fetched_epoch=wanted.last_fetched_epoch,
                may_exceed=size == 0,
            )
        except KafkaError as error:
            refuse(data, error.code)
            if error.code in _LED_OTHERWISE and fetch.context.version >= _FIRST_VERSION_WITH_LEADERS:
                _name_leader(fetch, key, data, leaders)
            has_error = True
            count_refused(services, services.partitions.traffic_of(key[0]), error.code)
            continue
        describe(data, reading)
        if reading.diverging_epoch is not None:
            has_error = True
        if reading.pending is not None:
            coming.append(reading.pending)
        part = reading.batches
        if part is None:
            continue
        try:
            if reading.is_archived or not isinstance(part, FileRange):
                data.records = part
                has_archived = True
            elif partition.log.is_warm(part):
                data.records = inline_if_small(services, part, size)
            else:
                cold.append(Cold(partition, data, part))
        except StorageError as error:
            fail(services, partition, data, error)
            has_error = True
            continue
        found.append((partition, data))
        size += len(part)
        left -= len(part)
    return _Answers(answers, size, has_error, cold, found, leaders, coming, has_archived)


def _name_leader(fetch: _Fetch, key: PartitionKey, data: PartitionData, leaders: dict[int, NodeEndpoint]) -> None:
    """Add the leader of a partition and that broker's endpoint, if there is a leader."""
    image = fetch.services.metadata.image
    number = key[1]
    topic = access.find_topic(fetch.services, fetch.context, None, key[0])
    if topic is None or number >= len(topic.partitions):
        return
    state = topic.partitions[number]
    if fetch.services.partitions.is_cut_off(topic, number):
        return  # this broker no longer names itself, and does not claim that another broker leads in this epoch
    broker = image.brokers.get(state.leader)
    endpoint = None if broker is None else broker.endpoint(fetch.context.listener)
    if broker is not None and endpoint is not None:
        data.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        leaders[state.leader] = NodeEndpoint(
            node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )


def _respond(fetch: _Fetch, answers: _Answers) -> FetchResponse:
    for partition, found in answers.found:
        partition.traffic.bytes_out += len(found.records or b"")
    session = fetch.session
    if session is None:
        response = FetchResponse(responses=by_topic(answers.data))
    else:
        news = [
            (key, data)
            for key, data in answers.data
            if (known := session.partitions.get(key)) is not None and known.is_news(data)
        ]
        session.moved_to_end([key for key, data in news if data.records])
        response = FetchResponse(session_id=session.session_id, responses=by_topic(news))
    if answers.leaders:
        response.node_endpoints = list(answers.leaders.values())
    return response


API = Api(
    FetchRequest,
    4,
    18,
    handle,
    "Read record batches, with long polling and incremental sessions.",
    needs=(each(Operation.READ, ResourceType.TOPIC), each(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)),
)
