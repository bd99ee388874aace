"""A broker to attack, and the checks that it took no harm.

Owns the bounds. After each test the broker must be the same process, serve another client soon, have grown by less
than stated here, and have written no stack trace.
"""

from __future__ import annotations

from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.clients.raw_client import RawClient

#: How much larger the broker may be after a test than it was before all of them. The allocator keeps some of what
#: large requests took; growth with the number of tests would pass this soon.
GROWTH_BYTES = 64 << 20
#: How much it may grow during a test.
PEAK_GROWTH_BYTES = 160 << 20
#: How long another client may wait for one produce and one fetch while or after the broker is ill-treated.
PATIENCE_SECONDS = 2.0

TOPIC = "target"
OTHER = "others"


class Target:
    """The broker, and what is known of it from before it was ill-treated."""

    def __init__(self, broker: WatchedBroker) -> None:
        self.broker = broker
        self.pid = broker.pid
        broker.create_topic(TOPIC)
        broker.create_topic(OTHER)
        for _ in range(20):
            broker.serve_once(OTHER)
        self.resident_bytes = broker.resident_bytes()

    def check(self) -> None:
        """Check that the broker is unharmed."""
        broker = self.broker
        assert broker.is_running, broker.error_output()
        assert broker.pid == self.pid
        assert broker.serve_once(OTHER) < PATIENCE_SECONDS
        growth = broker.resident_bytes() - self.resident_bytes
        peak = broker.peak_resident_bytes() - self.resident_bytes
        assert growth < GROWTH_BYTES, f"{growth >> 20} MiB more than at the start"
        assert peak < PEAK_GROWTH_BYTES, f"{peak >> 20} MiB more at the worst moment"
        output = broker.all_error_output()
        assert "Traceback" not in output, output[-6000:]
        assert " CRITICAL " not in output, output[-6000:]

    def warnings_since(self, position: int) -> list[str]:
        """The lines that the broker wrote to stderr since a position."""
        return [line for line in self.broker.all_error_output()[position:].splitlines() if line]

    def refused_with_one_line(self, data: bytes) -> str:
        """Send bytes that make the broker close the connection; return the one line that says why."""
        position = len(self.broker.all_error_output())
        with RawClient(self.broker.port) as client:
            client.send(data)
            assert client.is_closed_by_broker(), "the broker answered"
        (line,) = self.warnings_since(position)
        assert " WARNING " in line
        return line
