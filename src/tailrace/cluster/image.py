"""The cluster's metadata at one moment: brokers, topics and configuration. Immutable; a change makes a new image."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any
from uuid import UUID

from tailrace.cluster.archives import ArchiveState
from tailrace.cluster.broker_lists import packed, unpacked
from tailrace.cluster.features import OLDEST, FinalizedFeatures, LevelRange, SupportedFeatures
from tailrace.cluster.keys import NO_FIELDS, known_format, number_of, reading, unknown_fields
from tailrace.model import ZERO_UUID, Lineage, TopicId

#: Writes a partition as a list of four values; format 1 wrote it as an object, and can still be read.
TOPIC_FORMAT_BY_POSITION = 2
#: Names the fields of partitions, so that a release keeps the fields of a newer one.
TOPIC_FORMAT_BY_NAME = 3
#: Format 3 with the lineage, which no release may ignore: it would take the topic for another one of that name.
TOPIC_FORMAT_WITH_LINEAGE = 4
_CONFIGS_FORMAT = 1
_BROKER_FORMAT = 1
#: Default for a topic whose lineage is its first id.
_NO_LINEAGE = Lineage(ZERO_UUID)
#: The leader of a partition without one.
NO_LEADER = -1
#: The key of the configuration that all brokers share; clients use the same name.
ALL_BROKERS = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The replicas, ISR and leader of a partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    #: Fields that a newer release wrote, sorted by name and never None; a tuple is a list of brokers.
    unknown: tuple[tuple[str, Any], ...] = field(default=(), hash=False)


#: The fields of every partition, in the order of the constructor. In the store other fields may follow; None or the end
#: of a row means that a partition lacks that field.
_FIELDS = ["replicas", "isr", "leader", "leader_epoch"]
_BROKER_LISTS = ["replicas", "isr"]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: its identity, partitions and configuration."""

    name: str
    #: The id that clients use now.
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]
    #: Fields that a newer release wrote.
    unknown: Mapping[str, Any] = field(default_factory=dict)
    #: The topic's permanent identity, whatever clients call it: its first id.
    lineage: Lineage = field(default=_NO_LINEAGE, kw_only=True)

    def __post_init__(self) -> None:
        if self.lineage is _NO_LINEAGE:
            object.__setattr__(self, "lineage", Lineage(self.topic_id))

    def to_bytes(self, topic_format: int = TOPIC_FORMAT_BY_POSITION) -> bytes:
        """The stored form in a given format, or in a newer one if fields would be lost otherwise."""
        needs_lineage = self.is_renamed
        is_by_name = topic_format >= TOPIC_FORMAT_BY_NAME or self.needs_names or needs_lineage
        least = TOPIC_FORMAT_WITH_LINEAGE if needs_lineage else TOPIC_FORMAT_BY_NAME
        return json.dumps(
            {
                **self.unknown,
                "version": least if is_by_name else TOPIC_FORMAT_BY_POSITION,
                "name": self.name,
                "topic_id": str(self.topic_id),
                **({"lineage": str(self.lineage)} if needs_lineage else {}),
                "configs": dict(self.configs),
                **(_rows_by_name(self.partitions) if is_by_name else _rows_by_position(self.partitions)),
            },
            ensure_ascii=not is_by_name,
            separators=(",", ":"),
        ).encode(errors="surrogatepass")  # as it is read: an odd character in a value must not prevent changes

    def without_unknown(self) -> TopicImage:
        """The topic without fields that only newer releases know."""
        states = tuple([replace(state, unknown=()) if state.unknown else state for state in self.partitions])
        return replace(self, partitions=states, unknown=NO_FIELDS)

    @property
    def is_renamed(self) -> bool:
        """Whether its id differs from its first one."""
        return self.topic_id != self.lineage

    @property
    def needs_names(self) -> bool:
        """Whether it has fields that would be lost if partitions were written by position."""
        return bool(self.unknown) or any(state.unknown for state in self.partitions)

    @classmethod
    def from_bytes(cls, value: bytes) -> TopicImage:
        data = known_format(value, TOPIC_FORMAT_WITH_LINEAGE, "a topic")
        with reading(f"topic {data.get('name')}"):
            return cls(
                data["name"],
                TopicId(UUID(data["topic_id"])),
                _READ_PARTITIONS[data["version"]](data),
                MappingProxyType(dict(data["configs"])),
                unknown_fields(data, _TOPIC_KEYS),
                lineage=Lineage(UUID(data["lineage"])) if "lineage" in data else _NO_LINEAGE,
            )


def topic_format_of(value: bytes) -> int:
    """The format in which a topic is stored."""
    return number_of(known_format(value, TOPIC_FORMAT_WITH_LINEAGE, "a topic"), "version", "a topic")


_TOPIC_KEYS = ("version", "name", "topic_id", "lineage", "configs", "partitions", "brokers", "broker_lists", "fields")


def _rows_by_position(states: Sequence[PartitionState]) -> dict[str, Any]:
    return {"partitions": [(state.replicas, state.isr, state.leader, state.leader_epoch) for state in states]}


def _rows_by_name(states: Sequence[PartitionState]) -> dict[str, Any]:
    further = sorted(dict.fromkeys([name for state in states for name, _ in state.unknown]))
    is_list = dict.fromkeys([name for state in states for name, value in state.unknown if isinstance(value, tuple)])
    lists = [state.replicas for state in states]
    lists += [state.isr for state in states if state.isr is not state.replicas]
    lists += [value for state in states for name, value in state.unknown if name in is_list]
    brokers, texts = packed(lists)
    rows: list[Sequence[Any]] = [
        (
            text := texts[state.replicas],
            text if state.isr is state.replicas else texts[state.isr],
            state.leader,
            state.leader_epoch,
        )
        for state in states
    ]
    for number, state in enumerate(states if further else ()):
        if state.unknown:
            values = {name: texts[value] if name in is_list else value for name, value in state.unknown}
            rows[number] = (*rows[number], *map(values.get, further))
    return {
        "brokers": brokers,
        "broker_lists": [*_BROKER_LISTS, *is_list],
        "fields": [*_FIELDS, *further],
        "partitions": rows,
    }


def _from_objects(data: Mapping[str, Any]) -> tuple[PartitionState, ...]:
    return tuple(
        [
            PartitionState(tuple(each["replicas"]), tuple(each["isr"]), each["leader"], each["leader_epoch"])
            for each in data["partitions"]
        ]
    )


def _from_positions(data: Mapping[str, Any]) -> tuple[PartitionState, ...]:
    return tuple(
        [
            PartitionState(tuple(replicas), tuple(isr), leader, leader_epoch)
            for replicas, isr, leader, leader_epoch in data["partitions"]
        ]
    )


def _from_names(data: Mapping[str, Any]) -> tuple[PartitionState, ...]:
    fields, broker_lists, rows = data["fields"], data["broker_lists"], data["partitions"]
    if fields == _FIELDS and broker_lists == _BROKER_LISTS:
        lists = unpacked(data["brokers"], chain([row[0] for row in rows], [row[1] for row in rows]))
        return tuple(
            [
                PartitionState(lists[replicas], lists[isr], leader, leader_epoch)
                for replicas, isr, leader, leader_epoch in rows
            ]
        )
    columns = [number for number, name in enumerate(fields) if name in broker_lists]
    texts = [row[number] for number in columns for row in rows if number < len(row)]
    lists = unpacked(data["brokers"], [text for text in texts if text is not None])
    return tuple([_from_row(row, fields, broker_lists, lists) for row in rows])


def _from_row(
    row: Sequence[Any],
    fields: Sequence[str],
    broker_lists: Collection[str],
    lists: Mapping[str, tuple[int, ...]],
) -> PartitionState:
    values: dict[str, Any] = {
        name: lists[value] if name in broker_lists else value
        for name, value in zip(fields, row, strict=False)
        if value is not None
    }
    replicas, isr, leader, leader_epoch = [values.pop(name) for name in _FIELDS]
    return PartitionState(replicas, isr, leader, leader_epoch, tuple(sorted(values.items())))


_READ_PARTITIONS = {
    1: _from_objects,
    TOPIC_FORMAT_BY_POSITION: _from_positions,
    TOPIC_FORMAT_BY_NAME: _from_names,
    TOPIC_FORMAT_WITH_LINEAGE: _from_names,
}


def configs_to_bytes(configs: Mapping[str, str], before: bytes | None = None) -> bytes:
    """The stored form of a broker's configuration, with unknown fields of the previous value."""
    further = NO_FIELDS if before is None else unknown_fields(_configs_value(before), _CONFIGS_KEYS)
    data = {**further, "version": _CONFIGS_FORMAT, "configs": dict(configs)}
    return json.dumps(data, separators=(",", ":")).encode()


def configs_from_bytes(value: bytes) -> Mapping[str, str]:
    """Read what `configs_to_bytes` wrote."""
    data = _configs_value(value)
    with reading("a broker's configuration"):
        return MappingProxyType(dict(data["configs"]))


_CONFIGS_KEYS = ("version", "configs")


def _configs_value(value: bytes) -> Mapping[str, Any]:
    return known_format(value, _CONFIGS_FORMAT, "a broker's configuration")


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A broker's address on one listener."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One live broker."""

    broker_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    #: Identifies the start of the broker: each has a larger epoch.
    epoch: int = 0
    #: The machine it runs on, which may fail as a whole.
    host: str = ""
    pid: int = 0
    #: Identify its log directories wherever they are mounted.
    directory_ids: tuple[str, ...] = ()
    software_version: str = ""
    started_ms: int = 0
    #: Whether it has the packages installed that reading archives needs.
    reads_archives: bool = True
    #: The features it supports.
    features: SupportedFeatures = field(default_factory=lambda: OLDEST)
    #: Verifies proofs of this process (ADR 21); empty if its release makes none.
    verifier: bytes = b""

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Its address on the listener with this name."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    def to_bytes(self) -> bytes:
        """The stored form."""
        return json.dumps(
            {
                "version": _BROKER_FORMAT,
                "broker_id": self.broker_id,
                "endpoints": [(endpoint.listener, endpoint.host, endpoint.port) for endpoint in self.endpoints],
                "rack": self.rack,
                "epoch": self.epoch,
                "host": self.host,
                "pid": self.pid,
                "directory_ids": self.directory_ids,
                "software_version": self.software_version,
                "started_ms": self.started_ms,
                "reads_archives": self.reads_archives,
                "features": dict(self.features),
                "verifier": self.verifier.hex(),
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> BrokerImage:
        data = known_format(value, _BROKER_FORMAT, "the registration of a broker")
        with reading(f"the registration of broker {data.get('broker_id')}"):
            return cls(
                data["broker_id"],
                tuple(BrokerEndpoint(*endpoint) for endpoint in data["endpoints"]),
                data["rack"],
                data["epoch"],
                data["host"],
                data["pid"],
                tuple(data["directory_ids"]),
                data["software_version"],
                data["started_ms"],
                # From an earlier version: assume that it cannot read archives, so that no local record is removed.
                data.get("reads_archives", False),
                MappingProxyType({name: LevelRange(*levels) for name, levels in data["features"].items()})
                if "features" in data
                else OLDEST,
                bytes.fromhex(data.get("verifier", "")),
            )


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything that a broker tells clients about the cluster."""

    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    #: By the ids that clients use.
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    #: By permanent identity, as in the store.
    topics_by_lineage: Mapping[Lineage, TopicImage] = field(default_factory=dict)
    #: Dynamic configuration, by broker id as text, and under `ALL_BROKERS`.
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Archives of topics by lineage; topics without an archive are missing.
    archives: Mapping[Lineage, ArchiveState] = field(default_factory=dict)
    #: The finalized feature levels.
    features: FinalizedFeatures = field(default_factory=FinalizedFeatures)

    def reachable_through(self, listener: str) -> list[tuple[BrokerImage, BrokerEndpoint]]:
        """The brokers that have this listener, with their addresses on it."""
        found = [(broker, broker.endpoint(listener)) for broker in self.brokers.values()]
        return [(broker, endpoint) for broker, endpoint in found if endpoint is not None]

    def lineage_of(self, topic_id: TopicId) -> Lineage:
        """The lineage of the topic that a client means by an id, which may be out of date.

        An unknown id is taken for a first id: of a deleted topic, or of one that has a new id now.
        """
        topic = self.topics_by_id.get(topic_id)
        return Lineage(topic_id) if topic is None else topic.lineage

    def topic_id_of(self, lineage: Lineage) -> TopicId:
        """The id that clients use for a topic; its first id if the topic is gone."""
        topic = self.topics_by_lineage.get(lineage)
        return TopicId(lineage) if topic is None else topic.topic_id

    def with_topic_changes(self, changed: Iterable[TopicImage], removed: Iterable[Lineage]) -> ClusterImage:
        """The image after topics were deleted, and others created or changed."""
        topics, by_id, by_lineage = dict(self.topics), dict(self.topics_by_id), dict(self.topics_by_lineage)
        for lineage in removed:
            former = by_lineage.pop(lineage, None)
            if former is None:
                continue
            del by_id[former.topic_id]
            if topics[former.name].lineage == lineage:
                del topics[former.name]
        for topic in changed:
            replaced, former = topics.get(topic.name), by_lineage.get(topic.lineage)
            if replaced is not None and replaced.lineage != topic.lineage:
                by_lineage.pop(replaced.lineage, None)
                by_id.pop(replaced.topic_id, None)
            if former is not None and former.topic_id != topic.topic_id:
                del by_id[former.topic_id]
            topics[topic.name] = by_id[topic.topic_id] = by_lineage[topic.lineage] = topic
        return replace(
            self,
            topics=MappingProxyType(topics),
            topics_by_id=MappingProxyType(by_id),
            topics_by_lineage=MappingProxyType(by_lineage),
        )

    def configs_of(self, broker: str) -> Mapping[str, str]:
        """The dynamic configuration of a broker, or of all."""
        return self.broker_configs.get(broker, MappingProxyType({}))


def replica_to_ask(state: PartitionState, reachable: Container[int]) -> int:
    """A replica that may lead in place of a possibly deposed leader, or knows who does; -1 if there is none."""
    return next((each for each in state.isr if each != state.leader and each in reachable), NO_LEADER)
