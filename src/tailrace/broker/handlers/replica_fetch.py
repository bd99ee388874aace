"""Fetch by followers: reads up to the log end, and tells the leader the followers' positions.

Odd: the offset in a request counts as the follower's log end only if its log does not diverge from this one and the
offset is in range; waiting acknowledgements are sent before anything is read. Only appends end a follower's wait; a new
high watermark travels with the next response. A new request in the same session ends the wait of the previous one:
followers do that when they have more partitions to name. The peer must have proved that it is the follower
(`peer_identity`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
from tailrace.broker.fetching.replica_sessions import FollowedPartition, ReplicaSession
from tailrace.broker.fetching.sessions import NO_SESSION, PartitionKey, wanted_partitions
from tailrace.broker.leading.lease_watch import VISIT_SECONDS
from tailrace.broker.peer_identity import require_broker
from tailrace.broker.services import RequestContext, Services
from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_LEADER_EPOCH, NO_OFFSET
from tailrace.replication.partition import Partition
from tailrace.replication.reading import Audience
from tailrace.runtime.disk import FileRange
from tailrace.security.operations import Operation
from tailrace.wire.apis import ApiKey
from tailrace.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

_FIRST_VERSION_WITH_REFUSALS = 7
#: How often all partitions of a follower are checked within replica.lag.time.max.ms.
_VISITS_PER_LAG = 4


class _Fetch(NamedTuple):
    """One request of a follower."""

    services: Services
    context: RequestContext
    request: FetchRequest
    replica_id: int
    broker_epoch: int
    session: ReplicaSession
    #: The number of the request in its session.
    number: int


class _Answers(NamedTuple):
    """The results of checking the partitions of a session."""

    data: list[tuple[FollowedPartition, PartitionData]]
    size: int
    has_error: bool
    cold: list[Cold]


def handle(
    services: Services,
    context: RequestContext,
    request: FetchRequest,
    replica_id: int,
    broker_epoch: int,
    *,
    by_topic_id: bool,
) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
    """Respond to a follower, now or when there is news."""

    def make(session_id: int, by_topic_id: bool, now: float) -> ReplicaSession:
        session = ReplicaSession(
            session_id, by_topic_id, last_used=now, replica_id=replica_id, broker_epoch=broker_epoch
        )
        # A follower that does not name its broker epoch must not evict a client's session.
        session.is_privileged = broker_epoch >= 0
        return session

    if not access.is_allowed_on_cluster(services, context, Operation.CLUSTER_ACTION):
        return _refuse(services, request, by_topic_id)
    try:
        require_broker(services, context, replica_id)
        _require_incarnation(services, replica_id, broker_epoch)
        session = services.fetch_sessions.resolve(request, by_topic_id, make)
        if session is not None and not isinstance(session, ReplicaSession):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)  # a client's session
    except KafkaError as error:
        services.counters.refused(ApiKey.FETCH, error.code)
        return _refusal(context.version, request, error.code)
    now = services.clock.monotonic()
    if session is None:
        session = make(NO_SESSION, by_topic_id, now)  # for this request alone
        session.update(request)
    elif session.waiter is not None:
        session.waiter.end()
        session.waiter = None
    interval = services.config.get_int("replica.lag.time.max.ms") / 1000 / _VISITS_PER_LAG
    # Without a lease, only the followers' fetches show that this broker still leads.
    session.visit(now, interval if services.partitions.holds_lease() else min(interval, VISIT_SECONDS))
    fetch = _Fetch(services, context, request, replica_id, broker_epoch, session, session.requests)
    answers = _look(fetch, is_first=True)
    if answers.cold:
        return _warm(fetch, answers)
    if _has_news(fetch, answers) or request.max_wait_ms <= 0:
        return _respond(fetch, answers)
    # Watch from now on, not from when the wait begins: an append in between must end it.
    waiter = session.waiter = FetchWaiter(request.min_bytes - answers.size, asyncio.get_running_loop())
    return _wait(fetch, waiter)


def _refuse(services: Services, request: FetchRequest, by_topic_id: bool) -> FetchResponse:
    """Return the response to a client that may not act as a follower; no session is opened or continued."""
    if request.session_id != NO_SESSION and not request.topics:
        services.counters.refused(ApiKey.FETCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    refused = []
    for key, wanted in wanted_partitions(request, by_topic_id):
        data = PartitionData(partition_index=wanted.partition, aborted_transactions=None)
        refuse(data, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        count_refused(services, services.partitions.traffic_of(key[0]), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        refused.append((key, data))
    return FetchResponse(responses=by_topic(refused))


def _refusal(version: int, request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """Refuse a whole request; before version 7, only partitions have an error."""
    if version >= _FIRST_VERSION_WITH_REFUSALS:
        return FetchResponse(error_code=code)
    refused: list[tuple[PartitionKey, PartitionData]] = []
    for key, wanted in wanted_partitions(request, by_topic_id=False):
        data = PartitionData(partition_index=wanted.partition, records=b"", aborted_transactions=None)
        refuse(data, code)
        refused.append((key, data))
    return FetchResponse(responses=by_topic(refused))


def _require_incarnation(services: Services, replica_id: int, broker_epoch: int) -> None:
    """Refuse an unknown process, and one that a newer process of the same broker has replaced (KIP-903).

    A peer with a larger epoch than the image has may have registered a moment ago; it retries. If such epochs were
    trusted, any peer could shut a follower out by naming one. A broker that lost its registration continues in its last
    epoch.
    """
    if broker_epoch < 0:
        return  # such a fetch gets a response, but its position does not count
    broker = services.metadata.image.brokers.get(replica_id)
    known = services.partitions.last_broker_epochs.get(replica_id) if broker is None else broker.epoch
    if broker_epoch != known:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {replica_id} is registered in epoch {known}, not {broker_epoch}"
            if known is not None
            else f"broker {replica_id} is not registered",
        )


async def _wait(fetch: _Fetch, waiter: FetchWaiter) -> FetchResponse:
    session = fetch.session
    is_alone = session.session_id == NO_SESSION
    try:
        # Without a session, nothing was watched so far, and nobody would end the wait if the client were gone by now.
        if not (is_alone and _has_news(fetch, _look(fetch, is_first=False))):
            await waiter.wait(fetch.request.max_wait_ms / 1000)
        if session.waiter is not waiter:
            return FetchResponse(session_id=session.session_id)  # the response to the next request has the data
        answers = _look(fetch, is_first=False)
        if answers.cold:
            return await _warm(fetch, answers)
        return _respond(fetch, answers)
    finally:
        if session.waiter is waiter:
            session.waiter = None
        if is_alone:
            session.close()


def _has_news(fetch: _Fetch, answers: _Answers) -> bool:
    """True if the answers are worth a response before the request's wait is over."""
    return bool(answers.cold) or answers.has_error or answers.size >= fetch.request.min_bytes


async def _warm(fetch: _Fetch, answers: _Answers) -> FetchResponse:
    await warm(fetch.services, answers.cold, answers.size)
    return _respond(fetch, answers)


def _look(fetch: _Fetch, *, is_first: bool) -> _Answers:
    """Check all partitions that may have news; read records up to the size limit."""
    services, session = fetch.services, fetch.session
    left = fetch.request.max_bytes
    answers: list[tuple[FollowedPartition, PartitionData]] = []
    cold: list[Cold] = []
    size = 0
    has_error = False
    find = access.partition_finder(services, fetch.context, None, session.by_topic_id)
    for followed in list(session.ready.values()):
        data = PartitionData(partition_index=followed.key[1], records=b"", aborted_transactions=None)
        answers.append((followed, data))
        try:
            partition = find(*followed.key)
            _require_replica(fetch, followed, partition)
            if not is_first or session.session_id != NO_SESSION:
                followed.watch(partition)
            wanted = followed.wanted
            is_part_of_ours = is_first and _acknowledge(fetch, followed, partition)
            reading = partition.reader.read(
                wanted.fetch_offset,
                min(wanted.partition_max_bytes, max(left, 0)),
                Audience.REPLICA,
                leader_epoch=wanted.current_leader_epoch,
                last_fetched_epoch=NO_LEADER_EPOCH if is_part_of_ours else wanted.last_fetched_epoch,
                may_exceed=size == 0,
            )
        except KafkaError as error:
            refuse(data, error.code)
            count_refused(services, services.partitions.traffic_of(followed.key[0]), error.code)
            has_error = True
            continue
        describe(data, reading)
        data.last_stable_offset = NO_OFFSET  # followers see everything
        part = reading.batches
        if isinstance(part, FileRange):
            try:
                if partition.log.is_warm(part):
                    data.records = inline_if_small(services, part, size)
                else:
                    cold.append(Cold(partition, data, part))
            except StorageError as error:
                fail(services, partition, data, error)
                has_error = True
                continue
            size += part.size
            left -= part.size
        elif data.diverging_epoch is not None:
            has_error = True
        elif left > 0 and followed.has_told(data):
            # Without room left, nothing was read, and there may be records.
            del session.ready[followed.key]
    return _Answers(answers, size, has_error, cold)


def _require_replica(fetch: _Fetch, followed: FollowedPartition, partition: Partition) -> None:
    """Refuse followers of another leader or epoch, and brokers without a replica."""
    leader_epoch = followed.wanted.current_leader_epoch
    partition.require_leader(leader_epoch, by_replica=True)
    if fetch.replica_id not in partition.replicas:
        # A newer assignment that is unknown here may have added it; without an epoch that is undecidable.
        has_epoch = leader_epoch != NO_LEADER_EPOCH
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _acknowledge(fetch: _Fetch, followed: FollowedPartition, partition: Partition) -> bool:
    """Record a follower's position if its log is a prefix of this one; return whether it is."""
    wanted = followed.wanted
    if wanted.fetch_offset < partition.log.start_offset:
        return False  # the follower has to start over
    if partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset) is not None:
        return False
    partition.leading.follower_fetched(
        fetch.replica_id,
        fetch.broker_epoch,
        wanted.fetch_offset,
        wanted.log_start_offset,
        fetch.services.clock.monotonic(),
    )
    return True


def _respond(fetch: _Fetch, answers: _Answers) -> FetchResponse:
    session = fetch.session
    if session.session_id == NO_SESSION:
        return FetchResponse(responses=by_topic([(followed.key, data) for followed, data in answers.data]))
    news = [
        (followed.key, data)
        for followed, data in answers.data
        if session.followed.get(followed.key) is followed and followed.is_news_in(fetch.number, data)
    ]
    for key, data in news:
        if data.records and (served := session.ready.pop(key, None)) is not None:
            session.ready[key] = served  # serve other partitions first next time
    return FetchResponse(session_id=session.session_id, responses=by_topic(news))
