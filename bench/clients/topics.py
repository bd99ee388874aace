"""Creates topics with librdkafka's admin client."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic

_PATIENCE_SECONDS = 120.0


def create_topic(bootstrap: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic with one replica."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # In a broker's first moments, a client may find no controller, and would ask again only minutes later.
    while admin.list_topics(timeout=30).controller_id < 0:
        time.sleep(0.1)
    wanted = NewTopic(topic, partitions, config=dict(configs or {}))
    admin.create_topics([wanted], operation_timeout=_PATIENCE_SECONDS)[topic].result(_PATIENCE_SECONDS)
