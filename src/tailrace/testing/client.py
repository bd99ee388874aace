"""A Kafka client over the network port, for simulations: one connection, requests answered in order.

It is the connection that brokers use among themselves, only stricter: a response out of order is a fault of the tested
broker. It never retries: a lost connection is a `ConnectionError` for every request without a response.
"""

from __future__ import annotations

from tailrace.broker.network.peer import PeerConnection
from tailrace.errors import WireError


class KafkaClient(PeerConnection):
    """One connection to one broker."""

    def malformed(self, error: WireError) -> None:
        raise AssertionError(str(error)) from error
