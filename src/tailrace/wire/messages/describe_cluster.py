"""DescribeCluster, versions 0 to 2, all flexible: the brokers and the controller, for administration.

Odd: version 1 adds whether brokers (1) or controllers (2) are requested; 2 may include fenced brokers.
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message, Struct, array, boolean, int8, int16, int32, string
from tailrace.wire.messages.metadata import AUTHORIZED_OPERATIONS_OMITTED


class DescribeClusterRequest(Message):
    """Requests the members of the cluster."""

    API_KEY = ApiKey.DESCRIBE_CLUSTER
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


class DescribeClusterBroker(Struct):
    """A broker and its address."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_from=0, default=None)
    is_fenced: bool = boolean(since=2)


class DescribeClusterResponse(Message):
    """The members of the cluster."""

    API_KEY = ApiKey.DESCRIBE_CLUSTER
    MIN_VERSION = 0
    MAX_VERSION = 2
    FLEXIBLE_FROM = 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_from=0, default=None)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_OMITTED)
