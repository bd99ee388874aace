"""A Kafka client over the network port, for simulations: one connection, requests answered in order.

It is what brokers speak to each other with, only less forgiving: an answer out of order is a fault of the broker under
test. It retries nothing and hides nothing: a lost connection is a `ConnectionError` for every request that had no
answer.
"""

from __future__ import annotations

from tailrace.broker.network.peer import PeerConnection
from tailrace.errors import WireError


class KafkaClient(PeerConnection):
    """One connection to one broker."""

    def malformed(self, error: WireError) -> None:
        raise AssertionError(str(error)) from error
