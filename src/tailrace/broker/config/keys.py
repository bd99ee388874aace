"""Every broker configuration key: the tables of all subjects together.

Contains only keys that change what this broker does, so that every accepted value takes effect. The only exception are
the names in `NO_EFFECT`, which a stock server.properties of Kafka contains. This module must not know where values come
from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tailrace.broker.config.archive_keys import ARCHIVE_KEYS
from tailrace.broker.config.broker_keys import IDENTITY_KEYS, OBSERVATION_KEYS
from tailrace.broker.config.cluster_keys import CLUSTER_KEYS
from tailrace.broker.config.group_keys import GROUP_KEYS
from tailrace.broker.config.log_keys import FLUSH_KEYS, LOG_KEYS
from tailrace.broker.config.network_keys import NETWORK_KEYS
from tailrace.broker.config.transaction_keys import TRANSACTION_KEYS
from tailrace.broker.config.types import ConfigKey

#: In the order of the reference page.
_TABLE = (
    *IDENTITY_KEYS,
    *LOG_KEYS,
    *ARCHIVE_KEYS,
    *FLUSH_KEYS,
    *NETWORK_KEYS,
    *OBSERVATION_KEYS,
    *CLUSTER_KEYS,
    *GROUP_KEYS,
    *TRANSACTION_KEYS,
)

BROKER_KEYS: Mapping[str, ConfigKey] = MappingProxyType({key.name: key for key in _TABLE})

#: Kafka's other names of keys, with the names used here.
ALIASES: Mapping[str, str] = MappingProxyType({alias: key.name for key in _TABLE for alias in key.aliases})

#: Keys that a stock server.properties of Kafka may contain and that have no effect here: accepted with a warning. Never
#: a key whose loss would weaken durability or security.
NO_EFFECT = (
    "background.threads",
    "controlled.shutdown.max.retries",
    "controlled.shutdown.retry.backoff.ms",
    "early.start.listeners",
    "inter.broker.protocol.version",
    "log.cleaner.io.buffer.size",
    "log.cleaner.threads",
    "log.message.format.version",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "process.roles",
    "queued.max.requests",
    "replica.selector.class",
    "replica.socket.receive.buffer.bytes",
)

#: The same for whole families of keys.
NO_EFFECT_PREFIXES = (
    "add.partitions.to.txn.retry.",
    "controller.",
    "group.consumer.max.heartbeat.",
    "group.consumer.max.session.",
    "group.consumer.min.",
    "group.consumer.regex.",
    "group.coordinator.",
    "group.share.",
    "group.streams.",
    "metadata.log.",
    "offsets.commit.",
    "offsets.load.",
    "offsets.topic.compression.",
    "share.coordinator.",
    "transaction.partition.verification.",
    "transaction.state.log.load.",
    "transaction.two.phase.commit.",
    "zookeeper.",
)
