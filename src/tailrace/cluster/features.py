"""The features that the releases in a cluster have in common; each has a level that every broker supports.

The broker that creates a cluster finalizes the levels in the store. Later only an operator changes them, so that a
rolling upgrade can be undone until then. Names, rules and errors are Kafka's. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from tailrace.cluster.keys import known_format, reading, unknown_fields
from tailrace.errors import ErrorCode, KafkaError

_FORMAT = 1
_KEYS = ("version", "epoch", "levels")

#: Level 1: topics in format 2. Level 2: topics in format 3, which names the fields of partitions. Level 3: topics whose
#: id differs from their lineage, in format 4; and requests for brokers are refused from peers that have not proved
#: their identity.
TAILRACE_VERSION = "tailrace.version"
TOPICS_BY_NAME_LEVEL = 2
LINEAGES_LEVEL = 3
PROVEN_BROKERS_LEVEL = 3
#: Kafka's feature. Level 0 is the same as not finalized: there are no transactions. Levels 1 and 2 allow them; clients
#: use the newer protocol (KIP-890) only at level 2.
TRANSACTION_VERSION = "transaction.version"
TRANSACTIONS_LEVEL = 1
EPOCH_AT_EVERY_END_LEVEL = 2


class LevelRange(NamedTuple):
    """The levels of a feature that a release supports, inclusive."""

    lowest: int
    highest: int


Levels: TypeAlias = Mapping[str, int]
SupportedFeatures: TypeAlias = Mapping[str, LevelRange]

#: What this release supports.
SUPPORTED: SupportedFeatures = MappingProxyType(
    {
        TAILRACE_VERSION: LevelRange(1, PROVEN_BROKERS_LEVEL),
        TRANSACTION_VERSION: LevelRange(0, EPOCH_AT_EVERY_END_LEVEL),
    }
)
#: What a broker supports whose registration does not list features.
OLDEST: SupportedFeatures = MappingProxyType({TAILRACE_VERSION: LevelRange(1, 1)})
#: The levels of a cluster that never finalized any.
_OLDEST_LEVELS: Levels = MappingProxyType({TAILRACE_VERSION: 1})


def supports_level(supported: SupportedFeatures, name: str, level: int) -> bool:
    """Whether a broker supports a level of a feature."""
    return _unsupported(name, level, supported) is None


class UpgradeType(IntEnum):
    """The allowed direction of a change."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A requested level for a feature."""

    name: str
    level: int
    upgrade_type: UpgradeType


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """The finalized levels of a cluster."""

    #: The number of changes so far.
    epoch: int = 0
    levels: Levels = field(default_factory=lambda: _OLDEST_LEVELS)
    #: Fields that a newer release wrote.
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def level(self, name: str) -> int:
        """The level of a feature; 0 if it is not finalized."""
        return self.levels.get(name, 0)

    def to_bytes(self) -> bytes:
        """The stored form."""
        data = {**self.unknown, "version": _FORMAT, "epoch": self.epoch, "levels": dict(self.levels)}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> FinalizedFeatures:
        what = "the finalized features"
        data = known_format(value, _FORMAT, what)
        with reading(what):
            levels = {str(name): int(level) for name, level in data["levels"].items()}
            return cls(int(data["epoch"]), MappingProxyType(levels), unknown_fields(data, _KEYS))


def newest(supported: SupportedFeatures) -> FinalizedFeatures:
    """The levels of a new cluster."""
    return FinalizedFeatures(0, MappingProxyType({name: levels.highest for name, levels in supported.items()}))


def unsupported_levels(finalized: FinalizedFeatures, supported: SupportedFeatures) -> str | None:
    """Why a broker does not support its cluster's levels; None if it does."""
    for name, level in sorted(finalized.levels.items()):
        problem = _unsupported(name, level, supported)
        if problem is not None:
            return f"the cluster is finalized at {name}={level}, but this release {problem}"
    return None


def updated(
    finalized: FinalizedFeatures, updates: Sequence[FeatureUpdate], brokers: Mapping[int, SupportedFeatures]
) -> FinalizedFeatures:
    """The levels after a request; raises if it is refused. `brokers` are all registered brokers."""
    levels = dict(finalized.levels)
    for update in updates:
        _check_direction(update, finalized.level(update.name))
        if update.level == finalized.level(update.name):
            continue
        for broker_id, supported in sorted(brokers.items()):
            problem = _unsupported(update.name, update.level, supported)
            if problem is not None:
                raise _invalid(update, f"Broker {broker_id} {problem}.")
        if update.level == 0:
            # Without the name, brokers of a release that does not know the feature start again.
            del levels[update.name]
        else:
            levels[update.name] = update.level
    if levels == finalized.levels:
        return finalized
    return replace(finalized, epoch=finalized.epoch + 1, levels=MappingProxyType(levels))


def _check_direction(update: FeatureUpdate, level: int) -> None:
    if update.level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    if update.level < level and update.upgrade_type is UpgradeType.UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if update.level > level and update.upgrade_type is not UpgradeType.UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")


def _unsupported(name: str, level: int, supported: SupportedFeatures) -> str | None:
    levels = supported.get(name)
    if levels is None:
        return "does not support this feature"
    if not levels.lowest <= level <= levels.highest:
        return f"only supports versions {levels.lowest}-{levels.highest}"
    return None


def _invalid(update: FeatureUpdate, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {update.level} for feature {update.name}. {reason}"
    )
