"""The service manager gets notifications through the socket that it named, if it named one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.runtime.system.service_manager import notify


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@tailrace-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0"))
        receiver.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield receiver


def test_states_arrive_in_order_with_a_line_for_people(manager: socket.socket) -> None:
    assert notify("READY=1", "serving 3 partitions\non 127.0.0.1:9092")
    assert notify("STOPPING=1", "closing logs")
    assert manager.recv(1000) == b"READY=1\nSTATUS=serving 3 partitions on 127.0.0.1:9092"
    assert manager.recv(1000) == b"STOPPING=1\nSTATUS=closing logs"


@pytest.mark.parametrize("address", [None, "", "relative/path", "vsock:2:1234"])
def test_nobody_is_told_where_there_is_nobody(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if address is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1", "serving")


def test_a_manager_that_is_gone_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert not notify("READY=1", "serving")
    assert "READY=1" in caplog.text
