"""Where to begin and end in the partitions of topics, as in options and in Spark's checkpoints.

The JSON is that of Spark's Kafka connector: `{"topic": {"0": 23, "1": -2}}`, with -2 for earliest and -1 for latest.
Checkpoints also contain the ids of topics: beside `"topic"` there is `"topic@<topic id>": {}`. No topic can have that
name, and a reader that does not know it, such as the connector, finds no partition there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from tailrace.model import ZERO_UUID, Lineage, TopicPartition
from tailrace.pipeline.failures import OptionError
from tailrace.storage.checkpoints import decode_uuid, encode_uuid

#: In JSON, and as timestamps in requests to brokers.
EARLIEST = -2
LATEST = -1

Offsets: TypeAlias = dict[TopicPartition, int]
#: Separates a topic and its id; the names of topics do not contain it.
_ID_MARK = "@"
#: The content of Spark's checkpoints: offsets by partition number by topic.
StreamOffset: TypeAlias = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class AtEnd:
    """At one end of every partition."""

    earliest: bool


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """At an offset of each partition; -2 and -1 mean its two ends."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """At the first record of every partition at or after a time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """At the first record of each partition at or after that partition's time."""

    timestamps_ms: Mapping[TopicPartition, int]


Position: TypeAlias = AtEnd | AtOffsets | AtTimestamp | AtTimestamps

EARLIEST_POSITION = AtEnd(earliest=True)
LATEST_POSITION = AtEnd(earliest=False)


def parse_partition_numbers(option: str, text: str, example: str) -> Offsets:
    """Parse a number for each partition, from JSON such as `{"topic": {"0": 23}}`."""
    content = _parse_json(option, text, example)
    numbers: Offsets = {}
    for topic, by_partition in content.items():
        if not isinstance(by_partition, dict):
            raise _not_as_expected(option, text, example)
        for partition, number in by_partition.items():
            if not partition.isascii() or not partition.isdigit() or type(number) is not int:
                raise _not_as_expected(option, text, example)
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions, from JSON such as `{"topic": [0, 1]}`."""
    example = '{"topicA":[0,1],"topicB":[2,4]}'
    found: dict[TopicPartition, None] = {}
    for topic, partitions in _parse_json(option, text, example).items():
        if not isinstance(partitions, list) or any(type(number) is not int or number < 0 for number in partitions):
            raise _not_as_expected(option, text, example)
        found.update((TopicPartition(topic, number), None) for number in partitions)
    if not found:
        raise OptionError(f"option '{option}' names no partition; expected JSON such as {example}")
    return tuple(found)


def _parse_json(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        raise _not_as_expected(option, text, example) from None
    if not isinstance(content, dict):
        raise _not_as_expected(option, text, example)
    return content


def _not_as_expected(option: str, text: str, example: str) -> OptionError:
    return OptionError(f"option '{option}' has the value '{text}'; expected JSON such as {example}")


def to_stream_offset(
    offsets: Mapping[TopicPartition, int], lineages: Mapping[str, Lineage] = MappingProxyType({})
) -> StreamOffset:
    """Return offsets in the form of a checkpoint, always in the same order."""
    stream_offset: StreamOffset = {}
    for (topic, partition), offset in sorted(offsets.items()):
        if topic not in stream_offset:
            stream_offset[topic] = {}
            lineage = lineages.get(topic, ZERO_UUID)
            if lineage != ZERO_UUID:
                stream_offset[f"{topic}{_ID_MARK}{encode_uuid(lineage)}"] = {}
        stream_offset[topic][str(partition)] = offset
    return stream_offset


def lineages_in(stream_offset: Mapping[str, object]) -> dict[str, Lineage]:
    """Return the ids of topics in a checkpoint; one of an earlier version has none."""
    found: dict[str, Lineage] = {}
    for name in stream_offset:
        topic, mark, text = name.partition(_ID_MARK)
        if mark:
            found[topic] = Lineage(decode_uuid(text))
    return found


def from_stream_offset(stream_offset: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets in a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, by_partition in stream_offset.items()
        for partition, offset in by_partition.items()
    }
