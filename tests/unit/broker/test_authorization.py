"""What each API tells and does if nothing is allowed, and what it asks the authorizer for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.handlers import APIS, Api
from tailrace.errors import ErrorCode
from tailrace.model import TopicPartition
from tailrace.security.needs import NOTHING, Need, each, whole
from tailrace.security.operations import SUPPORTED, Operation, ResourceType
from tailrace.security.principals import ANONYMOUS, Principal
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct
from tailrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tailrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tailrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from tests.support.authorizers import Everything, Listed
from tests.support.messages import RESPONSES
from tests.unit.broker.brokers import TestedBroker, produce_request, with_broker
from tests.unit.broker.requests import GROUP, NEWER_GROUP, OF_GROUP, OF_TOPIC, TOPIC, TRANSACTION, Case, cases
from tests.unit.broker.test_repeated_requests import Member, is_known
from tests.unit.broker.test_repeated_requests import frame_of as known_frame

FEW = {
    "offsets_topic_num_partitions": "2",
    "transaction_state_log_num_partitions": "2",
    "group_initial_rebalance_delay_ms": "0",
}
ANYBODY = str(ANONYMOUS)
ALICE = Principal("User", "alice")
#: What would tell something of a log if it were not -1.
TELLING = {
    "base_offset",
    "committed_leader_epoch",
    "committed_offset",
    "end_offset",
    "high_watermark",
    "last_stable_offset",
    "leader_epoch",
    "log_append_time_ms",
    "log_start_offset",
    "low_watermark",
    "offset",
    "start_offset",
    "timestamp",
}


def with_content(path: Path, test: Callable[[TestedBroker], Coroutine[Any, Any, None]]) -> None:
    """A broker with a topic that has records, groups of both protocols with offsets, and an open transaction."""

    async def run(broker: TestedBroker) -> None:
        await broker.create(TOPIC)
        assert (await broker.produce(TOPIC, 3)).error_code == ErrorCode.NONE
        for group in (GROUP, NEWER_GROUP):
            await broker.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4, FindCoordinatorResponse)
        commit = await broker.ask(commit_request(3), 8, OffsetCommitResponse)
        assert commit.topics[0].partitions[0].error_code == ErrorCode.NONE
        newer = ConsumerGroupHeartbeatRequest(
            group_id=NEWER_GROUP,
            member_id="m1",
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[TOPIC],
            topic_partitions=[],
        )
        joined = await broker.ask(newer, 1, ConsumerGroupHeartbeatResponse)
        assert joined.assignment is not None
        await begin_transaction(broker)
        await test(broker)

    with_broker(path, run, **FEW)


async def begin_transaction(broker: TestedBroker) -> None:
    wanted = FindCoordinatorRequest(coordinator_keys=[TRANSACTION], key_type=1)
    await broker.ask(wanted, 4, FindCoordinatorResponse)
    initialize = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
    producer = await broker.ask(initialize, 5, InitProducerIdResponse)
    adding = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTION,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
    )
    added = await broker.ask(adding, 3, AddPartitionsToTxnResponse)
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ErrorCode.NONE


def commit_request(offset: int) -> OffsetCommitRequest:
    item = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[item])
    return OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=[topic])


def cases_of(broker: TestedBroker) -> list[Case]:
    return cases(broker.broker.metadata.image.topics[TOPIC].topic_id)


def fields_of(struct: Struct, version: int, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every field that a version of a message has: where it is, its name and its value or None for no struct there."""
    for name, field in struct.FIELDS.items():
        if not field.in_version(version):
            continue
        value = getattr(struct, name)
        if field.struct is None:
            yield path + name, name, value
            continue
        structs = value if isinstance(value, list) else [] if value is None else [value]
        for one in structs:
            yield from fields_of(one, version, f"{path}{name}.")


def error_paths(kind: type[Struct], version: int, path: str = "") -> Iterator[str]:
    for name, field in kind.FIELDS.items():
        if field.in_version(version):
            if name.endswith("error_code"):
                yield path + name
            elif field.struct is not None:
                yield from error_paths(field.struct, version, f"{path}{name}.")


def errors_of(response: Message, version: int) -> dict[str, list[int]]:
    """The error codes of a response, by the names of the fields that they are in."""
    errors: dict[str, list[int]] = {path: [] for path in error_paths(type(response), version)}
    for path, name, value in fields_of(response, version):
        if name.endswith("error_code"):
            errors[path].append(value)
    return errors


def told_by(response: Message, version: int) -> list[tuple[str, Any]]:
    """What a response tells of a log, and the operations that it says are allowed."""
    return [
        (path, value)
        for path, name, value in fields_of(response, version)
        if (name in TELLING and value != -1) or (name.endswith("authorized_operations") and value not in (0, -(2**31)))
    ]


def names_in(message: Message, version: int, topic_id: bytes) -> set[str]:
    """What a message names of what is there."""
    encoded = bytes(message.encode(version))
    known = {TOPIC: TOPIC.encode(), GROUP: GROUP.encode(), NEWER_GROUP: NEWER_GROUP.encode(), "id": topic_id}
    return {name for name, content in known.items() if content in encoded}


def state_of(broker: TestedBroker) -> list[Any]:
    """Everything that requests could have changed."""
    services = broker.broker.services
    partition = services.partitions.find(TOPIC, 0)
    groups = [shard.list_groups() for shard in services.groups]
    offsets = services.groups.shard(GROUP).committed(GROUP, None, -1)
    assert isinstance(offsets, dict)
    return [
        services.metadata.image,
        partition.log.end_offset,
        partition.log_start_offset,
        groups,
        offsets[TopicPartition(TOPIC, 0)],
        len(broker.broker.metadata.image.topics),
    ]


def test_there_is_a_case_for_every_api(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        assert {case.request.API_KEY for case in cases_of(broker)} == set(APIS)

    with_content(tmp_path, test)


def test_if_nothing_is_allowed_nothing_succeeds_changes_or_is_told(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        topic_id = broker.broker.metadata.image.topics[TOPIC].topic_id.bytes
        before = state_of(broker)
        broker.use(authorizer=Listed())
        for request, version, refused in cases_of(broker):
            said = f"{type(request).__name__} v{version}"
            response = await broker.ask(request, version, RESPONSES[request.API_KEY])
            assert errors_of(response, version) == {
                path: refused.get(path, []) for path in error_paths(type(response), version)
            }, said
            assert told_by(response, version) == [], said
            assert names_in(response, version, topic_id) <= names_in(request, version, topic_id), said
            assert state_of(broker) == before, said

    with_content(tmp_path, test)


def test_everything_an_api_needs_is_asked_for_and_nothing_else(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        all_cases = cases_of(broker)
        asked: dict[int, set[tuple[Operation, ResourceType]]] = {key: set() for key in APIS}
        # What is enough on the cluster hides what is needed on topics.
        for authorizer in (Listed(), Everything(but=ResourceType.CLUSTER), Everything()):
            broker.use(authorizer=authorizer)
            for request, version, _ in all_cases:
                if getattr(request, "include_cluster_authorized_operations", False) and authorizer.allows_something:
                    continue  # it is told all that is allowed, so all of that is asked for
                authorizer.asked.clear()
                await broker.ask(request, version, RESPONSES[request.API_KEY])
                asked[request.API_KEY] |= {(operation, kind) for operation, kind, _ in authorizer.asked}
        for key, api in APIS.items():
            needed = {pair for need in api.needs for pair in pairs_of(need)}
            if key == ApiKey.DESCRIBE_TOPIC_PARTITIONS:  # tells what is allowed on topics each time
                needed |= {(operation, ResourceType.TOPIC) for operation in SUPPORTED[ResourceType.TOPIC]}
            assert asked[key] == needed, key

    with_content(tmp_path, test)


def pairs_of(need: Need) -> set[tuple[Operation, ResourceType]]:
    pairs = {(need.operation, need.resource_type)}
    return pairs if need.alternative is None else pairs | pairs_of(need.alternative)


def test_an_api_that_declares_nothing_cannot_be_made() -> None:
    declared = APIS[ApiKey.HEARTBEAT]
    with pytest.raises(TypeError, match="needs"):
        Api(declared.request, 0, 4, declared.handle, "undeclared")  # type: ignore[call-arg]
    Api(declared.request, 0, 4, declared.handle, "free for all", needs=NOTHING)


def test_an_api_that_can_be_refused_as_a_whole_says_how() -> None:
    declared = APIS[ApiKey.HEARTBEAT]
    with pytest.raises(TypeError, match="refused as a whole"):
        Api(declared.request, 0, 4, declared.handle, "mute", needs=(whole(Operation.READ, ResourceType.GROUP),))
    Api(declared.request, 0, 4, declared.handle, "by item", needs=(each(Operation.READ, ResourceType.GROUP),))


def test_acks_zero_that_is_refused_closes_the_connection(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        before = state_of(broker)
        broker.use(authorizer=Listed())
        assert broker.answer(produce_request(TOPIC, acks=0), 9) is None
        assert broker.transport.is_closed
        assert state_of(broker) == before

    with_content(tmp_path, test)


def test_lists_have_only_what_may_be_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("visible")
        visible = (Operation.DESCRIBE, ResourceType.TOPIC, "visible")
        group = (Operation.DESCRIBE, ResourceType.GROUP, GROUP)
        broker.use(authorizer=Listed({ANYBODY: [visible, group]}))
        metadata = await broker.ask(MetadataRequest(topics=None), 12, MetadataResponse)
        assert [topic.name for topic in metadata.topics] == ["visible"]
        paged = await broker.ask(DescribeTopicPartitionsRequest(), 0, DescribeTopicPartitionsResponse)
        assert [topic.name for topic in paged.topics] == ["visible"]
        assert paged.topics[0].topic_authorized_operations == 1 << Operation.DESCRIBE
        listed = await broker.ask(ListGroupsRequest(), 5, ListGroupsResponse)
        assert [each.group_id for each in listed.groups] == [GROUP]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
        (offsets,) = (await broker.ask(asked, 8, OffsetFetchResponse)).groups
        assert (offsets.error_code, offsets.topics) == (ErrorCode.NONE, [])
        older = await broker.ask(OffsetFetchRequest(group_id=GROUP, topics=None), 7, OffsetFetchResponse)
        assert (older.error_code, older.topics) == (ErrorCode.NONE, [])

    with_content(tmp_path, test)


def test_who_may_describe_the_cluster_sees_all_groups(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        broker.use(authorizer=Listed({ANYBODY: [(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")]}))
        listed = await broker.ask(ListGroupsRequest(), 5, ListGroupsResponse)
        assert {group.group_id for group in listed.groups} == {GROUP, NEWER_GROUP}
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        cluster = await broker.ask(request, 1, DescribeClusterResponse)
        assert cluster.cluster_authorized_operations == 1 << Operation.DESCRIBE

    with_content(tmp_path, test)


def test_a_cached_answer_is_told_only_to_those_with_equal_rights(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        await broker.create("visible")
        rights = [(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in (TOPIC, "visible")]
        authorizer = Listed({str(ALICE): rights, ANYBODY: rights[1:]})
        broker.use(authorizer=authorizer)

        async def names() -> list[str | None]:
            response = await broker.ask(MetadataRequest(topics=None), 12, MetadataResponse)
            return [topic.name for topic in response.topics]

        for _ in range(2):
            broker.speak_for(ALICE)
            assert await names() == [TOPIC, "visible"]
            broker.speak_for(ANONYMOUS)
            assert await names() == ["visible"]
        authorizer.asked.clear()
        assert await names() == ["visible"]
        assert authorizer.asked == [], "it was cached"
        authorizer.allowed[ANYBODY] = set()
        assert await names() == []

    with_content(tmp_path, test)


def test_requests_known_by_their_bytes_are_refused_once_they_are_not_allowed(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        group = (Operation.READ, ResourceType.GROUP, GROUP)
        topic = (Operation.READ, ResourceType.TOPIC, TOPIC)
        authorizer = Listed({ANYBODY: [group, topic]})
        beat, commit = await a_known_member(broker, authorizer)
        assert is_known(broker, known_frame(beat, 4))
        authorizer.allowed[ANYBODY] = {group}
        assert is_known(broker, known_frame(beat, 4))
        assert not is_known(broker, known_frame(commit, 8))
        refused = await broker.ask(commit, 8, OffsetCommitResponse)
        assert refused.topics[0].partitions[0].error_code == OF_TOPIC
        authorizer.allowed[ANYBODY] = {topic}
        assert not is_known(broker, known_frame(beat, 4))
        assert (await broker.ask(beat, 4, HeartbeatResponse)).error_code == OF_GROUP
        refused = await broker.ask(commit, 8, OffsetCommitResponse)
        assert refused.topics[0].partitions[0].error_code == OF_GROUP

    with_broker(tmp_path, test, **FEW)


async def a_known_member(broker: TestedBroker, authorizer: Listed) -> tuple[HeartbeatRequest, OffsetCommitRequest]:
    """A member whose heartbeats and commits are known by their bytes."""
    await broker.create(TOPIC, partitions=2)
    member = Member(broker)
    await member.join(GROUP)
    broker.use(authorizer=authorizer)
    beat, commit = member.heartbeat(), member.commit(1)
    assert (await broker.ask(beat, 4, HeartbeatResponse)).error_code == ErrorCode.NONE
    response = await broker.ask(commit, 8, OffsetCommitResponse)
    assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
    return beat, commit


def test_a_topic_named_by_an_id_that_nobody_has_is_unknown(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        nobodys = Principal("User", "x")
        broker.use(authorizer=Listed({str(nobodys): []}))
        unknown = MetadataRequestTopic(name=None, topic_id=nobodys_id())
        metadata = await broker.ask(MetadataRequest(topics=[unknown]), 12, MetadataResponse)
        assert [topic.error_code for topic in metadata.topics] == [ErrorCode.UNKNOWN_TOPIC_ID]
        wanted = FetchTopic(topic_id=nobodys_id(), partitions=[FetchPartition(partition=0, partition_max_bytes=9)])
        fetched = await broker.ask(FetchRequest(topics=[wanted]), 13, FetchResponse)
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    with_content(tmp_path, test)


def nobodys_id() -> Any:
    return type(MetadataRequestTopic().topic_id)(int=7)


def test_a_refusal_by_id_names_the_topic_to_those_who_may_describe_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        topic_id = broker.broker.metadata.image.topics[TOPIC].topic_id
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)])
        for right, name in ((None, None), (Operation.DESCRIBE, TOPIC)):
            rights = [] if right is None else [(right, ResourceType.TOPIC, TOPIC)]
            broker.use(authorizer=Listed({ANYBODY: rights}))
            (result,) = (await broker.ask(request, 6, DeleteTopicsResponse)).responses
            assert (result.error_code, result.name, result.topic_id) == (OF_TOPIC, name, topic_id)

    with_content(tmp_path, test)


def test_who_may_create_a_topic_but_not_see_its_configuration_is_told_so(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        broker.use(authorizer=Listed({ANYBODY: [(Operation.CREATE, ResourceType.TOPIC, "created")]}))
        wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("created", "other")]
        created, other = (await broker.ask(CreateTopicsRequest(topics=wanted), 7, CreateTopicsResponse)).topics
        assert (created.error_code, created.topic_config_error_code) == (ErrorCode.NONE, OF_TOPIC)
        assert (created.num_partitions, created.configs) == (-1, None)
        assert other.error_code == OF_TOPIC
        assert "other" not in broker.broker.metadata.image.topics

    with_content(tmp_path, test)


def test_a_topic_is_created_for_metadata_only_by_those_who_may_create_it(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        describe = (Operation.DESCRIBE, ResourceType.TOPIC, "new")
        for create, error in (
            (None, OF_TOPIC),
            ((Operation.CREATE, ResourceType.TOPIC, "new"), ErrorCode.NONE),
        ):
            broker.use(authorizer=Listed({ANYBODY: [describe] if create is None else [describe, create]}))
            (topic,) = (await broker.ask(request, 12, MetadataResponse)).topics
            assert topic.error_code == error
            assert ("new" in broker.broker.metadata.image.topics) == (error == ErrorCode.NONE)

    with_content(tmp_path, test)


def test_a_group_that_reads_hidden_topics_is_not_described(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        group = (Operation.DESCRIBE, ResourceType.GROUP, NEWER_GROUP)
        topic = (Operation.DESCRIBE, ResourceType.TOPIC, TOPIC)
        request = ConsumerGroupDescribeRequest(group_ids=[NEWER_GROUP])
        for rights, error, members in (([group], OF_TOPIC, 0), ([group, topic], ErrorCode.NONE, 1)):
            broker.use(authorizer=Listed({ANYBODY: rights}))
            (described,) = (await broker.ask(request, 1, ConsumerGroupDescribeResponse)).groups
            assert (described.error_code, len(described.members)) == (error, members)

    with_content(tmp_path, test)


def test_who_may_write_to_any_topic_may_do_so_idempotently(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        broker.use(authorizer=Listed({ANYBODY: [(Operation.WRITE, ResourceType.TOPIC, TOPIC)]}))
        request = InitProducerIdRequest(transactional_id=None)
        assert (await broker.ask(request, 5, InitProducerIdResponse)).error_code == ErrorCode.NONE

    with_content(tmp_path, test)


def test_the_authorizer_is_told_the_host_of_the_client(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        authorizer = Listed()
        broker.use(authorizer=authorizer)
        await broker.ask(HeartbeatRequest(group_id=GROUP), 4, HeartbeatResponse)
        assert list(authorizer.hosts) == ["/client"]

    with_content(tmp_path, test)


def test_a_refused_request_is_counted(tmp_path: Path) -> None:
    async def test(broker: TestedBroker) -> None:
        broker.use(authorizer=Listed())
        requests = broker.broker.services.counters.requests
        await broker.ask(HeartbeatRequest(group_id=GROUP), 4, HeartbeatResponse)
        await broker.ask(commit_request(4), 8, OffsetCommitResponse)
        for key in (ApiKey.HEARTBEAT, ApiKey.OFFSET_COMMIT):
            assert requests[key].errors[OF_GROUP] == 1

    with_content(tmp_path, test)
