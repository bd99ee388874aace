"""Log lines for changes that clients made: what was changed, and who asked for it, in fields of stable names."""

from __future__ import annotations

import logging

from tailrace.broker.services import RequestContext

logger = logging.getLogger("tailrace.broker")


def log_change(context: RequestContext, message: str, *arguments: object, **fields: object) -> None:
    """Say that a request has changed something; the fields are for those who read the log by program."""
    logger.info(
        f"{message} by %s at %s",
        *arguments,
        context.client_id or "an unnamed client",
        context.peer,
        extra={"peer": context.peer, "client_id": context.client_id, **fields},
    )
