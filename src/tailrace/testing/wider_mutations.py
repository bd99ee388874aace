"""Brokers that are broken on purpose in ways that only wider runs can notice, one rule each.

As in `mutations`: each replaces one function, and says which invariants may be the first to suffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.broker import controller as broker_controller
from tailrace.broker.handlers import config_changes
from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.housekeeping import Housekeeping
from tailrace.records.batch import BatchHeader
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.producer_state import AppendedBatch, ProducerState
from tailrace.testing.cluster_history import (
    CONFIG,
    DUPLICATE,
    LIVENESS,
    LOST,
    NAMESAKE,
    ORDER,
    STALLED,
    UNASKED,
    UNCLEAN,
)
from tailrace.testing.mutations import Mutation


def _delete_a_little_more(log: PartitionLog, offset: int) -> None:
    _right_advance_start(log, min(offset + 1, log.end_offset))


_right_advance_start = PartitionLog.advance_start


def _forget_all(state: ProducerState, before_ms: int) -> None:
    state._producers.clear()


def _go_on_in_a_new_epoch(state: ProducerState, header: BatchHeader) -> AppendedBatch | None:
    """Who takes a new epoch has to go on with the sequence of the former one."""
    entry = state._producers.get(header.producer_id)
    if entry is not None and header.producer_epoch > entry.epoch and header.base_sequence == 0:
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch is nothing new")
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
    "records are deleted that nobody asked for": Mutation(
        PartitionLog, "advance_start", _delete_a_little_more, (UNASKED, LOST)
    ),
    "a setting is acknowledged and not stored": Mutation(config_changes, "replace", _change_nothing, (CONFIG,)),
    "no election is unclean": Mutation(
        broker_controller.Controller, "_is_unclean", lambda controller, topic: False, (UNCLEAN, LIVENESS)
    ),
    "producers are forgotten too early": Mutation(ProducerState, "expire", _forget_all, (DUPLICATE, ORDER)),
    "a new epoch of a producer does not begin anew": Mutation(
        ProducerState, "check", _go_on_in_a_new_epoch, (LOST, LIVENESS)
    ),
    "files are removed in the loop": Mutation(LogDirectory, "_insist", _work_in_the_loop, (STALLED,)),
}
