"""Every message that this package can encode and decode.

Owns the tables from API key to message class. Which versions a broker serves is decided by the broker.
"""

from __future__ import annotations

from tailrace.wire.codec import Message
from tailrace.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest, ArchiveCommitResponse
from tailrace.wire.messages.archive_describe import ArchiveDescribeRequest, ArchiveDescribeResponse
from tailrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from tailrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tailrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tailrace.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tailrace.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tailrace.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tailrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tailrace.wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tailrace.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tailrace.wire.messages.fetch import FetchRequest, FetchResponse
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tailrace.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tailrace.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tailrace.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from tailrace.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tailrace.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tailrace.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tailrace.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tailrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tailrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tailrace.wire.messages.produce import ProduceRequest, ProduceResponse
from tailrace.wire.messages.replica_start import ReplicaStartRequest, ReplicaStartResponse
from tailrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

REQUESTS: dict[int, type[Message]] = {
    message.API_KEY: message
    for message in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        FindCoordinatorRequest,
        JoinGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
        ApiVersionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        DeleteRecordsRequest,
        InitProducerIdRequest,
        OffsetForLeaderEpochRequest,
        DescribeConfigsRequest,
        AlterConfigsRequest,
        DescribeLogDirsRequest,
        CreatePartitionsRequest,
        DeleteGroupsRequest,
        ElectLeadersRequest,
        IncrementalAlterConfigsRequest,
        OffsetDeleteRequest,
        DescribeClusterRequest,
        DescribeProducersRequest,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupDescribeRequest,
        ListConfigResourcesRequest,
        DescribeTopicPartitionsRequest,
        ArchiveCommitRequest,
        ArchiveDescribeRequest,
        ReplicaStartRequest,
    )
}

RESPONSES: dict[int, type[Message]] = {
    message.API_KEY: message
    for message in (
        ProduceResponse,
        FetchResponse,
        ListOffsetsResponse,
        MetadataResponse,
        OffsetCommitResponse,
        OffsetFetchResponse,
        FindCoordinatorResponse,
        JoinGroupResponse,
        HeartbeatResponse,
        LeaveGroupResponse,
        SyncGroupResponse,
        DescribeGroupsResponse,
        ListGroupsResponse,
        ApiVersionsResponse,
        CreateTopicsResponse,
        DeleteTopicsResponse,
        DeleteRecordsResponse,
        InitProducerIdResponse,
        OffsetForLeaderEpochResponse,
        DescribeConfigsResponse,
        AlterConfigsResponse,
        DescribeLogDirsResponse,
        CreatePartitionsResponse,
        DeleteGroupsResponse,
        ElectLeadersResponse,
        IncrementalAlterConfigsResponse,
        OffsetDeleteResponse,
        DescribeClusterResponse,
        DescribeProducersResponse,
        ConsumerGroupHeartbeatResponse,
        ConsumerGroupDescribeResponse,
        ListConfigResourcesResponse,
        DescribeTopicPartitionsResponse,
        ArchiveCommitResponse,
        ArchiveDescribeResponse,
        ReplicaStartResponse,
    )
}


def request_is_flexible(api_key: int, version: int) -> bool:
    """Whether a request's header has tagged fields; False for an API that is not known here."""
    message = REQUESTS.get(api_key)
    return message is not None and version >= message.FLEXIBLE_FROM


def response_is_flexible(api_key: int, version: int) -> bool:
    """Whether a response's header has tagged fields; that of ApiVersions never does."""
    return api_key != ApiVersionsResponse.API_KEY and request_is_flexible(api_key, version)
