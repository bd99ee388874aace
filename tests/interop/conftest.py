"""A real broker for the client tests, topics of their own for each, and the JVM and the Node processes that
they share.

With TAILRACE_TEST_BOOTSTRAP=host:port the suite runs against that broker instead, so that it can be held against
Apache Kafka itself; tests that must stop a broker or configure one are then skipped.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.brokers.broker_process import BrokerProcess
from tests.support.clients.java_client import JavaBridge
from tests.support.clients.node_client import KAFKAJS, PLATFORMATIC, NodeBridge

pytest.register_assert_rewrite("tests.interop.specification", "tests.interop.node_specification")

with warnings.catch_warnings():
    # kafka-python loads its schemas through a function that Python 3.11 and 3.12 call deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

EXTERNAL = os.environ.get("TAILRACE_TEST_BOOTSTRAP")


class Broker(Protocol):
    """What a test may know of its broker."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class ExternalBroker:
    """A broker that somebody else started and will stop."""

    bootstrap: str


class MakeBroker(Protocol):
    """Starts a broker with its own configuration: `make_broker(auto_create_topics_enable="false")`."""

    def __call__(self, **config: str) -> BrokerProcess: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need their own broker when an outside one is named."""
    if EXTERNAL is None:
        return
    own = {"make_broker", "own_broker", "strict_broker", "data_dir"}
    for item in items:
        if own.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(reason="needs a broker that this suite starts"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the whole session, with the default configuration except for the interval of retention checks.

    Tests send records that are months old, and read them before retention removes them.
    """
    if EXTERNAL is not None:
        yield ExternalBroker(EXTERNAL)
        return
    config = {"log.retention.check.interval.ms": str(24 * 3600 * 1000)}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", config=config) as process:
        yield process


@pytest.fixture
def data_dir(broker: Broker) -> Path:
    """Where the session's broker keeps its logs."""
    assert isinstance(broker, BrokerProcess)
    return broker.data_dir


@pytest.fixture(scope="session")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that does not create topics by itself."""
    config = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("strict") / "data", config=config) as process:
        yield process


def _stop(process: BrokerProcess) -> None:
    if process.is_running:
        process.stop()


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    """Starts brokers for one test, each with its own configuration and data; all are stopped at its end."""
    numbers = itertools.count()
    # Each is stopped, even if another one does not end properly.
    with ExitStack() as started:

        def make(**config: str) -> BrokerProcess:
            names = {name.replace("_", "."): value for name, value in config.items()}
            process = BrokerProcess(tmp_path / f"broker-{next(numbers)}", config=names)
            started.callback(_stop, process)
            process.start()
            return process

        yield make


@pytest.fixture(scope="session")
def java_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBridge]:
    """The JVM of the Java client."""
    bridge = JavaBridge(tmp_path_factory.mktemp("java"))
    yield bridge
    bridge.close()


@pytest.fixture(scope="session")
def kafkajs_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeBridge]:
    """The Node process of kafkajs."""
    bridge = NodeBridge(KAFKAJS, tmp_path_factory.mktemp("kafkajs"))
    yield bridge
    bridge.close()


@pytest.fixture(scope="session")
def platformatic_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeBridge]:
    """The Node process of @platformatic/kafka."""
    bridge = NodeBridge(PLATFORMATIC, tmp_path_factory.mktemp("platformatic"))
    yield bridge
    bridge.close()


_numbers = itertools.count()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test, and no earlier run against the same broker, has used."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_").lower())[:80]
    return lambda: f"{test}-{os.getpid()}-{next(_numbers)}"
