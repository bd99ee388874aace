"""Takes the place of `test/service.py`, which kafka-python's source distribution leaves out and its fixtures import.

`scripts/setup-suites` puts a copy beside the tests. A broker that runs already needs nothing of it; tests that would
start servers of their own fail with a word about why.
"""

from __future__ import annotations


class ExternalService:
    """A server that somebody else started: there is nothing to open, to close or to show."""

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
        raise RuntimeError("the tests may not start servers of their own here: there is no Kafka to start")
