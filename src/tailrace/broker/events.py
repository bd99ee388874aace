"""Log lines for changes made by clients: what changed and which client asked, with fields of stable names."""

from __future__ import annotations

import logging

from tailrace.broker.services import RequestContext

logger = logging.getLogger("tailrace.broker")


def log_change(context: RequestContext, message: str, *arguments: object, **fields: object) -> None:
    """Log a change that a request made; the fields are for programs that read the log."""
    logger.info(
        f"{message} by %s at %s",
        *arguments,
        context.client_id or "an unnamed client",
        context.peer,
        extra={"peer": context.peer, "client_id": context.client_id, **fields},
    )
