"""One file per API, and the table of them all: what is advertised is what is here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tailrace.broker.handlers import (
    api_versions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from tailrace.broker.services import RequestContext, Services
from tailrace.runtime.transport import Part
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.messages.api_versions import ApiVersionsRequest
from tailrace.wire.messages.create_topics import CreateTopicsRequest
from tailrace.wire.messages.delete_records import DeleteRecordsRequest
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest
from tailrace.wire.messages.describe_configs import DescribeConfigsRequest
from tailrace.wire.messages.fetch import FetchRequest
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest
from tailrace.wire.messages.list_offsets import ListOffsetsRequest
from tailrace.wire.messages.metadata import MetadataRequest
from tailrace.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tailrace.wire.messages.produce import ProduceRequest
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_decodable", max(self.min_version, self.request.MIN_VERSION))
        object.__setattr__(self, "decode", self.decode_by_hand or self.request.decode)


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
    Api(
        FindCoordinatorRequest,
        0,
        6,
        find_coordinator.handle,
        "Answers COORDINATOR_NOT_AVAILABLE: groups and transactions are not served yet.",
    ),
    Api(ApiVersionsRequest, 0, 4, api_versions.handle, "This table, as clients ask for it."),
    Api(CreateTopicsRequest, 2, 7, create_topics.handle, "Create topics, or only check whether they could be."),
    Api(DeleteTopicsRequest, 1, 6, delete_topics.handle, "Delete topics by name or id."),
    Api(DeleteRecordsRequest, 0, 2, delete_records.handle, "Give up records below an offset."),
    Api(InitProducerIdRequest, 0, 5, init_producer_id.handle, "An identity for an idempotent producer."),
    Api(OffsetForLeaderEpochRequest, 2, 4, offset_for_leader_epoch.handle, "Where a leader epoch ended."),
    Api(DescribeConfigsRequest, 1, 4, describe_configs.handle, "Topic and broker configuration with its sources."),
    Api(DescribeClusterRequest, 0, 2, describe_cluster.handle, "Brokers and controller."),
)

APIS: dict[int, Api] = {ApiKey(api.request.API_KEY): api for api in _TABLE}
api_versions.TABLE.extend((key, api.min_version, api.max_version) for key, api in sorted(APIS.items()))
