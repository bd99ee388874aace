"""Where everything is in the store, and how the values are written there that are no more than a number.

Keys that are checked are never made anew while anybody may remember them: topics are under their lineages, epochs
stay for ever. The exceptions belong to sessions, and are taken as they come.
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
#: What of each topic is archived.
ARCHIVES = "/archives"
#: The brokers that are alive, each in its session.
BROKERS = "/brokers"
#: How often each broker was started.
BROKER_EPOCHS = "/broker-epochs"
#: A directory of its own, so that it can be watched.
CONTROLLERS = "/controller"
#: Who the controller is, in its session.
CONTROLLER = f"{CONTROLLERS}/elected"
#: How often a controller was elected; checked by everything that it writes.
CONTROLLER_EPOCH = "/controller-epoch"
BROKER_CONFIGS = "/configs/brokers"
PRODUCER_IDS = "/producer-ids/next"
#: A directory of its own, so that it can be watched.
FEATURES = "/features"
#: The levels of features that the cluster goes by; absent where it began with a release that knew none.
FINALIZED_FEATURES = f"{FEATURES}/finalized"
#: In the file of a single broker: where its metadata has gone.
MOVED_TO = "/moved-to"

#: For values that have no fields that this release does not know.
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})

_EPOCH_FORMAT = 1
_CONTROLLER_FORMAT = 1


def topic_key(lineage: Lineage) -> str:
    return f"{TOPICS}/{lineage}"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Say of a stored value that is not what it should be that it is `Unreadable`: no value ends a broker."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unreadable(f"{what} in the metadata store cannot be read: {error!r}") from error


def topic_of(key: str) -> Lineage:
    """The topic that a key below `TOPICS` or `ARCHIVES` is of."""
    with reading(f"the key {key}"):
        return Lineage(UUID(key.rpartition("/")[2]))


def archive_key(lineage: Lineage) -> str:
    return f"{ARCHIVES}/{lineage}"


def name_key(name: str) -> str:
    return f"{TOPIC_NAMES}/{name}"


def broker_key(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def broker_of(key: str) -> int:
    """The broker that a key below `BROKERS` is of."""
    with reading(f"the key {key}"):
        return int(key.rpartition("/")[2])


def broker_epoch_key(broker_id: int) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def epoch_to_bytes(epoch: int) -> bytes:
    """An epoch as the store holds it."""
    return json.dumps({"version": _EPOCH_FORMAT, "epoch": epoch}, separators=(",", ":")).encode()


def epoch_from_bytes(value: bytes) -> int:
    """What `epoch_to_bytes` wrote."""
    return number_of(known_format(value, _EPOCH_FORMAT, "an epoch"), "epoch", "an epoch")


def number_of(data: Mapping[str, Any], key: str, what: str) -> int:
    """A whole number of a value."""
    with reading(what):
        return int(data[key])


class ElectedController(NamedTuple):
    """Who the controller is, and by which election."""

    broker_id: int
    epoch: int

    def to_bytes(self) -> bytes:
        """As the store holds it."""
        data = {"version": _CONTROLLER_FORMAT, "broker_id": self.broker_id, "epoch": self.epoch}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> ElectedController:
        what = "the controller"
        data = known_format(value, _CONTROLLER_FORMAT, what)
        return cls(number_of(data, "broker_id", what), number_of(data, "epoch", what))


def known_format(value: bytes, newest: int, what: str, key: str = "version") -> dict[str, Any]:
    """What a value holds, if its format is not newer than this software."""
    with reading(what):
        data: dict[str, Any] = json.loads(value)
        version = int(data[key])
    if version > newest:
        raise Unreadable(f"{what} is stored in format {version}, this software knows {newest}")
    return data


def unknown_fields(data: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """The fields of a value that a newer release wrote in the same format: a change by this one must keep them."""
    unknown = {name: value for name, value in data.items() if name not in known}
    return MappingProxyType(unknown) if unknown else NO_FIELDS
