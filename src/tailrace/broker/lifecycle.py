"""How far a broker is between its start and its end, in the numbers that Kafka gives these states."""

from __future__ import annotations

from enum import IntEnum


class BrokerState(IntEnum):
    """Kafka's broker states, as its metric BrokerState tells them."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    SHUTTING_DOWN = 7


class Lifecycle:
    """The state of one broker, and what its start found."""

    __slots__ = ("recovery_seconds", "state", "stopped_cleanly")

    def __init__(self) -> None:
        self.state = BrokerState.NOT_RUNNING
        #: Whether the broker before this one had ended as it should; then logs need no recovery.
        self.stopped_cleanly = True
        #: How long it took to open, and where necessary recover, the logs.
        self.recovery_seconds = 0.0
