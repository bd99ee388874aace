"""The terms that every layer shares: topic partitions, offsets, epochs and record timestamps.

Only names and value types. This module knows neither bytes nor disks nor sockets.
"""

from __future__ import annotations

from typing import NamedTuple, NewType
from uuid import UUID

NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

ZERO_UUID = UUID(int=0)

#: The id that clients use for a topic. It may change during the life of the topic.
TopicId = NewType("TopicId", UUID)
#: The permanent identity of a topic: everything stored for a topic, on brokers and elsewhere, belongs to its lineage.
Lineage = NewType("Lineage", UUID)

#: The topic in which groups keep their offsets and members.
OFFSETS_TOPIC = "__consumer_offsets"
#: The topic in which transactional ids keep their producers and transactions.
TRANSACTIONS_TOPIC = "__transaction_state"
#: Topics that brokers write for themselves; clients may read them but not produce to them.
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))

#: Maximum length of a topic name, so that `<topic>-<partition>` and its deletion suffix fit into a file name.
MAX_TOPIC_NAME_LENGTH = 249
_TOPIC_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def topic_name_problem(name: str) -> str | None:
    """What is wrong with a topic name, in Kafka's words; None if it is legal."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length of '{name[:40]}…' is longer than the max allowed length "
            f"{MAX_TOPIC_NAME_LENGTH}"
        )
    if not _TOPIC_NAME_CHARACTERS.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None
