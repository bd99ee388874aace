"""Topics move from one broker to another by the very commands of docs/moving-from-kafka.md.

The first broker is the suite's, so that with TAILRACE_TEST_BOOTSTRAP it is Apache Kafka; the second is tailrace.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.systems.kafka import PROPERTIES
from tailrace.broker.config.broker_config import load_config
from tailrace.client import Message, Producer, read
from tests.interop.conftest import Broker
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess
from tests.support.clients.java_client import CONSOLE_CONSUMER, CONSOLE_PRODUCER, run_tool
from tests.support.topics import create_topic

PAGE = Path(__file__).parents[2] / "docs" / "moving-from-kafka.md"
PARTITIONS = 3
#: Older than the default retention.
LONG_AGO_MS = 1_600_000_000_000
_TIMEOUT_SECONDS = 180


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker that topics move to."""
    with BrokerProcess(tmp_path_factory.mktemp("new") / "data") as process:
        yield process


def run_from_page(name: str, **variables: str) -> None:
    """Run a block of the page, with its variables set."""
    found = re.search(rf"```sh {name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"the page has no block {name}"
    environment = {**os.environ, "PATH": f"{EXECUTABLE.parent}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["sh", "-eu", "-c", found[1]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def records(bootstrap: str, topic: str) -> dict[int, list[Message]]:
    """The records of each partition, in order."""
    found: dict[int, list[Message]] = {number: [] for number in range(PARTITIONS)}
    with read(topic, bootstrap=bootstrap) as messages:
        for message in messages:
            found[message.partition].append(message)
    return found


def without_offsets(found: dict[int, list[Message]]) -> dict[int, list[tuple[object, ...]]]:
    return {
        number: [(one.key, one.value, list(one.headers), one.timestamp_ms) for one in messages]
        for number, messages in found.items()
    }


def test_a_copied_topic_has_every_record_where_it_was(
    broker: Broker, new: BrokerProcess, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name(), partitions=PARTITIONS, retention_ms="-1")
    with Producer(broker.bootstrap, **{"compression.type": "lz4"}) as producer:
        for number in range(500):
            producer.send(
                topic,
                bytes([number % 256, 0xFF]) if number % 3 else f"text {number}",
                key=None if number % 5 == 0 else f"key {number}",
                headers=[("tag", b"a"), ("binary", b"\x00\xff"), ("empty", None)] if number % 2 else None,
                timestamp_ms=LONG_AGO_MS + number,
                partition=number % PARTITIONS,
            )
        producer.send(topic, None, key="a tombstone", partition=0)
    old = records(broker.bootstrap, topic)
    assert sum(map(len, old.values())) == 501
    run_from_page("copy-topic", OLD=broker.bootstrap, NEW=new.bootstrap, TOPIC=topic, PARTITIONS=str(PARTITIONS))
    copied = records(new.bootstrap, topic)
    assert without_offsets(copied) == without_offsets(old)
    for messages in copied.values():
        assert [message.offset for message in messages] == list(range(len(messages)))


def test_lines_of_text_move_by_kcat(broker: Broker, new: BrokerProcess, topic_name: Callable[[], str]) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    create_topic(new.bootstrap, topic)
    with Producer(broker.bootstrap) as producer:
        for number in range(100):
            producer.send(topic, f"value {number}", key=f"key {number}")
    run_from_page("copy-with-kcat", OLD=broker.bootstrap, NEW=new.bootstrap, TOPIC=topic)
    with read(topic, bootstrap=new.bootstrap) as messages:
        found = [(message.key, message.value) for message in messages]
    assert found == [(f"key {number}".encode(), f"value {number}".encode()) for number in range(100)]


def test_lines_of_text_move_by_kafkas_console_tools(
    broker: Broker, new: BrokerProcess, topic_name: Callable[[], str]
) -> None:
    topic = create_topic(broker.bootstrap, topic_name())
    create_topic(new.bootstrap, topic)
    with Producer(broker.bootstrap) as producer:
        for number in range(20):
            producer.send(topic, f"value {number}", key=f"key {number}")
    lines = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning"),
        *("--partition", "0", "--max-messages", "20", "--formatter-property", "print.key=true"),
    )
    run_tool(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", new.bootstrap, "--topic", topic, "--reader-property", "parse.key=true"),
        stdin=lines,
    )
    with read(topic, bootstrap=new.bootstrap) as messages:
        found = [(message.key, message.value) for message in messages]
    assert found == [(f"key {number}".encode(), f"value {number}".encode()) for number in range(20)]


def test_kafkas_own_server_properties_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(PROPERTIES.format(port=9092, controller_port=9093, log_dir=tmp_path / "data"))
    config = load_config(str(path), {})
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert any("num.io.threads has no effect" in text for text in config.warnings)
