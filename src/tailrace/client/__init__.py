"""The Python client: `Producer` to send, `read` to read back, `Topics` to look after topics.

A thin layer over confluent-kafka with safe defaults; any other Kafka client works as well.
"""

from __future__ import annotations

from tailrace.client.admin import PartitionState, Topics, TopicState, TopicSummary
from tailrace.client.connection import DEFAULT_BOOTSTRAP
from tailrace.client.consumer import Consumer, Message, Timestamp, read
from tailrace.client.errors import (
    ClientError,
    DeliveryError,
    ReadTimeoutError,
    TopicExistsError,
    UnknownTopicError,
    UnreachableError,
)
from tailrace.client.murmur2 import partition_for_key
from tailrace.client.producer import Producer

__all__ = [
    "DEFAULT_BOOTSTRAP",
    "ClientError",
    "Consumer",
    "DeliveryError",
    "Message",
    "PartitionState",
    "Producer",
    "ReadTimeoutError",
    "Timestamp",
    "TopicExistsError",
    "TopicState",
    "TopicSummary",
    "Topics",
    "UnknownTopicError",
    "UnreachableError",
    "partition_for_key",
    "read",
]
