"""A request of every API, naming a topic or a group that is there, and what it is answered if nothing is allowed."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cluster.broker_proof import NONCE_BYTES
from tailrace.errors import ErrorCode
from tailrace.model import Lineage, TopicId
from tailrace.records.batch import TRANSACTIONAL_BIT
from tailrace.records.record import NewRecord, build_batch
from tailrace.wire.codec import Message
from tailrace.wire.messages import alter_configs, incremental_alter_configs
from tailrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tailrace.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tailrace.wire.messages.api_versions import ApiVersionsRequest
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest
from tailrace.wire.messages.archive_describe import ArchiveDescribeRequest
from tailrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tailrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tailrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.wire.messages.delete_groups import DeleteGroupsRequest
from tailrace.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest
from tailrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.wire.messages.describe_groups import DescribeGroupsRequest
from tailrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tailrace.wire.messages.describe_producers import DescribeProducersRequest
from tailrace.wire.messages.describe_producers import TopicRequest as ProducersOf
from tailrace.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from tailrace.wire.messages.describe_topic_partitions import TopicRequest as PartitionsOf
from tailrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest
from tailrace.wire.messages.elect_leaders import TopicPartitions as Elected
from tailrace.wire.messages.end_txn import EndTxnRequest
from tailrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tailrace.wire.messages.heartbeat import HeartbeatRequest
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tailrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tailrace.wire.messages.list_groups import ListGroupsRequest
from tailrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.wire.messages.list_transactions import ListTransactionsRequest
from tailrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tailrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tailrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.wire.messages.prove_broker import ProveBrokerRequest
from tailrace.wire.messages.replica_start import ReplicaStartRequest
from tailrace.wire.messages.sync_group import SyncGroupRequest
from tailrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tailrace.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tailrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.unit.broker.brokers import produce_request

TRANSACTION = "t"
TOPIC = "orders"
#: Of the older protocol, and of the newer one.
GROUP, NEWER_GROUP = "readers", "newer-readers"
MISSING = "missing"

OF_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OF_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
OF_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
OF_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Case(NamedTuple):
    """A request, and the error codes of its answer if nothing is allowed, by the fields that they are in."""

    request: Message
    version: int
    refused: dict[str, list[int]]


def cases(topic_id: TopicId) -> list[Case]:
    """At least one case for each API; more where versions differ in where they tell it, or there are ids for names."""
    return [
        *_records(topic_id),
        *_groups(topic_id),
        *_transactions(),
        *_cluster(topic_id),
        *_topics(topic_id),  # at the end the topic is deleted, if that is allowed
    ]


def _fetch(topic_id: TopicId, replica_id: int = -1) -> FetchRequest:
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    return FetchRequest(
        min_bytes=0,
        replica_id=replica_id,
        replica_state=ReplicaState(replica_id=replica_id),
        topics=[FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=wanted)],
    )


def _in_transaction() -> bytes:
    """A batch of a producer that the coordinator does not know."""
    batch = build_batch([NewRecord(b"value", timestamp=1)], producer_id=1 << 40, attributes=TRANSACTIONAL_BIT)
    return bytes(batch)


def _offset_of_epoch() -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])]
    )


def _records(topic_id: TopicId) -> list[Case]:
    produced = {"responses.partition_responses.error_code": [int(OF_TOPIC)]}
    fetched = {"error_code": [0], "responses.partitions.error_code": [int(OF_TOPIC)]}
    of_partition = {"topics.partitions.error_code": [int(OF_TOPIC)]}
    earliest = ListOffsetsPartition(partition_index=0, timestamp=-2)
    deleted = DeleteRecordsPartition(partition_index=0, offset=-1)
    return [
        Case(produce_request(TOPIC), 9, produced),
        Case(produce_request(TOPIC), 3, produced),
        Case(produce_request(MISSING), 9, produced),
        Case(produce_request(TOPIC, topic_id=topic_id), 13, produced),
        Case(produce_request(TOPIC, data=_in_transaction(), transactional_id=TRANSACTION), 12, produced),
        Case(_fetch(topic_id), 12, fetched),
        Case(_fetch(topic_id), 18, fetched),
        # A follower.
        Case(_fetch(topic_id, replica_id=1), 17, fetched),
        Case(
            ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[earliest])]),
            10,
            of_partition,
        ),
        Case(_offset_of_epoch(), 4, of_partition),
        Case(
            DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=TOPIC, partitions=[deleted])], timeout_ms=1000),
            2,
            of_partition,
        ),
        Case(DescribeProducersRequest(topics=[ProducersOf(name=TOPIC, partition_indexes=[0])]), 0, of_partition),
        Case(InitProducerIdRequest(transactional_id=None), 5, {"error_code": [int(OF_CLUSTER)]}),
        Case(
            InitProducerIdRequest(transactional_id=TRANSACTION),
            5,
            {"error_code": [int(OF_TRANSACTION)]},
        ),
    ]


def _topics(topic_id: TopicId) -> list[Case]:
    described = {"topics.error_code": [int(OF_TOPIC)], "topics.partitions.error_code": []}
    nothing: dict[str, list[int]] = {"topics.error_code": [], "topics.partitions.error_code": []}
    creatable = CreatableTopic(name="created", num_partitions=1, replication_factor=1)
    return [
        Case(MetadataRequest(topics=None), 12, nothing),
        Case(MetadataRequest(topics=[]), 0, nothing),
        Case(MetadataRequest(topics=None, include_cluster_authorized_operations=True), 10, nothing),
        Case(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 9, described),
        Case(MetadataRequest(topics=[MetadataRequestTopic(name=MISSING)]), 9, described),
        Case(MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)]), 12, described),
        Case(DescribeTopicPartitionsRequest(), 0, nothing),
        Case(DescribeTopicPartitionsRequest(topics=[PartitionsOf(name=TOPIC)]), 0, described),
        Case(
            CreateTopicsRequest(topics=[creatable]),
            7,
            {"topics.error_code": [int(OF_TOPIC)], "topics.topic_config_error_code": [0]},
        ),
        Case(
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=TOPIC, count=3, assignments=None)]),
            3,
            {"results.error_code": [int(OF_TOPIC)]},
        ),
        Case(ArchiveDescribeRequest(topics=[TOPIC], checks_reading=True), 1, {"archives.error_code": [int(OF_TOPIC)]}),
        Case(ArchiveCommitRequest(lineage=Lineage(topic_id), manifest="m"), 0, {"error_code": [int(OF_TOPIC)]}),
        Case(DeleteTopicsRequest(topic_names=[TOPIC]), 5, {"responses.error_code": [int(OF_TOPIC)]}),
        Case(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)]),
            6,
            {"responses.error_code": [int(OF_TOPIC)]},
        ),
    ]


def _commit(topic_id: TopicId) -> OffsetCommitRequest:
    item = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topic = OffsetCommitRequestTopic(name=TOPIC, topic_id=topic_id, partitions=[item])
    return OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=[topic])


def _commit_in_transaction() -> TxnOffsetCommitRequest:
    item = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topic = TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[item])
    return TxnOffsetCommitRequest(
        transactional_id="t", group_id=GROUP, producer_id=7, producer_epoch=0, generation_id=-1, topics=[topic]
    )


def _offsets_of(topic_id: TopicId, *, of_all: bool) -> OffsetFetchRequest:
    wanted = OffsetFetchRequestTopics(name=TOPIC, topic_id=topic_id, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=None if of_all else [wanted])
    return OffsetFetchRequest(groups=[group])


def _groups(topic_id: TopicId) -> list[Case]:
    of_request = {"error_code": [int(OF_GROUP)]}
    of_partition = {"topics.partitions.error_code": [int(OF_GROUP)]}
    of_each = {"groups.error_code": [int(OF_GROUP)]}
    of_many = {"groups.error_code": [int(OF_GROUP)], "groups.topics.partitions.error_code": []}
    one_topic = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    deleted = OffsetDeleteRequestTopic(name=TOPIC, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    joining = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=100,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    newer = ConsumerGroupHeartbeatRequest(
        group_id=NEWER_GROUP,
        member_id="m2",
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    return [
        Case(FindCoordinatorRequest(key=GROUP), 3, of_request),
        Case(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4, {"coordinators.error_code": [int(OF_GROUP)]}),
        Case(
            FindCoordinatorRequest(coordinator_keys=[TRANSACTION], key_type=1),
            4,
            {"coordinators.error_code": [int(OF_TRANSACTION)]},
        ),
        Case(
            FindCoordinatorRequest(coordinator_keys=["s"], key_type=2),
            6,
            {"coordinators.error_code": [int(OF_CLUSTER)]},
        ),
        Case(HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"), 4, of_request),
        Case(joining, 3, of_request),
        Case(joining, 9, of_request),
        Case(SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m"), 3, of_request),
        Case(
            LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id="m")]),
            5,
            {"error_code": [int(OF_GROUP)], "members.error_code": []},
        ),
        Case(LeaveGroupRequest(group_id=GROUP, member_id="m"), 1, of_request),
        Case(_commit(topic_id), 8, of_partition),
        Case(_commit(topic_id), 10, of_partition),
        Case(_commit_in_transaction(), 2, {"topics.partitions.error_code": [int(OF_TRANSACTION)]}),
        Case(_commit_in_transaction(), 5, {"topics.partitions.error_code": [int(OF_TRANSACTION)]}),
        Case(OffsetFetchRequest(group_id=GROUP, topics=one_topic), 1, of_partition),
        Case(
            OffsetFetchRequest(group_id=GROUP, topics=None),
            7,
            {"error_code": [int(OF_GROUP)], "topics.partitions.error_code": []},
        ),
        Case(_offsets_of(topic_id, of_all=True), 8, of_many),
        Case(_offsets_of(topic_id, of_all=False), 10, of_many),
        Case(
            OffsetDeleteRequest(group_id=GROUP, topics=[deleted]),
            0,
            {"error_code": [int(OF_GROUP)], "topics.partitions.error_code": []},
        ),
        Case(ListGroupsRequest(), 5, {"error_code": [0]}),
        Case(DescribeGroupsRequest(groups=[GROUP]), 6, of_each),
        Case(DescribeGroupsRequest(groups=[MISSING]), 5, of_each),
        Case(newer, 1, of_request),
        Case(ConsumerGroupDescribeRequest(group_ids=[NEWER_GROUP]), 1, of_each),
        Case(DeleteGroupsRequest(groups_names=[GROUP, ""]), 2, {"results.error_code": [int(OF_GROUP)] * 2}),
    ]


def _transactions() -> list[Case]:
    of_request = {"error_code": [int(OF_TRANSACTION)]}
    topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
    batched = AddPartitionsToTxnTransaction(transactional_id=TRANSACTION, producer_id=1, topics=topics)
    return [
        Case(
            AddPartitionsToTxnRequest(v3_and_below_transactional_id=TRANSACTION, v3_and_below_topics=topics),
            3,
            {"results_by_topic_v3_and_below.results_by_partition.partition_error_code": [int(OF_TRANSACTION)]},
        ),
        # Only for brokers.
        Case(
            AddPartitionsToTxnRequest(transactions=[batched]),
            5,
            {
                "error_code": [int(OF_CLUSTER)],
                "results_by_transaction.topic_results.results_by_partition.partition_error_code": [],
            },
        ),
        Case(AddOffsetsToTxnRequest(transactional_id=TRANSACTION, group_id=GROUP), 4, of_request),
        Case(EndTxnRequest(transactional_id=TRANSACTION), 5, of_request),
        Case(
            DescribeTransactionsRequest(transactional_ids=[TRANSACTION]),
            0,
            {"transaction_states.error_code": [int(OF_TRANSACTION)]},
        ),
        Case(ListTransactionsRequest(), 2, {"error_code": [0], "transaction_states.transactional_id": []}),
    ]


def _cluster(topic_id: TopicId) -> list[Case]:
    elected = {
        "error_code": [int(OF_CLUSTER)],
        "replica_election_results.partition_result.error_code": [int(OF_CLUSTER)],
    }
    of_configs = [int(OF_TOPIC), int(OF_CLUSTER), int(OF_CLUSTER), int(OF_GROUP)]
    configured = [(2, TOPIC), (4, "1"), (8, "1"), (32, GROUP)]
    electing = ElectLeadersRequest(topic_partitions=[Elected(topic=TOPIC, partitions=[0])])
    alterable = alter_configs.AlterableConfig(name="retention.ms", value="1000")
    incremental = incremental_alter_configs.AlterableConfig(name="retention.ms", value="1000")
    return [
        Case(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4, {"error_code": [0]}),
        Case(
            DescribeClusterRequest(include_cluster_authorized_operations=True),
            2,
            {"error_code": [0]},
        ),
        Case(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
                    for kind, name in configured
                ]
            ),
            4,
            {"results.error_code": of_configs},
        ),
        Case(
            alter_configs.AlterConfigsRequest(
                resources=[
                    alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[alterable])
                    for kind, name in configured
                ]
            ),
            2,
            {"responses.error_code": of_configs},
        ),
        Case(
            incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=kind, resource_name=name, configs=[incremental]
                    )
                    for kind, name in configured
                ]
            ),
            1,
            {"responses.error_code": of_configs},
        ),
        Case(ListConfigResourcesRequest(), 1, {"error_code": [int(OF_CLUSTER)]}),
        Case(DescribeLogDirsRequest(topics=None), 4, {"error_code": [int(OF_CLUSTER)], "results.error_code": []}),
        Case(electing, 1, elected),
        Case(electing, 0, {"replica_election_results.partition_result.error_code": [int(OF_CLUSTER)]}),
        Case(
            ElectLeadersRequest(topic_partitions=None),
            2,
            {"error_code": [int(OF_CLUSTER)], "replica_election_results.partition_result.error_code": []},
        ),
        Case(
            UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="tailrace.version", max_version_level=1)]),
            2,
            {"error_code": [int(OF_CLUSTER)]},
        ),
        Case(ReplicaStartRequest(lineage=Lineage(topic_id)), 0, {"error_code": [int(OF_CLUSTER)]}),
        Case(
            WriteTxnMarkersRequest(
                markers=[WritableTxnMarker(topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])])]
            ),
            2,
            {"markers.topics.partitions.error_code": [int(OF_CLUSTER)]},
        ),
        # A broker that nobody knows of: who proves to be one needs nothing else.
        Case(
            ProveBrokerRequest(broker_id=9, broker_epoch=1, nonce=bytes(NONCE_BYTES)),
            0,
            {"error_code": [int(ErrorCode.STALE_BROKER_EPOCH)]},
        ),
    ]
