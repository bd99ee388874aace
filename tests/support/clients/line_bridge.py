"""A client in another language behind a pipe: one JSON request a line to it, one JSON answer a line from it.

Owns the process, its output, and how records stand in a line. It must not know what the requests mean, nor pytest. An
answer is {"result": …}, or {"error": …, "message": …, "code": …} with the protocol's error number where there is one;
{"event": …} may come first.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.records import Received, RefusedError

#: Much more than necessary, even on a busy machine: it only ends endless waits.
END_SECONDS = 60


class LineBridge:
    """A process that answers line by line until its input is closed."""

    def __init__(self, command: Sequence[str], error_path: Path) -> None:
        self._errors = error_path.open("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def close(self) -> None:
        """End the process by closing its input."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._errors.close()

    def call(self, request: dict[str, Any], *, on_event: Callable[[], None] | None = None) -> Any:
        """Ask once and give the result; `on_event` is called when the answer announces something first."""
        self.send(request)
        answer = self.receive()
        if "event" in answer:
            assert on_event is not None
            try:
                on_event()
            finally:
                # Even if that failed: the next request must not get this answer.
                answer = self.receive()
        if "error" in answer:
            code = answer["code"]
            known = code is not None and code > 0
            raise RefusedError(code if known else None, f"{answer['error']}: {answer['message']}")
        return answer["result"]

    def send(self, message: object) -> None:
        """Write one line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Read one line from the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RefusedError(None, f"the client's process ended: {self._errors.read()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def to_text(content: bytes | None) -> str | None:
    """Bytes in the form of a line."""
    return None if content is None else base64.b64encode(content).decode()


def to_bytes(text: str | None) -> bytes | None:
    """Bytes from the form of a line."""
    return None if text is None else base64.b64decode(text)


def to_received(fields: dict[str, Any]) -> Received:
    """A record as a bridge tells of it."""
    return Received(
        fields["partition"],
        fields["offset"],
        fields["timestamp_ms"],
        fields["log_append_time"],
        to_bytes(fields["key"]),
        to_bytes(fields["value"]),
        tuple((name, to_bytes(value)) for name, value in fields["headers"]),
    )
