"""Follows one leader: sends requests over one connection, and applies the responses to partitions.

A response counts only for a partition that has not changed since the request: same leader epoch, same position. If one
partition fails, only that one is set aside; if the connection fails, all wait. Logs are truncated while others are
fetched. Between a response and its effect nothing suspends, except for turns between partitions.

New partitions are sent to the leader at once, even while it holds the last request because it has no records: it then
answers that one early (see `handlers/replica_fetch`). So a change of leaders costs no long poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.following.leader_session import Followed, LeaderSession, PartitionKey
from tailrace.broker.network.broker_identity import BrokerIdentity, UnknownBrokerError
from tailrace.broker.network.peer import Backoff, PeerConnection
from tailrace.cluster.image import BrokerEndpoint, BrokerImage
from tailrace.coordinator.deadlines import Deadline
from tailrace.errors import ErrorCode, KafkaError, WireError
from tailrace.model import NO_OFFSET, TopicId
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.runtime.tasks import Tasks
from tailrace.storage.partition_log import LogPast
from tailrace.storage.producer_state import ProducerState
from tailrace.wire.messages.fetch import FetchResponse, PartitionData
from tailrace.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tailrace.wire.messages.replica_start import ReplicaStartRequest, ReplicaStartResponse

logger = logging.getLogger("tailrace.replication")

_FETCH_VERSION = 17
_LIST_OFFSETS_VERSION = 9
_REPLICA_START_VERSION = 0
_LATEST, _EARLIEST_LOCAL = -1, -4
_FIRST_BACKOFF_SECONDS = 0.02
#: The bytes to append before other work runs.
_TURN_BYTES = 1 << 20
#: Pause before a log start offset that the disk refused is saved again.
_START_RETRY_SECONDS = 1.0
#: After these errors, the leader has forgotten the session, and the next request names all partitions.
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
#: The two brokers have different states of the partition: not worth a log line unless it lasts.
_NOT_AGREED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
#: The leader has nothing at the follower's position: it never had, has deleted it, or has it only in the archive.
_NOT_THERE = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
#: The number of consecutive failures of a partition, or of a leader that does not know this broker yet, before it is
#: logged.
_FAILURES_SAID = 8


class Follower(NamedTuple):
    """The following broker, and its parts that fetchers use."""

    broker_id: int
    #: The registered epoch of this start of the broker.
    broker_epoch: Callable[[], int]
    config: BrokerConfig
    runtime: Runtime
    tasks: Tasks
    identity: BrokerIdentity
    #: Returns the endpoint for a connection to another broker; OSError if it has none.
    endpoint_of: Callable[[BrokerImage], BrokerEndpoint]
    #: Called after a log was truncated: whichever fetcher follows it now may continue.
    on_cut: Callable[[Partition], None]


class _Sent(NamedTuple):
    """A request without a response."""

    number: int
    session: int
    answer: asyncio.Future[memoryview]


class ReplicaFetcher:
    """Fetches from one leader: a task that waits for responses, and state that changes without suspension."""

    def __init__(self, follower: Follower, leader: BrokerImage, number: int) -> None:
        self.leader_id = leader.broker_id
        self._leader = leader
        self.session = LeaderSession(follower.config)
        self._follower = follower
        self._name = f"broker-{follower.broker_id}-fetcher-{number}"
        self._loop = asyncio.get_running_loop()
        most_seconds = follower.config.get_int("replica.fetch.backoff.ms") / 1000
        self._backoff = Backoff(follower.runtime.random, _FIRST_BACKOFF_SECONDS, most_seconds)
        self._connection: PeerConnection | None = None
        self._sent: deque[_Sent] = deque()
        self._too_late = Deadline(self._loop, self._give_up)
        self._work = asyncio.Event()
        self._will_look = False
        self._is_unreachable = False
        #: The number of consecutive times that the leader did not know this broker.
        self._times_unknown = 0
        #: Partitions whose log start offset is being saved.
        self._saving_starts: dict[PartitionKey, None] = {}
        self._task = self._start()

    def _start(self) -> asyncio.Task[None]:
        return self._follower.tasks.spawn(self._run(), f"fetch from broker {self.leader_id}")

    # --- followed partitions

    def meet(self, leader: BrokerImage) -> None:
        """Follow the leader to another address or process, without waiting for the old connection to fail."""
        former, self._leader = self._leader, leader
        if (former.epoch, former.endpoints) != (leader.epoch, leader.endpoints):
            self._task.cancel()
            self._disconnect()
            self._backoff.succeeded()
            self._task = self._start()

    def add(self, partition: Partition, topic_id: TopicId) -> None:
        """Follow a partition in its current leader epoch, under a topic id."""
        if self.session.add(partition, topic_id):
            self._look_soon()

    def remove(self, partition: Partition, topic_id: TopicId) -> None:
        """Stop following a partition; responses under way no longer apply to it."""
        self.session.remove(partition, topic_id)

    def promised(self, partition: Partition, topic_id: TopicId) -> None:
        """Resume a partition if its log is now durable enough."""
        followed = self.session.take_confirmed(partition, topic_id)
        if followed is not None:
            self._resume((followed,))

    def close(self) -> None:
        """Stop following this leader."""
        self.session.clear()
        self._task.cancel()
        self._disconnect()

    # --- the task

    async def _run(self) -> None:
        """Fetch until the fetcher is closed; reconnect after any failure of the connection."""
        while True:
            try:
                await self._fetch_from_leader()
            except (OSError, WireError) as error:
                self._lost(error)
            self._disconnect()
            await asyncio.sleep(self._backoff.failed())

    def _lost(self, error: Exception) -> None:
        if isinstance(error, UnknownBrokerError):
            self._times_unknown += 1
            if self._times_unknown < _FAILURES_SAID:
                return  # the leader learns of this broker in a moment
        if not self._is_unreachable:
            count = len(self.session)
            logger.warning(
                "cannot fetch from broker %d, %d partitions wait: %s; retrying", self.leader_id, count, error
            )
        self._is_unreachable = True

    async def _fetch_from_leader(self) -> None:
        follower = self._follower
        endpoint = follower.endpoint_of(self._leader)
        seconds = follower.config.get_int("replica.socket.timeout.ms") / 1000
        network = follower.runtime.network
        connection = await PeerConnection.connect(network, endpoint.host, endpoint.port, self._name, seconds)
        self._connection = connection
        await follower.identity.prove_to(self._leader, connection, seconds)
        self._times_unknown = 0
        self.session.begin()
        while True:
            if not self._sent:
                self._work.clear()
                if not self._send():
                    await self._work.wait()
                continue
            sent = self._sent[0]
            body = await sent.answer
            self._sent.popleft()
            if self._sent:
                self._too_late.set(self._patience_ms())
            else:
                self._too_late.clear()
            if sent.session == self.session.number:
                await self._take(sent, body, connection)
            connection.give_back(body)

    def _patience_ms(self) -> int:
        config = self._follower.config
        return config.get_int("replica.socket.timeout.ms") + config.get_int("replica.fetch.wait.max.ms")

    def _give_up(self) -> None:
        if self._connection is not None:
            logger.warning("broker %d has not answered for %d ms; reconnecting", self.leader_id, self._patience_ms())
            self._connection.close()

    def _disconnect(self) -> None:
        self._too_late.clear()
        for sent in self._sent:
            if not sent.answer.cancel() and not sent.answer.cancelled():
                sent.answer.exception()  # the first request has already reported it
        self._sent.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- requests

    def _look_soon(self) -> None:
        """Notify the leader of changes once all changes of this turn are made."""
        self._work.set()
        if not self._will_look:
            self._will_look = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._will_look = False
        # While the leader holds one request, a second one may be sent, which ends the wait. But the first request of a
        # session must be answered before.
        if len(self._sent) == 1 and self.session.is_established and self.session.has_news:
            self._send()

    def _send(self) -> bool:
        """Send the next request; return False if there is nothing to fetch."""
        if self._connection is None:
            return False
        follower, session = self._follower, self.session
        request = session.next_request(follower.broker_id, follower.broker_epoch())
        if request is None:
            return False
        answer = self._connection.send(request, _FETCH_VERSION)
        self._sent.append(_Sent(session.requests, session.number, answer))
        if len(self._sent) == 1:
            self._too_late.set(self._patience_ms())
        return True

    # --- responses

    async def _take(self, sent: _Sent, body: memoryview, connection: PeerConnection) -> None:
        response = FetchResponse.decode(_FETCH_VERSION, body)
        if response.error_code != ErrorCode.NONE:
            await self._refused(_code(response.error_code))
            return
        if self._is_unreachable:
            logger.info("resumed fetching from broker %d", self.leader_id)
            self._is_unreachable = False
        self._backoff.succeeded()
        out_of_range: list[Followed] = []
        failed: list[Followed] = []
        appended = 0
        for topic in response.responses:
            for data in topic.partitions:
                followed = self.session.find((topic.topic_id, data.partition_index))
                if followed is None or not followed.is_named_by(sent.number):
                    continue
                if data.error_code in _NOT_THERE:
                    out_of_range.append(followed)
                elif not self._take_partition(followed, data):
                    failed.append(followed)
                appended += len(data.records or b"")
                if appended >= _TURN_BYTES:
                    appended = 0
                    await asyncio.sleep(0)
        if out_of_range:
            failed += await self._find_ranges(connection, out_of_range)
        self._delay(failed)
        self.session.answered(response.session_id)

    async def _refused(self, code: ErrorCode) -> None:
        """Handle the refusal of a whole request."""
        self.session.begin()
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # On a new connection, this broker can prove its identity again.
            raise ConnectionError(
                f"broker {self.leader_id} refused the connection, on which this broker has not proved its identity"
            )
        if code not in _SESSION_LOST:
            logger.warning("broker %d refused a fetch request: %s; retrying", self.leader_id, code.name)
        await asyncio.sleep(self._backoff.failed())

    def _take_partition(self, followed: Followed, data: PartitionData) -> bool:
        """Apply the leader's response to a partition, unless it has moved on; return False if it must wait."""
        if not followed.is_where_asked:
            self.session.changed(followed)
            return True
        partition = followed.partition
        try:
            if data.error_code != ErrorCode.NONE:
                raise KafkaError(_code(data.error_code))
            if data.diverging_epoch is not None:
                self._cut(
                    followed,
                    partition.following.truncate_to(data.diverging_epoch.epoch, data.diverging_epoch.end_offset),
                )
                return True
            partition.following.append_fetched(memoryview(_received(data)), data.high_watermark, data.log_start_offset)
        except KafkaError as error:
            self._failed(followed, error)
            return False
        if followed.failures:
            if followed.failures >= _FAILURES_SAID:
                logger.info("resumed fetching %s from broker %d", partition.partition, self.leader_id)
            followed.failures = 0
        log = partition.log
        if log.start_offset > log.saved_start_offset and followed.key not in self._saving_starts:
            self._saving_starts[followed.key] = None
            self._follower.tasks.spawn(self._save_start(followed), f"save the log start of {partition.partition}")
        if partition.following.fetch_position() != followed.asked or log.saved_start_offset != followed.told_log_start:
            self.session.changed(followed)
        return True

    async def _save_start(self, followed: Followed) -> None:
        """Save a raised log start offset, then report it to the leader: a crash must not bring deleted records back.

        A full disk may refuse it for now. Until the leader hears of it, this replica cannot join the ISR, and nothing
        else may ever happen in the partition.
        """
        partition = followed.partition
        log, directory = partition.log, partition.directory
        try:
            while True:
                await directory.checkpoints.save_starts()
                if log.saved_start_offset >= log.start_offset or not directory.holds(log):
                    break
                await asyncio.sleep(_START_RETRY_SECONDS)
        finally:
            del self._saving_starts[followed.key]
        current = self.session.find(followed.key)
        if current is not None and current.partition.log.saved_start_offset != current.told_log_start:
            self.session.changed(current)
            self._look_soon()

    # --- partitions that must wait

    def _failed(self, followed: Followed, error: KafkaError) -> None:
        """Set one partition aside, so that it does not disturb the others each time."""
        followed.failures += 1
        if followed.failures == _FAILURES_SAID or (followed.failures == 1 and error.code not in _NOT_AGREED):
            logger.warning(
                "cannot fetch %s from broker %d: %s; retrying",
                followed.partition.partition,
                self.leader_id,
                error,
                extra={"topic": followed.partition.partition.topic, "repeats": "fetch failed"},
            )
        self.session.set_aside(followed)

    def _delay(self, failed: Iterable[Followed]) -> None:
        """Retry partitions that failed: those with equal numbers of failures together."""
        by_failures: dict[int, list[Followed]] = {}
        for followed in failed:
            by_failures.setdefault(followed.failures, []).append(followed)
        for failures, some in by_failures.items():
            self._loop.call_later(self._backoff.after(failures - 1), self._resume, some)

    def _resume(self, some: Iterable[Followed]) -> None:
        for followed in some:
            if self.session.resume(followed):
                self._look_soon()

    def _cut(self, followed: Followed, work: Coroutine[Any, Any, None]) -> None:
        """Truncate a log while others are fetched, since it takes a sync; then fetch it again."""
        self.session.set_aside(followed)
        self._follower.tasks.spawn(self._finish_cut(followed, work), f"truncate {followed.partition.partition}")

    async def _finish_cut(self, followed: Followed, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except KafkaError as error:
            self._failed(followed, error)
            self._delay([followed])
        else:
            self._resume((followed,))
        # Meanwhile another fetcher may follow the partition, and may have waited for this.
        self._follower.on_cut(followed.partition)

    # --- logs without a common range

    async def _find_ranges(self, connection: PeerConnection, out_of_range: list[Followed]) -> list[Followed]:
        """Ask for the log ends of partitions for which the leader has nothing at our position, and continue from there.

        Returns those that must wait.
        """
        ends = await self._list_offsets(connection, out_of_range, _LATEST)
        starts = await self._list_offsets(connection, out_of_range, _EARLIEST_LOCAL)
        failed = []
        for followed in out_of_range:
            key, past, refusal = followed.key, None, None
            if followed.partition.log.config.is_archived or starts.get(key, NO_OFFSET) > followed.asked[0]:
                try:
                    starts[key], past = await self._ask_past(connection, followed)
                except KafkaError as error:
                    refusal = error
            if self.session.find(key) is not followed or not followed.is_where_asked:
                continue
            try:
                if refusal is not None:
                    raise refusal
                self._cut(followed, _fitted(followed, starts.get(key), ends.get(key), past))
            except KafkaError as error:
                self._failed(followed, error)
                failed.append(followed)
        return failed

    async def _ask_past(self, connection: PeerConnection, followed: Followed) -> tuple[int, LogPast]:
        """Ask where the leader's own log starts, and what a replica that starts there must know of the records before.

        Producers whose last records were deleted may still send those again. Epochs from before are only needed if the
        records are in an archive.
        """
        request = ReplicaStartRequest(
            lineage=followed.partition.lineage,
            partition_index=followed.partition.partition.partition,
            current_leader_epoch=followed.leader_epoch,
        )
        seconds = self._patience_ms() / 1000
        response = await connection.call(request, _REPLICA_START_VERSION, ReplicaStartResponse, seconds)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(_code(response.error_code))
        try:
            producers = ProducerState.from_snapshot(bytes(response.producers))
        except ValueError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        is_archived = followed.partition.log.config.is_archived
        epochs = [(each.epoch, each.start_offset) for each in response.leader_epochs] if is_archived else []
        return response.start_offset, LogPast(epochs, producers)

    async def _list_offsets(
        self, connection: PeerConnection, partitions: list[Followed], timestamp: int
    ) -> dict[PartitionKey, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        ids: dict[str, TopicId] = {}
        for followed in partitions:
            name, number = followed.partition.partition
            ids[name] = followed.topic_id
            topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[])).partitions.append(
                ListOffsetsPartition(
                    partition_index=number, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
                )
            )
        request = ListOffsetsRequest(replica_id=self._follower.broker_id, topics=list(topics.values()))
        seconds = self._patience_ms() / 1000
        response = await connection.call(request, _LIST_OFFSETS_VERSION, ListOffsetsResponse, seconds)
        return {
            (ids[topic.name], answer.partition_index): answer.offset
            for topic in response.topics
            if topic.name in ids
            for answer in topic.partitions
            if answer.error_code == ErrorCode.NONE
        }


def _fitted(followed: Followed, start: int | None, end: int | None, past: LogPast | None) -> Coroutine[Any, Any, None]:
    """Truncate or empty a log so that it can continue with what its leader has, as Kafka's followers do."""
    partition = followed.partition
    own_end, _ = followed.asked
    if start is None or end is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader did not report where its log starts and ends")
    if not 0 <= start <= end:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the leader reported an impossible log range of {start} to {end}")
    if end < own_end:
        return partition.following.truncate_at(end)
    if start > own_end:
        return partition.following.start_anew_at(start, past)
    raise KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader refused offset {own_end} although it has {start} to {end}"
    )


def _received(data: PartitionData) -> bytes | bytearray | memoryview:
    """Return the records of a response, which are in memory and never a range of a file."""
    records = data.records
    return records if isinstance(records, bytes | bytearray | memoryview) else b""


def _code(number: int) -> ErrorCode:
    """Convert an error code of the leader, which may have a newer version with more codes."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
