"""An address where no broker is gives a clear answer soon, and settings reach librdkafka under its names."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tailrace.client import Topics, UnreachableError, connection, read
from tailrace.client.connection import check_reachable, client_settings


@pytest.fixture
def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_closed_port_is_unreachable_at_once(closed_port: int) -> None:
    before = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        check_reachable(f"127.0.0.1:{closed_port}")
    assert time.monotonic() - before < 2
    assert str(caught.value) == (
        f"cannot reach a broker at 127.0.0.1:{closed_port} (connection refused); "
        "is one running? start it with: tailrace serve"
    )


def test_one_address_that_listens_is_enough(closed_port: int, silent_port: int) -> None:
    check_reachable(f"127.0.0.1:{closed_port},127.0.0.1:{silent_port}")


def test_what_listens_but_is_no_broker_is_unreachable(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_ANSWER_TIMEOUT", 0.3)
    with pytest.raises(UnreachableError, match="does not answer like a Kafka broker"):
        Topics(f"127.0.0.1:{silent_port}")


def test_reading_from_a_closed_port_fails_when_it_is_opened(closed_port: int) -> None:
    with pytest.raises(UnreachableError):
        read("orders", bootstrap=f"127.0.0.1:{closed_port}")


def test_settings_may_be_given_as_python_keywords() -> None:
    overrides = {"linger_ms": 5, "acks": 1, "queue.buffering.max.messages": 7, "log_level": 3, "stats_cb": print}
    settings = client_settings("h:1", {"acks": "all"}, overrides)
    assert settings["linger.ms"] == 5
    assert settings["acks"] == 1
    assert settings["queue.buffering.max.messages"] == 7
    assert settings["log_level"] == 3
    assert settings["stats_cb"] is print
    assert settings["bootstrap.servers"] == "h:1"
