"""One file per API, and the table of them all: what is advertised is what is here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tailrace.broker.handlers import (
    alter_configs,
    api_versions,
    archive_commit,
    archive_describe,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    replica_start,
    sync_group,
    update_features,
)
from tailrace.broker.services import RequestContext, Services
from tailrace.runtime.transport import Part
from tailrace.wire.apis import FIRST_OWN_KEY, ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.messages.alter_configs import AlterConfigsRequest
from tailrace.wire.messages.api_versions import ApiVersionsRequest
from tailrace.wire.messages.archive_commit import ArchiveCommitRequest
from tailrace.wire.messages.archive_describe import ArchiveDescribeRequest
from tailrace.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tailrace.wire.messages.create_partitions import CreatePartitionsRequest
from tailrace.wire.messages.create_topics import CreateTopicsRequest
from tailrace.wire.messages.delete_groups import DeleteGroupsRequest
from tailrace.wire.messages.delete_records import DeleteRecordsRequest
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest
from tailrace.wire.messages.describe_configs import DescribeConfigsRequest
from tailrace.wire.messages.describe_groups import DescribeGroupsRequest
from tailrace.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tailrace.wire.messages.describe_producers import DescribeProducersRequest
from tailrace.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from tailrace.wire.messages.elect_leaders import ElectLeadersRequest
from tailrace.wire.messages.fetch import FetchRequest
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tailrace.wire.messages.heartbeat import HeartbeatRequest
from tailrace.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest
from tailrace.wire.messages.join_group import JoinGroupRequest
from tailrace.wire.messages.leave_group import LeaveGroupRequest
from tailrace.wire.messages.list_config_resources import ListConfigResourcesRequest
from tailrace.wire.messages.list_groups import ListGroupsRequest
from tailrace.wire.messages.list_offsets import ListOffsetsRequest
from tailrace.wire.messages.metadata import MetadataRequest
from tailrace.wire.messages.offset_commit import OffsetCommitRequest
from tailrace.wire.messages.offset_delete import OffsetDeleteRequest
from tailrace.wire.messages.offset_fetch import OffsetFetchRequest
from tailrace.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tailrace.wire.messages.produce import ProduceRequest
from tailrace.wire.messages.replica_start import ReplicaStartRequest
from tailrace.wire.messages.sync_group import SyncGroupRequest
from tailrace.wire.messages.update_features import UpdateFeaturesRequest
from tailrace.wire.produce_frames import decode_produce, encode_produce

#: Takes services, the request's context and the decoded request; gives what `Api.encode` takes, now or later, or None
#: where no answer is due.
Handler: TypeAlias = Callable[[Services, RequestContext, Any], Any]

#: Requests that carry no records are small; decoding one costs many times its size in memory, and time in which
#: nobody else is served.
_CONTROL_REQUEST_MAX_BYTES = 1 << 20


def _encode_message(version: int, message: Message | bytes) -> list[Part]:
    """A handler may give its response encoded already."""
    return [message] if isinstance(message, bytes) else message.encode_parts(version)


@dataclass(frozen=True, slots=True)
class Api:
    """An API that is served: its request, the versions advertised, and the functions that decode, answer and encode."""

    request: type[Message]
    min_version: int
    max_version: int
    handle: Handler
    summary: str
    max_bytes: int = _CONTROL_REQUEST_MAX_BYTES
    #: The first version that is really answered; earlier ones are only advertised.
    first_decodable: int = field(init=False)
    #: How its request is decoded and its response encoded, where not by their descriptions.
    decode_by_hand: Callable[[int, memoryview], Any] | None = None
    encode: Callable[[int, Any], list[Part]] = _encode_message
    decode: Callable[[int, memoryview], Any] = field(init=False)
    #: The same for requests so large that they could have too many elements.
    decode_bounded: Callable[[int, memoryview], Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_decodable", max(self.min_version, self.request.MIN_VERSION))
        object.__setattr__(self, "decode", self.decode_by_hand or self.request.decode)
        object.__setattr__(self, "decode_bounded", self.decode_by_hand or self.request.decode_bounded)


_TABLE = (
    # Advertised from 0 because older librdkafka takes a broker without version 0 for one that has no
    # compression (KAFKA-18659); versions 0 to 2 themselves are refused.
    Api(
        ProduceRequest,
        0,
        13,
        produce.handle,
        "Append record batches. Versions 0 to 2 are advertised for old clients' sake and refused.",
        max_bytes=2**31,
        decode_by_hand=decode_produce,
        encode=lambda version, results: [encode_produce(version, results)],
    ),
    Api(FetchRequest, 4, 18, fetch.handle, "Read record batches, with long polling and incremental sessions."),
    Api(ListOffsetsRequest, 1, 10, list_offsets.handle, "Earliest, latest, by timestamp, largest timestamp."),
    Api(MetadataRequest, 0, 13, metadata.handle, "Brokers, topics, partitions and their leaders; may create topics."),
    Api(OffsetCommitRequest, 2, 10, offset_commit.handle, "How far a group has come."),
    Api(OffsetFetchRequest, 1, 10, offset_fetch.handle, "From where groups go on."),
    Api(FindCoordinatorRequest, 0, 6, find_coordinator.handle, "Which broker coordinates a group."),
    Api(JoinGroupRequest, 0, 9, join_group.handle, "Enter a classic group, or its next generation."),
    Api(HeartbeatRequest, 0, 4, heartbeat.handle, "A member of a classic group lives."),
    Api(LeaveGroupRequest, 0, 5, leave_group.handle, "Members leave a classic group."),
    Api(SyncGroupRequest, 0, 5, sync_group.handle, "The part of a member in the leader's plan."),
    Api(DescribeGroupsRequest, 0, 6, describe_groups.handle, "Members and assignments of classic groups."),
    Api(ListGroupsRequest, 0, 5, list_groups.handle, "Groups, by state and type."),
    Api(ApiVersionsRequest, 0, 4, api_versions.handle, "This table, as clients ask for it."),
    Api(CreateTopicsRequest, 2, 7, create_topics.handle, "Create topics, or only check whether they could be."),
    Api(DeleteTopicsRequest, 1, 6, delete_topics.handle, "Delete topics by name or id."),
    Api(DeleteRecordsRequest, 0, 2, delete_records.handle, "Give up records below an offset."),
    Api(InitProducerIdRequest, 0, 5, init_producer_id.handle, "An identity for an idempotent producer."),
    Api(OffsetForLeaderEpochRequest, 2, 4, offset_for_leader_epoch.handle, "Where a leader epoch ended."),
    Api(
        DescribeConfigsRequest,
        1,
        4,
        describe_configs.handle,
        "Configuration of topics and brokers with its sources, and levels of loggers.",
    ),
    Api(AlterConfigsRequest, 0, 2, alter_configs.handle, "Replace all that is configured for topics or brokers."),
    Api(DescribeLogDirsRequest, 1, 4, describe_log_dirs.handle, "Log directories: logs, sizes and room left."),
    Api(CreatePartitionsRequest, 0, 3, create_partitions.handle, "Add partitions to topics, or only check it."),
    Api(
        IncrementalAlterConfigsRequest,
        0,
        1,
        incremental_alter_configs.handle,
        "Change single keys of topics and brokers, and levels of loggers, while the broker runs.",
    ),
    Api(DeleteGroupsRequest, 0, 2, delete_groups.handle, "Forget groups without members."),
    Api(ElectLeadersRequest, 0, 2, elect_leaders.handle, "Preferred leaders, or any where none is in sync."),
    Api(OffsetDeleteRequest, 0, 0, offset_delete.handle, "Forget committed offsets."),
    Api(UpdateFeaturesRequest, 0, 2, update_features.handle, "The levels of features that the cluster goes by."),
    Api(DescribeClusterRequest, 0, 2, describe_cluster.handle, "Brokers and controller."),
    Api(DescribeProducersRequest, 0, 0, describe_producers.handle, "Idempotent producers that a partition knows."),
    Api(
        ListConfigResourcesRequest,
        0,
        1,
        list_config_resources.handle,
        "What can have a configuration. Version 0 asks for client metrics, of which there are none.",
    ),
    Api(
        DescribeTopicPartitionsRequest,
        0,
        0,
        describe_topic_partitions.handle,
        "Topics and partitions, page by page.",
    ),
    Api(
        ConsumerGroupHeartbeatRequest, 0, 1, consumer_group_heartbeat.handle, "Members of the newer protocol (KIP-848)."
    ),
    Api(ConsumerGroupDescribeRequest, 0, 1, consumer_group_describe.handle, "Groups of the newer protocol."),
    Api(ArchiveCommitRequest, 0, 0, archive_commit.handle, "Our own: a commit of a topic's archive. Not advertised."),
    Api(ArchiveDescribeRequest, 0, 1, archive_describe.handle, "Our own: what is archived. Not advertised."),
    Api(ReplicaStartRequest, 0, 0, replica_start.handle, "Our own, between brokers: where a follower begins."),
)

APIS: dict[int, Api] = {ApiKey(api.request.API_KEY): api for api in _TABLE}
api_versions.TABLE.extend(
    (key, api.min_version, api.max_version) for key, api in sorted(APIS.items()) if key < FIRST_OWN_KEY
)
