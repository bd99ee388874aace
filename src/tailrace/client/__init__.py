"""The Python client: `Producer` sends records, `read` reads them, `Topics`, `Configs` and `Groups` manage a cluster.

A thin layer over confluent-kafka with safe defaults; any other Kafka client works as well.
"""

from __future__ import annotations

from tailrace.client.admin import PartitionState, Topics, TopicState, TopicSummary
from tailrace.client.configs import ConfigOwner, Configs, ConfigValue
from tailrace.client.connection import DEFAULT_BOOTSTRAP
from tailrace.client.consumer import Consumer, Message, Timestamp, read
from tailrace.client.errors import (
    ClientError,
    DeliveryError,
    GroupHasMembersError,
    OffsetOutOfRangeError,
    ReadTimeoutError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
)
from tailrace.client.groups import (
    Coordinator,
    GroupDescription,
    GroupMember,
    Groups,
    GroupSummary,
    Progress,
)
from tailrace.client.murmur2 import partition_for_key
from tailrace.client.producer import Producer

__all__ = [
    "DEFAULT_BOOTSTRAP",
    "ClientError",
    "ConfigOwner",
    "ConfigValue",
    "Configs",
    "Consumer",
    "Coordinator",
    "DeliveryError",
    "GroupDescription",
    "GroupHasMembersError",
    "GroupMember",
    "GroupSummary",
    "Groups",
    "Message",
    "OffsetOutOfRangeError",
    "PartitionState",
    "Producer",
    "Progress",
    "ReadTimeoutError",
    "Timestamp",
    "TopicExistsError",
    "TopicState",
    "TopicSummary",
    "Topics",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnreachableError",
    "partition_for_key",
    "read",
]
