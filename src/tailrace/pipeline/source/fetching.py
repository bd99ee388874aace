"""Fetches the records of one range of offsets from the partition's leader, as Arrow batches.

Owns the fetches: the next one is in flight while the last one is decoded. It retries if leaders move, brokers restart
or connections break; every offset of the range is read once, whatever happens meanwhile. An offset that is gone is lost
data, which is an error or is logged and skipped, as the query demands.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ErrorCode, WireError
from tailrace.model import TopicPartition
from tailrace.pipeline.arrow.decoding import RecordDecoder
from tailrace.pipeline.connections.brokers import Brokers, source_errors
from tailrace.pipeline.failures import SourceError, UnknownTopicError, UnreachableBrokerError
from tailrace.pipeline.source.client_settings import READ_COMMITTED, ClientSettings
from tailrace.pipeline.source.corrupt_batches import CorruptBatches
from tailrace.pipeline.source.offsets import EARLIEST, LATEST
from tailrace.pipeline.source.planning import report_data_loss
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.pipeline.source.record_filter import RecordFilter
from tailrace.protocol_client.connection import BrokerConnection
from tailrace.protocol_client.errors import RETRIABLE, ConnectionFailure, RetriableError, error_name
from tailrace.protocol_client.settings import join_address
from tailrace.protocol_client.versions import Versions
from tailrace.records.batch import iterate_batches
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

if TYPE_CHECKING:
    import pyarrow as pa

#: From 12 on requests are flexible, and from 13 on they name topics by id.
_FETCH = Versions(4, 11)
_MAX_BYTES = (1 << 31) - 1
#: After this many empty responses for offsets below the high watermark, those count as compacted away.
_EMPTY_ANSWERS = 2
_CLEANUP_POLICY = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What every task of a query needs beside its range."""

    client: ClientSettings
    columns: tuple[str, ...]
    only: RecordFilter
    fail_on_data_loss: bool
    poll_timeout_ms: int
    fail_on_corrupt_batch: bool = True


def read_range(plan: FetchPlan, wanted: OffsetRange, decoder: RecordDecoder | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the existing records of a range that pass the filter, in order of their offsets.

    A given decoder decides about columns and filters instead of the plan.
    """
    skipped = CorruptBatches(wanted, fail=plan.fail_on_corrupt_batch)
    if decoder is None:
        decoder = RecordDecoder(wanted, plan.columns, plan.only, take_corrupt=skipped.take)
    fetcher = _RangeFetcher(plan, wanted, decoder)
    try:
        yield from fetcher.read()
    finally:
        fetcher.close()
        skipped.say()


class _RangeFetcher:
    """One pass over one range."""

    def __init__(self, plan: FetchPlan, wanted: OffsetRange, decoder: RecordDecoder) -> None:
        self._plan = plan
        self._range = wanted
        self._name = TopicPartition(wanted.topic, wanted.partition)
        # The planner of the query has reached the cluster.
        self._brokers = Brokers(plan.client, reached=True)
        self._decoder = decoder
        self._empty_answers = 0
        #: Whether lost records were reported already.
        self._is_lost = False
        #: Whether compaction may remove records; None until that was looked up.
        self._compacted: bool | None = None

    def close(self) -> None:
        self._brokers.close()

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read to the end of the range, retrying from the last position."""
        deadline = self._next_deadline()
        while self._decoder.next_offset < self._range.end:
            before = self._decoder.next_offset
            try:
                yield from self._read_from_leader()
                problem = "no records arrived"
            except (RetriableError, UnreachableBrokerError) as error:
                problem = str(error)
            if self._decoder.next_offset > before:
                deadline = self._next_deadline()
            elif time.monotonic() > deadline:
                raise SourceError(
                    f"cannot read offset {before} of {self._name}: {problem}; gave up after "
                    f"{self._plan.poll_timeout_ms / 1000:g} s (option kafkaConsumer.pollTimeoutMs)"
                )
            else:
                time.sleep(self._plan.client.cluster.retry_backoff_ms / 1000)
        # Fetches name a topic and not its lineage. A lineage never returns: if it is the same now, it was so all the
        # time.
        if not self._is_lost and self._brokers.is_replaced(self._name.topic, self._range.lineage):
            self._lose(
                f"topic '{self._name.topic}' was deleted and created again while offsets {self._range.start} to "
                f"{self._range.end - 1} of {self._name} were read"
            )

    def _next_deadline(self) -> float:
        return time.monotonic() + self._plan.poll_timeout_ms / 1000

    def _read_from_leader(self) -> Iterator[pa.RecordBatch]:
        """Read from one leader until the end, or until a problem."""
        try:
            address = self._brokers.leader_of(self._name, self._range.lineage)
        except UnknownTopicError as error:
            self._lose(f"{error}, so offsets {self._decoder.next_offset} to {self._range.end - 1} are lost")
            return
        try:
            connection = self._brokers.connect(address)
            yield from self._read_from(connection)
        except (ConnectionFailure, WireError) as error:
            raise RetriableError(f"lost the broker at {join_address(address)}: {error}") from None
        finally:
            # A response may still be in flight; the next request needs a connection without one.
            self._brokers.drop(address)

    def _read_from(self, connection: BrokerConnection) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder
        with source_errors():
            version = connection.version_of(FetchRequest, _FETCH)
        self._ask(connection, version, decoder.next_offset)
        while True:
            answer = FetchResponse.decode(version, connection.receive())
            if answer.error_code:
                raise _refused(answer.error_code, self._name)
            data = _only_partition(answer)
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._skip_lost()
                return
            if data.error_code:
                raise _refused(data.error_code, self._name)
            records = data.records
            if not isinstance(records, memoryview) or not len(records):
                self._note_empty(answer, data)
                return
            start, end = _bounds_in(connection.buffer, records)
            before = decoder.next_offset
            after = self._offset_after(records)
            is_asked = before < after < self._range.end
            if is_asked:
                self._ask(connection, version, after)
            aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
            batches = decoder.decode(connection.buffer, start, end, aborted)
            yield from batches
            if decoder.next_offset >= self._range.end:
                return
            if decoder.next_offset == before:
                self._note_empty(answer, data)
                return
            self._empty_answers = 0
            if not is_asked:
                self._ask(connection, version, decoder.next_offset)

    def _offset_after(self, records: memoryview) -> int:
        """Return where the decoder will be after it has decoded a response, from the headers of its batches."""
        after = self._decoder.next_offset
        for _, header in iterate_batches(records):
            if header.base_offset >= self._range.end:
                return max(after, self._range.end)
            after = max(after, header.next_offset)
        return after

    def _ask(self, connection: BrokerConnection, version: int, offset: int) -> None:
        client = self._plan.client
        request = FetchRequest(
            max_wait_ms=client.fetch_wait_ms,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            isolation_level=client.isolation_level,
            topics=[
                FetchTopic(
                    topic=self._name.topic,
                    partitions=[
                        FetchPartition(
                            partition=self._name.partition, fetch_offset=offset, partition_max_bytes=client.fetch_bytes
                        )
                    ],
                )
            ],
        )
        connection.send(request, version)

    def _note_empty(self, answer: FetchResponse, data: PartitionData) -> None:
        """Note an empty response: either records are still to come, or all remaining ones were compacted away.

        Without compaction they are on their way: from the archive, from which a broker may read for a while.
        """
        is_committed_reader = self._plan.client.isolation_level == READ_COMMITTED
        readable_end = data.last_stable_offset if is_committed_reader else data.high_watermark
        if readable_end < self._range.end or answer.throttle_time_ms:
            return
        self._empty_answers += 1
        if self._empty_answers >= _EMPTY_ANSWERS and self._is_compacted():
            self._decoder.skip_to(self._range.end)

    def _is_compacted(self) -> bool:
        if self._compacted is None:
            policy = self._brokers.topic_setting(self._name.topic, _CLEANUP_POLICY)
            self._compacted = policy is not None and "compact" in policy
        return self._compacted

    def _skip_lost(self) -> None:
        """Continue where the log begins, if allowed: the offset to read is not in the log."""
        at = self._decoder.next_offset
        earliest = self._brokers.offsets_at({self._name: EARLIEST})[self._name]
        if earliest > at:
            last = min(earliest, self._range.end) - 1
            self._lose(f"offsets {at} to {last} of {self._name} are lost: the log begins at {earliest}", last + 1)
            return
        latest = self._brokers.offsets_at({self._name: LATEST})[self._name]
        if latest < at:
            self._lose(
                f"offsets {at} to {self._range.end - 1} of {self._name} are lost: the log ends at {latest}; its "
                "topic was probably deleted and created again"
            )

    def _lose(self, message: str, go_on_at: int | None = None) -> None:
        self._is_lost = True
        report_data_loss(message, fail=self._plan.fail_on_data_loss)
        self._decoder.skip_to(self._range.end if go_on_at is None else go_on_at)


def _only_partition(answer: FetchResponse) -> PartitionData:
    if len(answer.responses) != 1 or len(answer.responses[0].partitions) != 1:
        raise WireError("the response has other partitions than requested")
    return answer.responses[0].partitions[0]


def _bounds_in(buffer: bytearray, records: memoryview) -> tuple[int, int]:
    """Return where a view of a buffer's bytes begins and ends in the buffer."""
    import ctypes

    start = ctypes.addressof(ctypes.c_char.from_buffer(records)) - ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return start, start + len(records)


def _refused(code: int, name: TopicPartition) -> Exception:
    message = f"the leader of {name} returned {error_name(code)}"
    if code == ErrorCode.KAFKA_STORAGE_ERROR:
        message += " (it cannot read its disk or the topic's archive; the broker's log says why)"
    if code in RETRIABLE or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return RetriableError(message)
    return SourceError(f"reading {name} failed: {message}")
