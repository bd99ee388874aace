"""The keys of the store, and the format of values that are just a number.

Keys that are checked are never recreated while a broker may remember them: topics are stored under their lineages, and
epochs are permanent. The exceptions are keys of sessions, whose latest state always applies.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from tailrace.cluster.store import Unreadable
from tailrace.model import Lineage

CLUSTER_ID = "/cluster/id"
TOPICS = "/topics"
TOPIC_NAMES = "/topic-names"
#: The state of each topic's archive.
ARCHIVES = "/archives"
#: Live brokers, each in its session.
BROKERS = "/brokers"
#: How often each broker was started.
BROKER_EPOCHS = "/broker-epochs"
#: A directory of its own, so that it can be watched.
CONTROLLERS = "/controller"
#: The current controller, in its session.
CONTROLLER = f"{CONTROLLERS}/elected"
#: The number of controller elections; every write of a controller checks it.
CONTROLLER_EPOCH = "/controller-epoch"
BROKER_CONFIGS = "/configs/brokers"
PRODUCER_IDS = "/producer-ids/next"
#: A directory of its own, so that it can be watched.
FEATURES = "/features"
#: The finalized feature levels; missing if the cluster was created by a release without features.
FINALIZED_FEATURES = f"{FEATURES}/finalized"
#: In a standalone broker's file: where its metadata was moved to.
MOVED_TO = "/moved-to"

#: For values without unknown fields.
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})

_EPOCH_FORMAT = 1
_CONTROLLER_FORMAT = 1


def topic_key(lineage: Lineage) -> str:
    return f"{TOPICS}/{lineage}"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `Unreadable` for a malformed stored value, so that no value can stop a broker."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unreadable(f"{what} in the metadata store cannot be read: {error!r}") from error


def topic_of(key: str) -> Lineage:
    """The topic of a key below `TOPICS` or `ARCHIVES`."""
    with reading(f"the key {key}"):
        return Lineage(UUID(key.rpartition("/")[2]))


def archive_key(lineage: Lineage) -> str:
    return f"{ARCHIVES}/{lineage}"


def name_key(name: str) -> str:
    return f"{TOPIC_NAMES}/{name}"


def broker_key(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def broker_of(key: str) -> int:
    """The broker of a key below `BROKERS`."""
    with reading(f"the key {key}"):
        return int(key.rpartition("/")[2])


def broker_epoch_key(broker_id: int) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def epoch_to_bytes(epoch: int) -> bytes:
    """The stored form of an epoch."""
    return json.dumps({"version": _EPOCH_FORMAT, "epoch": epoch}, separators=(",", ":")).encode()


def epoch_from_bytes(value: bytes) -> int:
    """Read what `epoch_to_bytes` wrote."""
    return number_of(known_format(value, _EPOCH_FORMAT, "an epoch"), "epoch", "an epoch")


def number_of(data: Mapping[str, Any], key: str, what: str) -> int:
    """An integer field of a value."""
    with reading(what):
        return int(data[key])


class ElectedController(NamedTuple):
    """The controller, and the epoch of its election."""

    broker_id: int
    epoch: int

    def to_bytes(self) -> bytes:
        """The stored form."""
        data = {"version": _CONTROLLER_FORMAT, "broker_id": self.broker_id, "epoch": self.epoch}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> ElectedController:
        what = "the controller"
        data = known_format(value, _CONTROLLER_FORMAT, what)
        return cls(number_of(data, "broker_id", what), number_of(data, "epoch", what))


def known_format(value: bytes, newest: int, what: str, key: str = "version") -> dict[str, Any]:
    """The content of a value, if its format is not newer than this release's."""
    with reading(what):
        data: dict[str, Any] = json.loads(value)
        version = int(data[key])
    if version > newest:
        raise Unreadable(f"{what} is stored in format {version}, but this release supports only up to {newest}")
    return data


def unknown_fields(data: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """The fields that a newer release wrote in the same format; a change by this release must keep them."""
    unknown = {name: value for name, value in data.items() if name not in known}
    return MappingProxyType(unknown) if unknown else NO_FIELDS
