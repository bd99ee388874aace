"""Brokers for fault tests, and the check that each of them survived."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

pytest.register_assert_rewrite("tests.support.brokers.watched_broker", "tests.support.history")

from tests.support.brokers.watched_broker import WatchedBroker  # noqa: E402  after its assertions are registered


class MakeBroker(Protocol):
    """Starts a broker with its own configuration: `make_broker(max_connections="5")`."""

    def __call__(self, **config: str) -> WatchedBroker: ...


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    """Starts brokers for one test, each with its own data; all are stopped at the end, even after failures."""
    started: list[WatchedBroker] = []

    def make(**config: str) -> WatchedBroker:
        names = {name.replace("_", "."): value for name, value in config.items()}
        broker = WatchedBroker(tmp_path / f"broker-{len(started)}", config=names)
        started.append(broker)
        stack.callback(stop, broker)
        broker.start()
        return broker

    def stop(broker: WatchedBroker) -> None:
        if broker.is_running:
            broker.stop()

    # Each is stopped, even if another one does not end properly.
    with ExitStack() as stack:
        yield make
