"""Brokers that are broken on purpose in ways that only wider runs can notice, one rule each.

As in `mutations`, each replaces one function, and names the invariants that may be violated first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.broker.handlers import config_changes
from tailrace.broker.leading import controller as broker_controller
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.housekeeping import Housekeeping
from tailrace.records.batch import BatchHeader, iterate_batches
from tailrace.replication.reading import PartitionReader, Reading
from tailrace.runtime.disk import FileRange
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.producer_entry import AppendedBatch
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.segment import Segment
from tailrace.testing.clock import SimClock
from tailrace.testing.cluster.disasters import BLACKOUT
from tailrace.testing.cluster.history import (
    BEYOND,
    CONFIG,
    CORRUPT,
    DISAGREE,
    DUPLICATE,
    ISR,
    LIVENESS,
    LOST,
    NAMESAKE,
    ORDER,
    SELF,
    STALLED,
    TOO_FEW,
    TWO_VALUES,
    UNASKED,
    UNCLEAN,
)
from tailrace.testing.cluster.mutations import Mutation


def _delete_a_little_more(log: PartitionLog, offset: int) -> None:
    _right_advance_start(log, min(offset + 1, log.end_offset))


_right_advance_start = PartitionLog.advance_start


def _promise_at_once(log: PartitionLog, size: int) -> None:
    _right_account(log, size)
    log.promised_offset = log.end_offset


_right_account = PartitionLog._account


def _believe(segment: Segment, position: int, data: bytes) -> None:
    segment._note_checked(position, position + len(data))


def _skip_a_batch(
    reader: PartitionReader, reading: Reading, offset: int, max_bytes: int, limit: int
) -> FileRange | None:
    part = _right_read(reader, reading, offset, max_bytes, limit)
    if part is None or limit != reader._partition.high_watermark:
        return part
    first = next(iter(iterate_batches(memoryview(part.file.read(part.position, part.size)))))[1]
    if first.size == part.size:
        return part
    return FileRange(part.file, part.position + first.size, part.size - first.size)


_right_read = PartitionReader._read_log


def _stand_still(clock: SimClock) -> float:
    return round(clock._loop.time() * clock.rate - clock.slept_seconds, 9)


def _forget_all(state: ProducerState, before_ms: int) -> None:
    state._producers.clear()


def _go_on_in_a_new_epoch(state: ProducerState, header: BatchHeader) -> AppendedBatch | None:
    """A new epoch must continue the sequence of the previous one."""
    entry = state._producers.get(header.producer_id)
    if entry is not None and header.producer_epoch > entry.epoch and header.base_sequence == 0:
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the new epoch does not continue the sequence")
    return _right_check(state, header)


_right_check = ProducerState.check


async def _work_in_the_loop(directory: LogDirectory, call: Callable[[], None], problem: str) -> None:
    call()


def _change_nothing(stored: TopicImage, **changes: Any) -> TopicImage:
    return stored


WIDER_MUTATIONS: Mapping[str, Mutation] = {
    "commits of a deleted topic count for its namesake": Mutation(
        Housekeeping, "counts", lambda housekeeping, topic_name, committed: True, (NAMESAKE,)
    ),
    "a deletion removes more records than requested": Mutation(
        PartitionLog, "advance_start", _delete_a_little_more, (UNASKED, LOST)
    ),
    "a log start is reported before it is saved": Mutation(
        PartitionLog,
        "saved_start_offset",
        property(lambda log: log.start_offset, lambda log, offset: None),
        (UNASKED,),
        BLACKOUT,
    ),
    "a setting is acknowledged and not stored": Mutation(config_changes, "replace", _change_nothing, (CONFIG,)),
    "unclean elections never happen": Mutation(
        broker_controller.Controller, "_is_unclean", lambda controller, topic: False, (UNCLEAN, LIVENESS)
    ),
    "flush.messages does not hold back the promise": Mutation(
        PartitionLog, "_account", _promise_at_once, (LOST, ISR, DISAGREE, TWO_VALUES, SELF, TOO_FEW), BLACKOUT
    ),
    "consumers get data that rotted on disk": Mutation(Segment, "verify", _believe, (CORRUPT, BEYOND), "disk rots"),
    "readers skip the first of several batches": Mutation(PartitionReader, "_read_log", _skip_a_batch, (ORDER,)),
    "leases use a clock that stops while the machine sleeps": Mutation(
        SimClock, "monotonic", _stand_still, (LOST, ORDER), "suspend"
    ),
    "producers are forgotten too early": Mutation(ProducerState, "expire", _forget_all, (DUPLICATE, ORDER)),
    "a new producer epoch must continue the old sequence": Mutation(
        ProducerState, "check", _go_on_in_a_new_epoch, (LOST, LIVENESS)
    ),
    "files are removed in the loop": Mutation(LogDirectory, "insist", _work_in_the_loop, (STALLED,)),
}
