"""What the releases in a cluster may use together: each feature has a level that every broker supports.

The broker that begins a new cluster finalizes the levels in the store. Later only an operator changes them, so that a
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
#: id is another than their lineage, in format 4; and what is for brokers alone is refused to peers that have not proved
#: which broker they are.
TAILRACE_VERSION = "tailrace.version"
TOPICS_BY_NAME_LEVEL = 2
LINEAGES_LEVEL = 3
PROVEN_BROKERS_LEVEL = 3


class LevelRange(NamedTuple):
    """The levels of a feature that a release supports, both ends included."""

    lowest: int
    highest: int


Levels: TypeAlias = Mapping[str, int]
SupportedFeatures: TypeAlias = Mapping[str, LevelRange]

#: What this release supports.
SUPPORTED: SupportedFeatures = MappingProxyType({TAILRACE_VERSION: LevelRange(1, PROVEN_BROKERS_LEVEL)})
#: What a broker supports whose registration says nothing of features.
OLDEST: SupportedFeatures = MappingProxyType({TAILRACE_VERSION: LevelRange(1, 1)})
#: What a cluster goes by in which nothing was ever finalized.
_OLDEST_LEVELS: Levels = MappingProxyType({TAILRACE_VERSION: 1})


def supports_level(supported: SupportedFeatures, name: str, level: int) -> bool:
    """Whether a broker can go by a level of a feature."""
    return _unsupported(name, level, supported) is None


class UpgradeType(IntEnum):
    """Which direction a change may have."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that somebody wants a feature to have."""

    name: str
    level: int
    upgrade_type: UpgradeType


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """The levels that a cluster goes by."""

    #: How often they were changed.
    epoch: int = 0
    levels: Levels = field(default_factory=lambda: _OLDEST_LEVELS)
    #: Fields that a newer release wrote.
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def level(self, name: str) -> int:
        """The level of a feature; 0 where it is not finalized."""
        return self.levels.get(name, 0)

    def to_bytes(self) -> bytes:
        """As the store holds it."""
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
    """What a new cluster begins with."""
    return FinalizedFeatures(0, MappingProxyType({name: levels.highest for name, levels in supported.items()}))


def unsupported_levels(finalized: FinalizedFeatures, supported: SupportedFeatures) -> str | None:
    """Why a broker cannot go by the levels of its cluster; None where it can."""
    for name, level in sorted(finalized.levels.items()):
        problem = _unsupported(name, level, supported)
        if problem is not None:
            return f"the cluster is finalized at {name}={level}, but this release {problem}"
    return None


def updated(
    finalized: FinalizedFeatures, updates: Sequence[FeatureUpdate], brokers: Mapping[int, SupportedFeatures]
) -> FinalizedFeatures:
    """The levels after a request, or the reason why not; `brokers` are all that are registered."""
    levels = dict(finalized.levels)
    for update in updates:
        _check_direction(update, finalized.level(update.name))
        if update.level == finalized.level(update.name):
            continue
        for broker_id, supported in sorted(brokers.items()):
            problem = _unsupported(update.name, update.level, supported)
            if problem is not None:
                raise _invalid(update, f"Broker {broker_id} {problem}.")
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
