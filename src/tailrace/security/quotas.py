"""The port for quotas. Without one nobody is throttled."""

from __future__ import annotations

from typing import Protocol

from tailrace.security.principals import Principal


class Quotas(Protocol):
    """Counts what principals and clients ask for; asked once for each request, when its answer is known."""

    def throttle_time_ms(self, principal: Principal, client_id: str | None, api_key: int) -> int:
        """For how long a client is to be throttled after a request; 0 for not at all."""
        ...
