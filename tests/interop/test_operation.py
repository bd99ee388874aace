"""A broker as its operator sees it: its log, its service manager, and how it refuses to start."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import __version__
from tests.interop.conftest import MakeBroker
from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess, free_port
from tests.support.clients.raw_client import RawClient
from tests.support.topics import create_topic, delete_topic


def log_lines(broker: BrokerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.error_output().splitlines()]


def one_line(lines: list[dict[str, Any]], start: str) -> dict[str, Any]:
    (found,) = [line for line in lines if line["message"].startswith(start)]
    return found


def test_the_log_has_a_line_for_everything_that_an_operator_cares_about(
    make_broker: MakeBroker, topic_name: Callable[[], str]
) -> None:
    broker = make_broker(tailrace_log_format="json", metrics_port="0")
    topic = create_topic(broker.bootstrap, topic_name(), partitions=2)
    delete_topic(broker.bootstrap, topic)
    broker.stop()
    lines = log_lines(broker)
    for line in lines:
        assert list(line)[:4] == ["ts", "level", "logger", "message"]
        assert line["level"] == "INFO", line
    started = one_line(lines, "started tailrace")
    assert started["version"] == __version__
    assert started["node_id"] == 1
    assert started["cluster_id"]
    assert started["listeners"] == [f"PLAINTEXT://{broker.bootstrap}"]
    assert started["log_dirs"] == [str(broker.data_dir)]
    assert started["partitions"] == 0
    assert started["recovery_s"] >= 0
    assert started["metrics"].startswith("http://127.0.0.1:")
    created = one_line(lines, f"topic {topic} created")
    assert (created["topic"], created["partitions"]) == (topic, 2)
    assert created["peer"].startswith("127.0.0.1:")
    assert created["client_id"] == "rdkafka"
    assert one_line(lines, f"topic {topic} deleted")["topic"] == topic
    one_line(lines, "stopping")
    assert one_line(lines, "stopped")["duration_s"] >= 0
    assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)


def test_a_flood_of_bad_requests_is_a_few_lines(make_broker: MakeBroker) -> None:
    broker = make_broker(tailrace_log_repeats_per_minute="10", tailrace_log_format="json")
    for _ in range(100):
        with RawClient(broker.port) as client:
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert client.is_closed_by_broker()
    broker.stop()
    warnings = [line for line in log_lines(broker) if line["level"] == "WARNING"]
    # A new minute may have begun in between.
    assert 10 <= len(warnings) <= 20
    assert all(line["peer"].startswith("127.0.0.1:") for line in warnings)


def test_the_level_keeps_what_is_less_important_away(make_broker: MakeBroker) -> None:
    broker = make_broker(tailrace_log_level="WARNING")
    broker.stop()
    assert broker.error_output() == ""


def test_a_service_manager_is_told_when_the_broker_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with BrokerProcess(tmp_path / "data") as broker:
            ready = manager.recv(4096).decode()
            assert ready == f"READY=1\nSTATUS=serving 0 partitions on {broker.bootstrap}"
            broker.stop()
            assert manager.recv(4096).decode().startswith("STOPPING=1\nSTATUS=")


def refuse(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(EXECUTABLE), "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done
    assert done.stdout == ""
    return done


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_monitoring_port_in_use_is_named(tmp_path: Path, log_format: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = refuse(
            *("--data-dir", str(tmp_path / "data"), "--port", str(free_port())),
            *("--log-format", log_format, "--set", f"metrics.port={port}"),
        )
    (line,) = done.stderr.splitlines()
    if log_format == "json":
        content = json.loads(line)
        assert content["level"] == "ERROR"
        message = content["message"]
    else:
        assert line.startswith("Error: ")
        message = line
    assert f"127.0.0.1:{port}" in message
    assert "metrics.port" in message


def test_settings_without_effect_are_warned_of_in_the_form_of_the_log(make_broker: MakeBroker) -> None:
    plain = make_broker(num_network_threads="3")
    plain.stop()
    assert "Warning: num.network.threads has no effect" in plain.error_output()
    structured = make_broker(num_network_threads="3", tailrace_log_format="json")
    structured.stop()
    assert one_line(log_lines(structured), "num.network.threads has no effect")["level"] == "WARNING"
