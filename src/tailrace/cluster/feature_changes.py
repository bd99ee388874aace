"""Changes to the cluster's finalized features, and what follows from them for stored topics.

The level of `tailrace.version` decides the format of stored topics, which every broker must be able to read.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.cluster.features import LINEAGES_LEVEL, TAILRACE_VERSION, TOPICS_BY_NAME_LEVEL, FinalizedFeatures
from tailrace.cluster.image import (
    TOPIC_FORMAT_BY_NAME,
    TOPIC_FORMAT_BY_POSITION,
    TOPIC_FORMAT_WITH_LINEAGE,
    TopicImage,
    topic_format_of,
)
from tailrace.cluster.keys import FINALIZED_FEATURES, TOPICS
from tailrace.cluster.store import ABSENT
from tailrace.cluster.stored_changes import StoredChanges
from tailrace.errors import ErrorCode, KafkaError


class FeatureChanges(StoredChanges):
    """The image, and changes to its features."""

    async def alter_features(self, change: Callable[[FinalizedFeatures], FinalizedFeatures]) -> None:
        """Apply a function to the stored finalized features."""
        await self._to_its_end(self._alter_features(change))

    async def _alter_features(self, change: Callable[[FinalizedFeatures], FinalizedFeatures]) -> None:
        def changed(value: bytes | None) -> bytes | None:
            stored = FinalizedFeatures() if value is None else FinalizedFeatures.from_bytes(value)
            wanted = change(stored)
            return value if wanted == stored else wanted.to_bytes()

        entry = await self._alter(FINALIZED_FEATURES, changed)
        if entry.version != ABSENT:
            self._known.learn_features(entry)
        await self.settle()

    async def rewrite_topics(self, *, may_lose_fields: bool) -> int:
        """Rewrite topics stored in a newer format in the current one; returns how many there were."""
        rewritten = 0

        async def run() -> None:
            nonlocal rewritten
            # Repeat until none is found: a broker that does not know the new level yet may write the newer format.
            while newer := [
                entry.key for entry in await self._list(TOPICS) if topic_format_of(entry.value) > self._topic_format
            ]:
                for key in newer:
                    await self._rewrite_topic(key, may_lose_fields)
                rewritten += len(newer)

        await self._to_its_end(run())
        return rewritten

    async def _rewrite_topic(self, key: str, may_lose_fields: bool) -> None:
        def changed(value: bytes | None) -> bytes | None:
            if value is None or topic_format_of(value) <= self._topic_format:
                return value
            topic = TopicImage.from_bytes(value)
            if topic.is_renamed:
                raise KafkaError(
                    ErrorCode.FEATURE_UPDATE_FAILED,
                    f"Topic {topic.name} was given a new id, and older releases would take it for another topic: "
                    f"upgrade {TAILRACE_VERSION} to {LINEAGES_LEVEL} again, or delete the topic first.",
                )
            if topic.needs_names and not may_lose_fields:
                raise KafkaError(
                    ErrorCode.FEATURE_UPDATE_FAILED,
                    f"Topic {topic.name} has fields that older releases do not know; "
                    "only an unsafe downgrade drops them.",
                )
            return self._stored(topic.without_unknown())

        entry = await self._alter(key, changed)
        if entry.version != ABSENT:
            self._known.learn_topic_entry(entry)
            self._step()

    def _stored(self, topic: TopicImage) -> bytes:
        """The stored form of a topic, in a format that every broker can read."""
        return topic.to_bytes(self._topic_format)

    @property
    def _topic_format(self) -> int:
        level = self._known.features.level(TAILRACE_VERSION)
        if level >= LINEAGES_LEVEL:
            return TOPIC_FORMAT_WITH_LINEAGE
        is_by_name = level >= TOPICS_BY_NAME_LEVEL
        return TOPIC_FORMAT_BY_NAME if is_by_name else TOPIC_FORMAT_BY_POSITION
