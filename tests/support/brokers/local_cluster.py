"""`tailrace cluster start` as a process: its supervisor, which is the metadata store, and its brokers.

Owns the supervisor, which ends its brokers. It must not know pytest.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.brokers.broker_process import EXECUTABLE, free_port

_STOP_SECONDS = 180


def free_ports(count: int) -> int:
    """The first of several free ports in a row."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


@contextmanager
def running_cluster(directory: Path, port: int, brokers: int = 3, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`tailrace cluster start`, from its ready line to its end by SIGTERM."""
    process = subprocess.Popen(
        [
            *(str(EXECUTABLE), "cluster", "start", "--brokers", str(brokers), "--data-dir", str(directory)),
            *("--port", str(port), *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert f"cluster of {brokers} ready on 127.0.0.1:{port}" in line, line + (
            process.stderr.read() if process.stderr is not None and not line else ""
        )
        yield process
        if process.poll() is None:
            process.terminate()
            assert process.wait(_STOP_SECONDS) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
