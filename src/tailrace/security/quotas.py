"""The port for quotas. Without one, no client is throttled."""

from __future__ import annotations

from typing import Protocol

from tailrace.security.principals import Principal


class Quotas(Protocol):
    """Counts the requests of principals and clients; called once for each request, when its response is known."""

    def throttle_time_ms(self, principal: Principal, client_id: str | None, api_key: int) -> int:
        """Return how long to throttle a client after a request; 0 means not at all."""
        ...
