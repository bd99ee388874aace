"""Creating topics before a test uses them, through librdkafka's admin client."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.clients.confluent_client import refusal


def create_topic(bootstrap: str, name: str, *, partitions: int = 1, **config: str) -> str:
    """Create a topic, with `_` for `.` in configuration names, and give its name back."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    names = {key.replace("_", "."): value for key, value in config.items()}
    created = admin.create_topics([NewTopic(name, partitions, config=names)], operation_timeout=60)
    try:
        created[name].result(90)
    except KafkaException as error:
        raise refusal(error.args[0]) from error
    return name


def topic_names(bootstrap: str) -> list[str]:
    """The names of all topics but the broker's own, sorted."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return sorted(name for name in admin.list_topics(timeout=60).topics if not name.startswith("__"))


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until that is done."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([name], operation_timeout=60)[name].result(90)


def eventually(condition: Callable[[], bool], *, timeout_seconds: float = 60) -> bool:
    """Whether a condition comes to hold in time: metadata may trail the answer that announced its change."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
