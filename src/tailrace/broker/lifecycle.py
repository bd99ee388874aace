"""The state of a broker between its start and its end, numbered as in Kafka."""

from __future__ import annotations

from enum import IntEnum


class BrokerState(IntEnum):
    """Kafka's broker states, as in its metric BrokerState."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    SHUTTING_DOWN = 7


class Lifecycle:
    """The state of one broker, and the results of its start."""

    __slots__ = ("recovery_seconds", "state", "stopped_cleanly")

    def __init__(self) -> None:
        self.state = BrokerState.NOT_RUNNING
        #: Whether the previous run of this broker stopped cleanly; then logs need no recovery.
        self.stopped_cleanly = True
        #: How long it took to open and, if necessary, recover the logs.
        self.recovery_seconds = 0.0
