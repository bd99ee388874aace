"""A real `tailrace serve` in its own process: started, stopped, killed and started again on the same data.

Owns the process and its output files. It ends only the process it started, by its pid. It must not know pytest.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

#: Much more than necessary, even on a busy machine: they only end endless waits.
READY_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 120
#: More CPU time than this for one step of a broker's event loop fails the test.
SLOWEST_STEP_MS = 500
_SLOW_STEP = re.compile(r"A step of the event loop took (\d+) ms of CPU time")

#: The command of the environment that runs the tests.
EXECUTABLE = Path(sys.executable).parent / "tailrace"


#: Below the range from which the kernel takes ports for outgoing connections: with a port of that range, a client that
#: keeps connecting while the broker is down may be connected to itself and hold the port.
_FIRST_PORT = 20_000
_BLOCKS, _BLOCK_PORTS = 90, 100


class BrokerFailedError(Exception):
    """The broker did not start, or did not stop as requested; the message has its output."""


def _candidate_ports() -> Iterator[int]:
    """Ports that no other run of tests takes, also while a broker that has one of them is down.

    They come in blocks, each held by a lock for as long as this process lives.
    """
    held: list[range] = []
    for step in range(_BLOCKS):
        block = (os.getpid() + step) % _BLOCKS
        lock = os.open(Path(tempfile.gettempdir()) / f"tailrace-test-ports-{block}.lock", os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        first = _FIRST_PORT + block * _BLOCK_PORTS
        held.append(range(first, first + _BLOCK_PORTS))
        yield from held[-1]
    if not held:
        raise OSError(f"every port from {_FIRST_PORT} on is taken by other runs of tests")
    yield from itertools.cycle(itertools.chain(*held))


_ports = _candidate_ports()


def free_port() -> int:
    """A loopback port on which nothing listens, different at every call."""
    for port in itertools.islice(_ports, 9000):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port between 20000 and 29000")


class BrokerProcess:
    """One broker on loopback with its own data directory; use it as a context manager or call `start`."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        executable: Path = EXECUTABLE,
        more_dirs: Sequence[Path] = (),
    ) -> None:
        self.data_dir = data_dir
        self._more_dirs = list(more_dirs)
        self.port = free_port() if port is None else port
        self.ready_line = ""
        self._config = dict(config or {})
        self._executable = executable
        self._error_path = data_dir.with_name(data_dir.name + ".stderr")
        self._checked_to = 0
        self._process: subprocess.Popen[str] | None = None
        self._command: list[str] = []
        self._reader: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()

    def start(self) -> None:
        """Start the broker and return when it reports that it is ready."""
        self._wait_until_ready(self._launch())

    def _launch(self) -> queue.SimpleQueue[str]:
        """Start the process; return the lines that it prints."""
        if self._process is not None:
            raise BrokerFailedError("the broker is running already")
        directories = ",".join(map(str, [self.data_dir, *self._more_dirs]))
        where = ["--set", f"log.dirs={directories}"] if self._more_dirs else ["--data-dir", str(self.data_dir)]
        command = [str(self._executable), "serve", *where, "--port", str(self.port)]
        for name, value in self._config.items():
            command += ["--set", f"{name}={value}"]
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        with self._error_path.open("ab") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert process.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._process, self._command = process, command
        # The pipe is read to its end, so that a broker which prints much never waits for its reader.
        self._reader = threading.Thread(target=_forward_lines, args=(process.stdout, lines), daemon=True)
        self._reader.start()
        return lines

    def _wait_until_ready(self, lines: queue.SimpleQueue[str]) -> None:
        """Return when the broker reports that it is ready, or raise with the reason of its end."""
        try:
            self.ready_line = lines.get(timeout=READY_TIMEOUT_SECONDS)
        except queue.Empty:
            self.kill()
            raise BrokerFailedError(f"no ready line within {READY_TIMEOUT_SECONDS} s\n{self.error_output()}") from None
        if not self.ready_line:
            code = self._reap()
            raise BrokerFailedError(f"{' '.join(self._command)} ended with {code}\n{self.error_output()}")

    def stop(self) -> None:
        """Ask the broker to end with SIGTERM; any exit code but 0 is an error."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(
                f"still running {STOP_TIMEOUT_SECONDS} s after SIGTERM\n{self.error_output()}"
            ) from None
        if (code := self._reap()) != 0:
            raise BrokerFailedError(f"ended with {code} after SIGTERM\n{self.error_output()}")
        self.check_steps()

    def check_steps(self) -> None:
        """Fail if one step of the broker's event loop was so long that clients notice."""
        with self._error_path.open(errors="replace") as errors:
            errors.seek(self._checked_to)
            text = errors.read()
            self._checked_to = errors.tell()
        slow = [found for found in _SLOW_STEP.finditer(text) if int(found[1]) > SLOWEST_STEP_MS]
        if slow:
            shown = text[slow[0].start() : slow[0].start() + 4000]
            raise BrokerFailedError(f"the broker blocked its event loop {len(slow)} times, first so:\n{shown}")

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash would."""
        self._running().kill()
        self._reap()

    def restart(self) -> None:
        """Stop the broker and start it again on the same port and data."""
        self.stop()
        self.start()

    def error_output(self) -> str:
        """The end of the broker's stderr, over all starts."""
        text = self._error_path.read_text(errors="replace") if self._error_path.exists() else ""
        return text[-8000:]

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise BrokerFailedError("the broker is not running")
        return self._process

    def _reap(self) -> int:
        process = self._running()
        code = process.wait()
        assert self._reader is not None
        self._reader.join()
        assert process.stdout is not None
        process.stdout.close()
        self._process = self._reader = None
        return code


def _forward_lines(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line.rstrip("\n"))
    # An empty line says that there are no more: a ready line is never empty.
    lines.put("")
