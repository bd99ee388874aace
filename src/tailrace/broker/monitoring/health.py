"""Whether a broker is alive, and whether it serves requests: checks for load balancers, orchestrators and people."""

from __future__ import annotations

from typing import Any

from tailrace.broker.lifecycle import BrokerState
from tailrace.broker.monitoring.observed import Observed

_WHY_NOT_YET = {
    BrokerState.NOT_RUNNING: "the broker is not running",
    BrokerState.STARTING: "the broker is starting",
    BrokerState.RECOVERY: "the broker is starting: its logs are being opened",
    BrokerState.SHUTTING_DOWN: "the broker is stopping",
}


def unready_reason(observed: Observed) -> str | None:
    """Return why the broker does not serve requests, or None if it does."""
    if (reason := _WHY_NOT_YET.get(observed.lifecycle.state)) is not None:
        return reason
    directories = observed.partitions.directories
    if all(directory.failure is not None for directory in directories):
        return "every log directory is offline: " + "; ".join(str(directory.failure) for directory in directories)
    return None


def describe_readiness(observed: Observed) -> tuple[bool, dict[str, Any]]:
    """Return whether the broker serves requests, and a description for people and programs."""
    reason = unready_reason(observed)
    status: dict[str, Any] = {"status": "ready" if reason is None else "not ready"}
    if reason is not None:
        status["reason"] = reason
    directories = observed.partitions.directories
    status |= {
        "node_id": observed.broker_id,
        "cluster_id": observed.metadata.image.cluster_id or None,
        "broker_state": observed.lifecycle.state.name,
        "log_directories": [
            {"path": directory.path, "online": directory.failure is None}
            | ({} if directory.failure is None else {"reason": str(directory.failure)})
            for directory in directories
        ],
    }
    return reason is None, status
