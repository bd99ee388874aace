"""DescribeLogDirs, versions 1 to 5, flexible from 2: a broker's log directories and their content.

Odd: null topics request all. Version 3 added an error for the whole request, 4 the size of the volume and its free
space, 5 whether the directory is cordoned (KIP-1066).
"""

from __future__ import annotations

from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Kind, Message, Struct, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Struct):
    """Requested partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(Kind.INT32)


class DescribeLogDirsRequest(Message):
    """Requests the content of log directories."""

    API_KEY = ApiKey.DESCRIBE_LOG_DIRS
    MIN_VERSION = 1
    MAX_VERSION = 5
    FLEXIBLE_FROM = 2

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable_from=0)


class DescribeLogDirsPartition(Struct):
    """The log of one partition."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    """The logs of one topic."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    """One directory, or the error."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5)


class DescribeLogDirsResponse(Message):
    """All directories."""

    API_KEY = ApiKey.DESCRIBE_LOG_DIRS
    MIN_VERSION = 1
    MAX_VERSION = 5
    FLEXIBLE_FROM = 2

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
