"""Metrics of consumer groups: their progress, and what their coordinator does.

Progress has the names that lag exporters for Kafka use, so that their dashboards and alerts work; the rest has Kafka's
names. A broker shows the groups that it coordinates, and their lag in partitions that it also leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tailrace.broker.monitoring.exposition import Sample, escape, labels
from tailrace.broker.monitoring.metric import Metric, Samples, counter, gauge, one
from tailrace.broker.monitoring.observed import Look
from tailrace.errors import KafkaError
from tailrace.groups.classic_group import GroupState
from tailrace.groups.committed_offset import CommittedOffset
from tailrace.groups.consumer_group import ConsumerGroupState
from tailrace.groups.counters import GroupCounters
from tailrace.groups.group_table import CLASSIC, CONSUMER
from tailrace.groups.shard import GroupShard

_PLACE = ("consumergroup", "topic", "partition")


def _progress(value: Callable[[Look, str, int, int], int | None]) -> Samples:
    """Return one sample for each committed offset, from its topic, partition and offset; none if there is no value."""

    def samples(look: Look) -> Iterator[Sample]:
        for shard in look.observed.groups:
            for group_id in shard.offsets.groups():
                group = escape(group_id)
                for (topic, number), committed in list(shard.offsets.of_group(group_id).items()):
                    if not _counts(shard, topic, committed):
                        continue
                    found = value(look, topic, number, committed.offset)
                    if found is not None:
                        # Topic names have no characters that need escaping.
                        yield Sample(f'consumergroup="{group}",topic="{topic}",partition="{number}"', found)

    return samples


def _counts(shard: GroupShard, topic: str, committed: CommittedOffset) -> bool:
    try:
        return shard.counts(topic, committed)
    except KafkaError:
        return False  # shown once it is known


def _lag(look: Look, topic: str, number: int, committed: int) -> int | None:
    try:
        partition = look.observed.partitions.find(topic, number)
    except KafkaError:
        return None  # another broker leads it, it was deleted, or its disk failed
    return max(0, partition.high_watermark - committed)


def _members(look: Look) -> Iterator[Sample]:
    for shard in look.observed.groups:
        for group_id, count in shard.member_counts():
            yield Sample(labels(consumergroup=group_id), count)


def _states(look: Look) -> Counter[tuple[str, str]]:
    """Count groups by type and state, once per scrape."""
    if look.group_states is None:
        look.group_states = Counter()
        for shard in look.observed.groups:
            look.group_states.update((group.kind, group.state) for group in shard.list_groups())
    return look.group_states


def _of_type(kind: str) -> Callable[[Look], int]:
    return lambda look: sum(count for (each, _), count in _states(look).items() if each == kind)


def _types(look: Look) -> Iterator[Sample]:
    for kind in (CLASSIC, CONSUMER):
        yield Sample(labels(protocol=kind), _of_type(kind)(look))


def _consumer_states(look: Look) -> Iterator[Sample]:
    for state in ConsumerGroupState:
        yield Sample(labels(state=state.value.lower()), _states(look)[CONSUMER, state.value])


def _in_state(state: GroupState) -> Metric:
    return gauge(
        f"kafka_coordinator_group_groupmetadatamanager_numgroups{state.value.lower()}",
        f"Classic groups in the state {state.value}.",
        one(lambda look: _states(look)[CLASSIC, state.value]),
    )


def _counted(value: Callable[[GroupCounters], int]) -> Samples:
    return one(lambda look: value(look.observed.groups.counters))


GROUP_METRICS: tuple[Metric, ...] = (
    gauge(
        "kafka_consumergroup_lag",
        "The high watermark of a partition minus the offset that a group has committed in it; only on a "
        "broker that coordinates the group and leads the partition.",
        _progress(_lag),
        *_PLACE,
    ),
    gauge(
        "kafka_consumergroup_current_offset",
        "A group's committed offset in a partition.",
        _progress(lambda look, topic, number, committed: committed),
        *_PLACE,
    ),
    gauge("kafka_consumergroup_members", "Members of a group.", _members, "consumergroup"),
    gauge(
        "kafka_coordinator_group_groupmetadatamanager_numgroups",
        "Classic groups that this broker coordinates, including those that only have offsets.",
        one(_of_type(CLASSIC)),
    ),
    *(_in_state(state) for state in GroupState),
    gauge(
        "kafka_coordinator_group_groupmetadatamanager_numoffsets",
        "Committed offsets of all groups that this broker coordinates.",
        one(lambda look: sum(len(shard.offsets) for shard in look.observed.groups)),
    ),
    gauge(
        "kafka_server_group_coordinator_metrics_group_count",
        "Groups by rebalance protocol: classic, or consumer for the newer one (KIP-848).",
        _types,
        "protocol",
    ),
    gauge(
        "kafka_server_group_coordinator_metrics_consumer_group_count",
        "Groups of the newer protocol by state.",
        _consumer_states,
        "state",
    ),
    counter(
        "kafka_server_group_coordinator_metrics_group_rebalance_count_total",
        "Rebalances of classic groups that began.",
        _counted(lambda counters: counters.rebalances),
    ),
    counter(
        "kafka_server_group_coordinator_metrics_group_completed_rebalance_count_total",
        "Rebalances of classic groups that ended with assignments for the members.",
        _counted(lambda counters: counters.completed_rebalances),
    ),
    counter(
        "kafka_server_group_coordinator_metrics_consumer_group_rebalance_count_total",
        "New target assignments of groups of the newer protocol.",
        _counted(lambda counters: counters.consumer_rebalances),
    ),
    counter(
        "kafka_server_group_coordinator_metrics_offset_commit_count_total",
        "Committed offsets, one for each partition of a commit.",
        _counted(lambda counters: counters.offset_commits),
    ),
    counter(
        "kafka_server_group_coordinator_metrics_offset_expiration_count_total",
        "Offsets that expired after offsets.retention.minutes.",
        _counted(lambda counters: counters.offset_expirations),
    ),
    counter(
        "kafka_server_group_coordinator_metrics_offset_deletion_count_total",
        "Offsets that administrators deleted: alone, with their group or with their topic.",
        _counted(lambda counters: counters.offset_deletions),
    ),
)
