"""A real S3-compatible object store in a process of its own, on loopback: the Versity S3 Gateway over a directory.

Owns the process, its buckets and its output; it ends only what it started, by its pid. It must not know pytest. The
server is built from its Go module into `.cache/versitygw` by `scripts/setup-object-stores`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.support.brokers.broker_process import free_port

ROOT = Path(__file__).resolve().parents[3]
EXECUTABLE = ROOT / ".cache/versitygw/versitygw"
READY_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 30
ACCESS_KEY = "archivist"
SECRET_KEY = "only-for-tests"
_POLL_SECONDS = 0.02


class S3FailedError(Exception):
    """It did not start; the message carries its output."""


class S3Server:
    """An object store whose buckets are directories; use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._buckets = directory / "buckets"
        # What belongs to objects beside their bytes; in files, as not every file system has attributes for it.
        self._attributes = directory / "attributes"
        self._log_path = directory / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        if not EXECUTABLE.exists():
            raise S3FailedError("there is no versitygw here: scripts/setup-object-stores brings it")
        self._buckets.mkdir(parents=True, exist_ok=True)
        self._attributes.mkdir(exist_ok=True)
        command = [
            str(EXECUTABLE),
            *("--port", f"127.0.0.1:{self.port}"),
            *("--region", "us-east-1"),
            "--quiet",
            "posix",
            *("--sidecar", str(self._attributes)),
            str(self._buckets),
        ]
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self._is_listening():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise S3FailedError(f"versitygw is not ready\n{self._log_path.read_text(errors='replace')[-4000:]}")
            time.sleep(_POLL_SECONDS)

    def _is_listening(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def create_bucket(self, name: str) -> None:
        (self._buckets / name).mkdir()

    def remove_bucket(self, name: str) -> None:
        """Let a bucket disappear with all that is in it."""
        shutil.rmtree(self._buckets / name)

    def path(self, bucket: str, name: str) -> Path:
        """The file that an object is, to damage it behind the server's back."""
        return self._buckets / bucket / name

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_SECONDS)
