"""WriteTxnMarkers, versions 1 to 2, flexible: ends transactions in partitions.

Odd: the response names a producer, not a marker, so two markers of one producer in a request share their results. From
version 2 on, a marker says by which version of transactions its coordinator goes (KIP-1228).
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    """The partitions of one topic in which a transaction ends."""

    name: str = string()
    partition_indexes: list[int] = array(Kind.INT32)


class WritableTxnMarker(Struct):
    """The end of one transaction."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    #: True for a commit.
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2)


class WriteTxnMarkersRequest(Message):
    """Ends transactions in partitions that the broker leads."""

    API_KEY = ApiKey.WRITE_TXN_MARKERS
    MIN_VERSION = 1
    MAX_VERSION = 2
    FLEXIBLE_FROM = 1

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    """The result in one partition."""

    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Struct):
    """The results in one topic."""

    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    """The results of one producer's markers."""

    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Message):
    """The results by producer."""

    API_KEY = ApiKey.WRITE_TXN_MARKERS
    MIN_VERSION = 1
    MAX_VERSION = 2
    FLEXIBLE_FROM = 1

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
