"""What administrators do to the topics of a simulated cluster: delete and recreate, configure, delete records.

Owns one topic that comes and goes under one name, and the requested and acknowledged changes of it and of others. A
deleted topic takes its records and its committed offsets with it: another topic with the name starts empty. What was
acknowledged is done, and stays done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tailrace.cluster.image import TopicImage
from tailrace.errors import ErrorCode
from tailrace.model import TopicId, TopicPartition
from tailrace.testing.client import KafkaClient
from tailrace.testing.cluster.client import ClusterClient, code_of
from tailrace.testing.cluster.history import CONFIG, GROUP_OFFSETS, NAMESAKE, ClusterHistory, Violation
from tailrace.testing.cluster.machines import SimCluster
from tailrace.testing.cluster.watch import ClusterWatch
from tailrace.testing.cluster.workload import create_topic
from tailrace.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

FLEETING = "fleeting"
_KEEPER = "keeper"
_ANSWER_SECONDS = 8.0
_RETRY_SECONDS = 0.4
_LIFE_SECONDS = (4.0, 20.0)
_DELETE_TOPICS_VERSION = 6
_DELETE_RECORDS_VERSION = 2
_ALTER_CONFIGS_VERSION = 1
_FIND_VERSION = 4
_COMMIT_VERSION = 10
_FETCH_OFFSETS_VERSION = 10
_TOPIC_RESOURCE = 2
_SET = 0
#: The commits of each topic with that name have their own range of offsets.
_OFFSETS_A_LIFE = 1_000_000
_FLUSH = "flush.messages"
#: Settings that may change at any time without losing anything.
_SETTINGS = {
    "compression.type": ("producer", "gzip", "lz4", "zstd", "uncompressed"),
    _FLUSH: ("1", "5", "9223372036854775807"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "segment.ms": ("5000", "604800000"),
}


@dataclass(slots=True)
class FleetingTopic:
    """A topic that is deleted and created again under the same name, for as long as the run lasts."""

    cluster: SimCluster
    history: ClusterHistory
    watch: ClusterWatch
    random: Random
    admin: ClusterClient
    #: Start clients of a topic under its unique name, and end them.
    begin_clients: Callable[[str, TopicId, int], None]
    end_clients: Callable[[str], None]
    lives: int = 0
    _committed: int = -1

    async def run(self, until: float) -> None:
        """Create the topic, delete it, and repeat."""
        loop = self.cluster.loop
        while loop.time() < until:
            self.lives += 1
            partitions = self.random.randint(1, 2)
            topic = await self._create(partitions)
            name = self.watch.names[topic.lineage]
            self.begin_clients(name, topic.topic_id, partitions)
            await self._check_commits(topic)
            await self._commit(topic)
            await asyncio.sleep(self.random.uniform(*_LIFE_SECONDS))
            await self._check_commits(topic)
            if loop.time() >= until and self.random.random() < 0.5:
                return
            await self._delete(topic)
            self.end_clients(name)

    async def _create(self, partitions: int) -> TopicImage:
        while True:
            await create_topic(self.admin, FLEETING, partitions, {})
            for topic in self.watch.topics.values():
                if topic.name == FLEETING:
                    return topic
            # A broker that does not know of the deletion yet says that it exists.
            await asyncio.sleep(_RETRY_SECONDS)

    async def _delete(self, topic: TopicImage) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic.topic_id)], timeout_ms=5000)
        while topic.lineage in self.watch.topics:
            try:
                connection = await self.admin.any_broker()
                answer = await connection.call(request, _DELETE_TOPICS_VERSION, DeleteTopicsResponse, _ANSWER_SECONDS)
                is_done = code_of(answer.responses[0].error_code) is ErrorCode.NONE
                if is_done and topic.lineage in self.watch.topics:
                    raise Violation(CONFIG, f"{FLEETING} was reported as deleted, but is in the store")
            except ConnectionError:
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    # --- its committed offsets

    async def _commit(self, topic: TopicImage) -> None:
        offset = self.lives * _OFFSETS_A_LIFE + self.random.randrange(1000)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        committed = OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=[partition])
        request = OffsetCommitRequest(group_id=_KEEPER, topics=[committed])

        async def commit(coordinator: KafkaClient) -> bool:
            answer = await coordinator.call(request, _COMMIT_VERSION, OffsetCommitResponse, _ANSWER_SECONDS)
            return code_of(answer.topics[0].partitions[0].error_code) is ErrorCode.NONE

        await self._insist(commit)
        self._committed = offset

    async def _check_commits(self, topic: TopicImage) -> None:
        """Check that the topic's committed offset is its own last one, not one of a namesake."""
        wanted = OffsetFetchRequestTopics(topic_id=topic.topic_id, partition_indexes=[0])
        group = OffsetFetchRequestGroup(group_id=_KEEPER, topics=[wanted])
        found: list[int] = []

        async def fetch(coordinator: KafkaClient) -> bool:
            answer = await coordinator.call(
                OffsetFetchRequest(groups=[group]), _FETCH_OFFSETS_VERSION, OffsetFetchResponse, _ANSWER_SECONDS
            )
            if answer.groups[0].error_code:
                return False
            item = answer.groups[0].topics[0].partitions[0]
            if item.error_code:
                return False
            found.append(item.committed_offset)
            return True

        await self._insist(fetch)
        name, life = self.watch.names[topic.lineage], self.lives * _OFFSETS_A_LIFE
        if 0 <= found[0] < life:
            raise Violation(NAMESAKE, f"{name} continues from {found[0]}, which was committed for another topic")
        if self._committed >= life and found[0] != self._committed:
            raise Violation(GROUP_OFFSETS, f"{name} continues from {found[0]}, but {self._committed} was acknowledged")

    async def _insist(self, ask: Callable[[KafkaClient], Coroutine[Any, Any, bool]]) -> None:
        """Ask the coordinator, wherever it is, until it has done it."""
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[_KEEPER])
        while True:
            try:
                connection = await self.admin.any_broker()
                answer = await connection.call(request, _FIND_VERSION, FindCoordinatorResponse, _ANSWER_SECONDS)
                coordinator = answer.coordinators[0]
                if not coordinator.error_code and await ask(
                    await self.admin.connect((coordinator.host, coordinator.port))
                ):
                    return
            except ConnectionError:
                pass
            await asyncio.sleep(_RETRY_SECONDS)


@dataclass(slots=True)
class TopicChanges:
    """Changes settings and deletes records while clients run."""

    cluster: SimCluster
    history: ClusterHistory
    watch: ClusterWatch
    random: Random
    admin: ClusterClient
    #: Whether power may fail everywhere, so that everything must be on disk.
    flushes_all: bool
    #: The partitions whose records may be deleted.
    trimmable: Callable[[], Sequence[TopicPartition]]
    #: By topic and setting: the value acknowledged last, and those that may still be applied.
    _acknowledged: dict[tuple[str, str], str] = field(default_factory=dict)
    _unanswered: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    configured: int = 0
    trimmed: int = 0

    async def run(self, until: float) -> None:
        while self.cluster.loop.time() < until:
            await asyncio.sleep(self.random.uniform(2.0, 15.0))
            partitions = self.trimmable()
            if not partitions:
                continue
            partition = self.random.choice(partitions)
            try:
                if self.random.random() < 0.5:
                    await self._configure(partition.topic)
                else:
                    await self._trim(partition)
            except ConnectionError:
                pass  # its outcome is unknown

    async def _configure(self, topic: str) -> None:
        key = self.random.choice([key for key in _SETTINGS if key != _FLUSH or not self.flushes_all])
        value = self.random.choice(_SETTINGS[key])
        sent = self._unanswered.setdefault((topic, key), [])
        sent.append(value)
        setting = AlterableConfig(name=key, config_operation=_SET, value=value)
        resource = AlterConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=[setting])
        connection = await self.admin.any_broker()
        answer = await connection.call(
            IncrementalAlterConfigsRequest(resources=[resource]),
            _ALTER_CONFIGS_VERSION,
            IncrementalAlterConfigsResponse,
            _ANSWER_SECONDS,
        )
        if code_of(answer.responses[0].error_code) is ErrorCode.NONE:
            sent.remove(value)
            self._acknowledged[topic, key] = value
            self.configured += 1
            self._require_possible(topic, key)

    async def _trim(self, partition: TopicPartition) -> None:
        end, trimmed = self.history.committed_end(partition), self.history.trimmed.get(partition, 0)
        if end <= trimmed:
            return
        offset = self.random.randint(trimmed, end)
        self.history.trimmed[partition] = offset
        topic, number = partition
        wanted = DeleteRecordsPartition(partition_index=number, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=5000)
        connection, _, _ = await self.admin.leader_of(partition)
        answer = await connection.call(request, _DELETE_RECORDS_VERSION, DeleteRecordsResponse, _ANSWER_SECONDS)
        result = answer.topics[0].partitions[0]
        if code_of(result.error_code) is ErrorCode.NONE:
            self.trimmed += 1
            self.history.trimmed_for_sure[partition] = offset
            self.cluster.note(f"records of {partition} below {offset} are deleted")
        else:
            self.admin.doubt(partition)

    def check(self) -> None:
        """Check that settings are those acknowledged last, or unanswered ones sent since."""
        for topic, key in self._acknowledged:
            self._require_possible(topic, key)

    def _require_possible(self, topic: str, key: str) -> None:
        possible = [self._acknowledged[topic, key], *self._unanswered[topic, key]]
        (stored,) = [each for each in self.watch.topics.values() if self.watch.names[each.lineage] == topic]
        value = stored.configs.get(key)
        if value not in possible:
            raise Violation(CONFIG, f"{key} of {topic} is {value}, but was set to {possible[0]}")
