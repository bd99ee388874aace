"""A real HDFS of one name node and one data node, in a process of its own, on loopback.

Owns the process, its data and its output; it ends only what it started, by its pid. It must not know pytest. Hadoop's
jars are in `.cache/hadoop/lib`, where `scripts/setup-object-stores` puts them.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "tests/contract/java/HdfsServer.java"
JARS = ROOT / ".cache/hadoop/lib"
READY_TIMEOUT_SECONDS = 300
STOP_TIMEOUT_SECONDS = 60

# Small and quickly started: it shares a machine with everything else.
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class HdfsFailedError(Exception):
    """It did not start; the message carries its output."""


class HdfsServer:
    """A name node and a data node; use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log_path = directory / "hdfs.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Where its web interface is."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> HdfsServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        java, compiler = shutil.which("java"), shutil.which("javac")
        if java is None or compiler is None or not any(JARS.glob("hadoop-client-minicluster-*.jar")):
            raise HdfsFailedError("there is no JDK or no Hadoop here: scripts/setup-object-stores brings them")
        classes = self._directory / "classes"
        classes.mkdir(parents=True, exist_ok=True)
        class_path = f"{classes}:{JARS}/*"
        subprocess.run([compiler, "-cp", class_path, "-d", str(classes), str(SOURCE)], check=True, timeout=300)
        command = [java, *_JAVA_OPTIONS, "-cp", class_path, SOURCE.stem, str(self._directory / "data")]
        with self._log_path.open("ab") as log:
            # It ends when its standard input does, so it does not outlive the process that started it.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        line = self._read_line(time.monotonic() + READY_TIMEOUT_SECONDS)
        if not line.startswith("ready "):
            self.stop()
            raise HdfsFailedError(f"HDFS is not ready\n{self._log_path.read_text(errors='replace')[-4000:]}")
        self.port = int(line.split()[1])

    def _read_line(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._process.stdout], [], [], left)
            chunk = os.read(self._process.stdout.fileno(), 1024) if readable else b""
            if not chunk:
                break
            line += chunk
        return line.decode()

    def stop(self) -> None:
        """End it, and with it all that it stored."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_SECONDS)
        process.stdout.close()
