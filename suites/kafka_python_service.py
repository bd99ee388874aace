"""Replaces `test/service.py`, which kafka-python's fixtures import and its source distribution lacks.

`scripts/setup-suites` puts a copy beside the tests. Tests against a running broker need nothing of it; tests that would
start servers of their own fail with a message that says why.
"""

from __future__ import annotations


class ExternalService:
    """A server that something else started: there is nothing to open, close or show."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def dump_logs(self) -> None:
        pass


class SpawnedService:
    """A server that the tests would start."""

    def __init__(self, args: object = None, env: object = None) -> None:
        raise RuntimeError("tests cannot start servers of their own here: there is no Kafka to start")
