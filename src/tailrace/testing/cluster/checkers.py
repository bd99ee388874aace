"""What must hold for a simulated cluster when everything is healed and nothing is in progress.

Each check raises `Violation` with what it saw. The history has already reported everything that could be seen before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tailrace.cluster.image import NO_LEADER
from tailrace.model import INTERNAL_TOPICS, TopicPartition
from tailrace.testing.cluster.history import (
    ACKS_ALL,
    DISAGREE,
    DUPLICATE,
    LOST,
    ORDER,
    TWO_VALUES,
    UNASKED,
    ClusterHistory,
    Promise,
    Violation,
)
from tailrace.testing.cluster.machines import SimCluster
from tailrace.testing.cluster.roving_producer import RovingProducer
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.cluster.workload import ClusterProducer

ACKS_LEADER = 1


def what_is_missing(cluster: SimCluster, watch: ClusterWatch) -> list[str]:
    """Return what is unhealthy: brokers that do not serve, partitions without a leader or with a small ISR."""
    missing = [f"{node.name} does not serve" for node in cluster.nodes if not node.is_serving]
    for topic in watch.topics.values():
        for number, state in enumerate(topic.partitions):
            if state.leader == NO_LEADER or set(state.isr) != set(state.replicas):
                name = watch.names[topic.lineage]
                missing.append(f"{name}-{number} is led by {state.leader}, in sync {state.isr} of {state.replicas}")
    return missing


def check_replicas_are_equal(cluster: SimCluster, watch: ClusterWatch, history: ClusterHistory) -> None:
    """Check that all replicas have the same records, up to the same end, and that these are the committed ones."""
    ends: dict[TopicPartition, tuple[int, str]] = {}
    for node in cluster.nodes:
        assert node.broker is not None
        for replica in node.broker.partitions:
            partition = watch.key_of(replica)
            if partition.topic in watch.deleted:
                continue
            if replica.log.start_offset < history.trimmed_for_sure.get(partition, 0):
                raise Violation(
                    UNASKED,
                    f"{partition} starts at {replica.log.start_offset} on {node.name}: records that were deleted "
                    f"up to {history.trimmed_for_sure[partition]} are back",
                )
            end, other = ends.setdefault(partition, (replica.log.end_offset, node.name))
            if replica.log.end_offset != end:
                raise Violation(
                    DISAGREE,
                    f"{partition} ends at {end} on {other} and at {replica.log.end_offset} on {node.name}",
                )
    watch.look()
    for partition, (end, _) in ends.items():
        committed = history.committed.get(partition, {})
        beyond = [offset for offset in committed if offset >= end]
        if beyond:
            raise Violation(LOST, f"{partition} ends at {end}, {committed[beyond[0]]} was at {beyond[0]}")
        gap = next((each for each in range(history.trimmed.get(partition, 0), end) if each not in committed), None)
        if partition.topic not in INTERNAL_TOPICS and gap is not None:
            raise Violation(DISAGREE, f"{partition} ends at {end}, but offset {gap} was never seen")


def check_promises(history: ClusterHistory, watch: ClusterWatch) -> None:
    """Check that acknowledged records are where their producers were told, unless too many brokers failed."""
    for promise in history.promises:
        partition = promise.partition
        is_gone = partition.topic in watch.deleted or promise.offset < history.trimmed.get(partition, 0)
        if is_gone or history.may_lose(partition):
            continue
        seen = history.committed.get(partition, {}).get(promise.offset)
        if seen is not None and seen.value == promise.value:
            continue
        if promise.acks == ACKS_ALL:
            raise Violation(LOST, f"{promise} is missing, found {seen}")
        lost_at = history.loop.time() if seen is None else seen.at
        if promise.acks == ACKS_LEADER:
            states = watch.states_since(promise.partition, promise.sent_at, lost_at)
            leaders = [promise.broker_id, *[state.leader for state in states if state.leader != NO_LEADER]]
            if not history.explains_loss(leaders, promise.sent_at, lost_at):
                raise Violation(LOST, f"{promise} is missing, found {seen}; its leader had not failed")
        if promise.acks > ACKS_LEADER:
            failed = history.count_failed(promise.sent_at, lost_at)
            if failed < promise.acks:
                raise Violation(LOST, f"{promise} is missing, found {seen}; by then {failed} brokers had failed")


def check_records(history: ClusterHistory, producers: Iterable[ClusterProducer | RovingProducer]) -> None:
    """Check that records in the logs were sent, are in order, and occur once if their producers do not repeat them."""
    idempotent = {producer.name for producer in producers if producer.is_idempotent}
    again = {producer.name for producer in producers if producer.sends_again and not producer.is_idempotent}
    for partition, records in history.committed.items():
        if partition.topic in INTERNAL_TOPICS:
            continue
        numbers: dict[str, list[int]] = {}
        for offset in sorted(records):
            value = records[offset].value or b""
            name = history.sent.get(value)
            if name is None:
                raise Violation(TWO_VALUES, f"{partition} at {offset} has {value!r}, which was never sent")
            numbers.setdefault(name, []).append(int(value.rpartition(b":")[2]))
        for name, found in numbers.items():
            producer = name.partition("~")[0]
            _check_order(
                f"{partition} of {name}", found, is_once=producer not in again, is_idempotent=producer in idempotent
            )


def _check_order(whose: str, numbers: list[int], *, is_once: bool, is_idempotent: bool) -> None:
    if is_once and len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise Violation(DUPLICATE if is_idempotent else ORDER, f"{whose}: {twice} is there more than once")
    # A repeated record may appear again at any time; first occurrences are in order.
    for before, after in pairwise(dict.fromkeys(numbers)):
        if after < before:
            raise Violation(ORDER, f"{whose}: {after} follows {before}")


def check_leader_order(watch: ClusterWatch, promises: Iterable[Promise]) -> None:
    """Check that records that one leader acknowledged one after another in one epoch have growing offsets."""
    last: dict[tuple[str, TopicPartition], Promise] = {}
    for promise in promises:
        before = last.get((promise.producer, promise.partition))
        if before is not None and promise.acks != ACKS_ALL and promise.offset <= before.offset:
            # A leader that was deposed and elected again may have truncated the first one before it accepted the
            # second.
            states = watch.states_since(promise.partition, before.sent_at, promise.acknowledged_at)
            if len({state.leader_epoch for state in states}) == 1:
                raise Violation(ORDER, f"{promise} after {before}")
        last[promise.producer, promise.partition] = promise
