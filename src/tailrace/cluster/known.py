"""The newest state that a broker has seen of each key: from its own writes, from its reads and from its watches.

These arrive in any order. The version of a topic tells which is newer. A deleted topic never comes back, because
lineages are not reused. Keys of sessions may be recreated, so the last watch event applies to them; only a broker's own
registration comes from the broker itself. Pure: it stores what it is told, and makes images from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from tailrace.cluster.archives import ArchiveState
from tailrace.cluster.features import FinalizedFeatures
from tailrace.cluster.image import (
    ALL_BROKERS,
    NO_LEADER,
    BrokerImage,
    ClusterImage,
    TopicImage,
    configs_from_bytes,
)
from tailrace.cluster.keys import BROKER_CONFIGS, ElectedController, broker_key, broker_of, topic_key, topic_of
from tailrace.cluster.store import ABSENT, Entry
from tailrace.model import Lineage

K = TypeVar("K")
V = TypeVar("V")

FOR_ALL_BROKERS = "default"
#: How many deleted topics are remembered: events arrive seconds late at most, so this is far more than needed.
_MOST_DELETED = 10_000


class Known:
    """What is known of the store, and what of it the image does not show yet."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.topics: dict[Lineage, TopicImage] = {}
        self._topic_versions: dict[Lineage, int] = {}
        self._deleted: dict[Lineage, None] = {}
        #: Topics with a write of unknown outcome, and the version that it would replace.
        self._uncertain: dict[Lineage, int] = {}
        self._brokers: dict[int, BrokerImage] = {}
        self._own_registration: BrokerImage | None = None
        #: The last registration of each broker, even after its session: it may continue in its epoch.
        self._last_registrations: dict[int, BrokerImage] = {}
        self._configs: dict[str, Mapping[str, str]] = {}
        self._config_versions: dict[str, int] = {}
        self._archives: dict[Lineage, ArchiveState] = {}
        self._archive_versions: dict[Lineage, int] = {}
        #: The finalized feature levels.
        self.features = FinalizedFeatures()
        self._features_version = ABSENT
        self._controller_id = NO_LEADER
        self._changed_topics: dict[Lineage, None] = {}
        self._has_other_changes = False

    @property
    def controller_id(self) -> int:
        """The controller's broker id, or -1."""
        return self._controller_id

    # --- topics

    def version_of(self, lineage: Lineage) -> int:
        """The known version of a topic, or ABSENT."""
        return self._topic_versions.get(lineage, ABSENT)

    def learn_topic(self, topic: TopicImage, version: int) -> None:
        """Learn a topic at a version, if that is newer than the known one."""
        lineage = topic.lineage
        if self._is_old(lineage, version):
            return
        self._topic_versions[lineage] = version
        if self._uncertain.get(lineage, version) < version:
            del self._uncertain[lineage]
        if self.topics.get(lineage) != topic:
            self.topics[lineage] = topic
            self._changed_topics[lineage] = None

    def learn_topic_entry(self, entry: Entry) -> None:
        """The same from a stored entry, which is decoded only if it is new."""
        if not self._is_old(topic_of(entry.key), entry.version):
            self.learn_topic(TopicImage.from_bytes(entry.value), entry.version)

    def _is_old(self, lineage: Lineage, version: int) -> bool:
        return version <= self.version_of(lineage) or lineage in self._deleted

    def forget_topic(self, lineage: Lineage) -> None:
        """A topic was deleted for good."""
        self._deleted[lineage] = None
        if len(self._deleted) > _MOST_DELETED:
            del self._deleted[next(iter(self._deleted))]
        self._topic_versions.pop(lineage, None)
        self._archive_versions.pop(lineage, None)
        if self._archives.pop(lineage, None) is not None:
            self._has_other_changes = True
        self._uncertain.pop(lineage, None)
        if self.topics.pop(lineage, None) is not None:
            self._changed_topics[lineage] = None

    def doubt(self, lineage: Lineage) -> None:
        """The outcome of a write to a topic is unknown: it may be applied until the version changes."""
        if lineage in self._topic_versions:
            self._uncertain[lineage] = self._topic_versions[lineage]

    def is_doubtful(self, lineage: Lineage) -> bool:
        """Whether a write to a topic with unknown outcome may still be applied."""
        return lineage in self._uncertain

    def topics_not_in(self, entries: Iterable[Entry]) -> list[Lineage]:
        """The known topics that are missing from a complete list of entries."""
        there = dict.fromkeys(entry.key for entry in entries)
        return [lineage for lineage in self.topics if topic_key(lineage) not in there]

    # --- archives

    def learn_archive(self, entry: Entry) -> None:
        """Learn a topic's archive at a version; it is removed with its topic."""
        lineage = topic_of(entry.key)
        if lineage in self._deleted or entry.version <= self._archive_versions.get(lineage, ABSENT):
            return
        self._archive_versions[lineage] = entry.version
        self._archives[lineage] = ArchiveState.from_bytes(entry.value)
        self._has_other_changes = True

    # --- brokers, their configuration, the controller

    def register_own(self, broker: BrokerImage) -> None:
        """This broker is registered like this."""
        if self._own_registration != broker:
            self._own_registration = broker
            self._has_other_changes = True

    def learn_brokers(self, entries: Sequence[Entry], removed: Sequence[str], is_complete: bool) -> None:
        """Learn registrations from the store."""
        before = dict(self._brokers)
        if is_complete:
            self._brokers.clear()
        gone = dict.fromkeys(removed)
        self._brokers = {each: image for each, image in self._brokers.items() if broker_key(each) not in gone}
        for entry in entries:
            self._brokers[broker_of(entry.key)] = BrokerImage.from_bytes(entry.value)
        self._last_registrations.update(self._brokers)
        self._has_other_changes |= self._brokers != before

    def last_registration(self, broker_id: int) -> BrokerImage | None:
        """A broker's current or last registration; None if none is known."""
        return self._own_registration if broker_id == self._broker_id else self._last_registrations.get(broker_id)

    def learn_configs(self, entry: Entry) -> None:
        """Learn the configuration of a broker, or of all, at a version."""
        name = entry.key.removeprefix(f"{BROKER_CONFIGS}/")
        broker = ALL_BROKERS if name == FOR_ALL_BROKERS else name
        if entry.version <= self._config_versions.get(broker, ABSENT):
            return
        self._config_versions[broker] = entry.version
        configs = configs_from_bytes(entry.value)
        if self._configs.get(broker) != configs:
            self._configs[broker] = configs
            self._has_other_changes = True

    def learn_features(self, entry: Entry) -> None:
        """Learn the finalized features at a version; their key is never removed."""
        if entry.version > self._features_version:
            features = FinalizedFeatures.from_bytes(entry.value)
            self._features_version = entry.version
            self._has_other_changes |= features != self.features
            self.features = features

    def learn_controller(self, entries: Sequence[Entry]) -> None:
        """Learn the controller from the store."""
        elected = [ElectedController.from_bytes(entry.value).broker_id for entry in entries]
        self.set_controller(elected[0] if elected else NO_LEADER)

    def set_controller(self, broker_id: int) -> None:
        """A broker is the controller now, or none is."""
        self._has_other_changes |= broker_id != self._controller_id
        self._controller_id = broker_id

    # --- the image

    @property
    def has_changes(self) -> bool:
        """Whether something is known that the last image does not show."""
        return bool(self._changed_topics) or self._has_other_changes

    def next_image(self, image: ClusterImage) -> ClusterImage:
        """The image after all changes since the last one."""
        changed, self._changed_topics = self._changed_topics, {}
        if changed:
            image = image.with_topic_changes(
                [self.topics[lineage] for lineage in changed if lineage in self.topics],
                [lineage for lineage in changed if lineage not in self.topics],
            )
        if self._has_other_changes:
            self._has_other_changes = False
            image = replace(
                image,
                controller_id=self._controller_id,
                brokers=_same_or_new(image.brokers, self._image_of_brokers()),
                broker_configs=_same_or_new(image.broker_configs, self._configs),
                archives=_same_or_new(image.archives, self._archives),
                features=self.features,
            )
        return image

    def _image_of_brokers(self) -> dict[int, BrokerImage]:
        # The store's entry for this broker's own id is from an earlier process, or was written by this one.
        brokers = {broker_id: each for broker_id, each in self._brokers.items() if broker_id != self._broker_id}
        if self._own_registration is not None:
            brokers[self._broker_id] = self._own_registration
        return dict(sorted(brokers.items()))


def _same_or_new(before: Mapping[K, V], now: Mapping[K, V]) -> Mapping[K, V]:
    """The previous mapping if nothing has changed, so that identity tells callers so."""
    return before if before == now else MappingProxyType(dict(now))
