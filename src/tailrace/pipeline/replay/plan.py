"""The plan of a replay, checked before Spark starts, which takes time: which offsets, from where, and to where.

Owns the refusals: empty or missing ranges, a topic into itself, and partitions that the target does not have. It must
not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tailrace.client.configs import ConfigOwner, Configs
from tailrace.client.errors import ClientError
from tailrace.errors import ConfigError
from tailrace.model import INTERNAL_TOPICS, TopicPartition
from tailrace.pipeline.arrow.formats import Format
from tailrace.pipeline.connections.brokers import Brokers
from tailrace.pipeline.failures import UnknownTopicError
from tailrace.pipeline.replay.source import Source
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.storage.checkpoints import encode_uuid

Timestamps: TypeAlias = Literal["original", "now"]
PartitionBy: TypeAlias = Literal["source", "key"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, and how the user gave it: the latter identifies a replay that continues."""

    ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The wanted offsets: between offsets, or between times; those under None apply to all other partitions."""

    from_offsets: Mapping[int | None, int] = field(default_factory=dict)
    to_offsets: Mapping[int | None, int] = field(default_factory=dict)
    since: Moment | None = None
    until: Moment | None = None
    partitions: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the bounds as a JSON object, always the same for the same bounds."""
        return {
            "--from-offset": {str(number): offset for number, offset in self.from_offsets.items()},
            "--to-offset": {str(number): offset for number, offset in self.to_offsets.items()},
            "--since": None if self.since is None else self.since.text,
            "--until": None if self.until is None else self.until.text,
            "--partition": sorted(self.partitions),
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, as the user requested it."""

    bootstrap: str
    #: A topic, or the directory of one in an archive.
    source: str
    target: str
    bounds: Bounds = field(default_factory=Bounds)
    where: str | None = None
    #: The format of values, for a filter on their fields; None for the unchanged columns of a topic.
    format: Format | None = None
    schema: str | None = None
    timestamps: Timestamps = "original"
    partition_by: PartitionBy = "source"
    records_per_second: int | None = None
    max_offsets_per_batch: int = 200_000
    #: Whether undecodable batches are skipped; otherwise they fail the replay.
    skips_corrupt: bool = False

    def identity(self, source: Source, target: Target) -> dict[str, Any]:
        """Return what must stay the same for a replay to continue."""
        return {
            "source": self.source,
            "source topic id": encode_uuid(source.lineage),
            "target": self.target,
            "target topic id": target.lineage,
            **self.bounds.as_json(),
            "--where": self.where,
            "--format": self.format,
            "--schema": self.schema,
            "--timestamps": self.timestamps,
            "--partition-by": self.partition_by,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """The topic to write to."""

    topic: str
    lineage: str
    partitions: int
    #: How long it keeps records, by their times; None for ever or if unknown.
    retention_ms: int | None
    is_log_append_time: bool


def find_target(bootstrap: str, topic: str) -> Target:
    """Look up the target, which must exist."""
    brokers = Brokers(parse_client_settings({"bootstrap.servers": bootstrap}))
    try:
        state = brokers.topics((topic,)).get(topic)
    finally:
        brokers.close()
    if state is None:
        raise UnknownTopicError(
            f"target topic '{topic}' does not exist; create it with as many partitions as the source: tailrace "
            f"topic create {topic} --partitions N"
        )
    if topic in INTERNAL_TOPICS:
        raise ConfigError(f"topic '{topic}' belongs to the brokers and cannot be written to")
    try:
        configs = {each.name: each.value for each in Configs(bootstrap).get(ConfigOwner.topic(topic))}
    except ClientError:
        configs = {}  # only needed for warnings
    retention = configs.get("retention.ms")
    deletes = "delete" in (configs.get("cleanup.policy") or "delete")
    return Target(
        topic,
        encode_uuid(state.lineage),
        len(state.leaders),
        int(retention) if deletes and retention is not None and int(retention) >= 0 else None,
        configs.get("message.timestamp.type") == "LogAppendTime",
    )


def check_target(replay: Replay, source: Source, target: Target, partitions: Iterable[int]) -> None:
    """Refuse a replay that would be circular, or would break the promised order."""
    if encode_uuid(source.lineage) == target.lineage:
        raise ConfigError(
            f"topic '{target.topic}' cannot be replayed into itself: every record would be duplicated; name "
            "another topic with --to"
        )
    homeless = [number for number in partitions if number >= target.partitions]
    if replay.partition_by == "source" and homeless:
        raise ConfigError(
            f"topic '{target.topic}' has {_partitions(target.partitions)}, but '{replay.source}' has one with "
            f"number {max(homeless)}, which goes to the partition with the same number: add partitions to the "
            "target, or choose --partition-by key, which keeps only the order of records with the same key"
        )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def ranges_of(source: Source, bounds: Bounds) -> dict[int, tuple[int, int]]:
    """Return the offsets to replay of each partition, without empty ones; ConfigError if bounds do not exist."""
    ends = source.ends()
    for number in (*bounds.partitions, *bounds.from_offsets, *bounds.to_offsets):
        if number is not None and number not in ends:
            raise ConfigError(f"'{source.topic}' has no partition {number}; it has 0 to {max(ends)}")
    chosen = {number: span for number, span in ends.items() if not bounds.partitions or number in bounds.partitions}
    since = {} if bounds.since is None else source.offsets_at(bounds.since.ms)
    until = {} if bounds.until is None else source.offsets_at(bounds.until.ms)
    ranges: dict[int, tuple[int, int]] = {}
    for number, (first, end) in sorted(chosen.items()):
        name = TopicPartition(source.topic, number)
        start = _bound("--from-offset", name, bounds.from_offsets, (first, end), first)
        stop = _bound("--to-offset", name, bounds.to_offsets, (first, end), end)
        if number in since:
            found = since[number]
            start = end if found is None else found
        if number in until:
            found = until[number]
            stop = end if found is None else found
        if start > stop and not since and not until:
            raise ConfigError(f"--from-offset {start} of {name} is after its --to-offset {stop}")
        if start < stop:
            ranges[number] = (start, stop)
    return ranges


def _bound(
    option: str, name: TopicPartition, given: Mapping[int | None, int], span: tuple[int, int], default: int
) -> int:
    offset = given.get(name.partition, given.get(None, default))
    if offset < span[0]:
        raise ConfigError(f"{option} {offset} of {name} no longer exists: it begins at offset {span[0]}")
    if offset > span[1]:
        raise ConfigError(f"{option} {offset} of {name} does not exist yet: it ends before offset {span[1]}")
    return offset
