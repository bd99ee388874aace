"""Every message that this package can encode and decode, one module per API.

Owns the tables from API key to message class. Which versions a broker serves is decided by the broker.
"""

from __future__ import annotations

from tailrace.wire.codec import Message
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tailrace.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tailrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tailrace.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tailrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tailrace.wire.messages.fetch import FetchRequest, FetchResponse
from tailrace.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tailrace.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tailrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tailrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tailrace.wire.messages.produce import ProduceRequest, ProduceResponse

REQUESTS: dict[int, type[Message]] = {
    message.API_KEY: message
    for message in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        FindCoordinatorRequest,
        ApiVersionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        DeleteRecordsRequest,
        InitProducerIdRequest,
        OffsetForLeaderEpochRequest,
        DescribeConfigsRequest,
        DescribeClusterRequest,
    )
}

RESPONSES: dict[int, type[Message]] = {
    message.API_KEY: message
    for message in (
        ProduceResponse,
        FetchResponse,
        ListOffsetsResponse,
        MetadataResponse,
        FindCoordinatorResponse,
        ApiVersionsResponse,
        CreateTopicsResponse,
        DeleteTopicsResponse,
        DeleteRecordsResponse,
        InitProducerIdResponse,
        OffsetForLeaderEpochResponse,
        DescribeConfigsResponse,
        DescribeClusterResponse,
    )
}


def request_is_flexible(api_key: int, version: int) -> bool:
    """Whether a request's header has tagged fields; False for an API that is not known here."""
    message = REQUESTS.get(api_key)
    return message is not None and version >= message.FLEXIBLE_FROM


def response_is_flexible(api_key: int, version: int) -> bool:
    """Whether a response's header has tagged fields; that of ApiVersions never does."""
    return api_key != ApiVersionsResponse.API_KEY and request_is_flexible(api_key, version)
