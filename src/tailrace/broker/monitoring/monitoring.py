"""The broker's monitoring port: /metrics, /healthz and /readyz, over HTTP.

The port is open from before the logs are opened until after they are closed, so that the states in between are visible.
The metrics of many partitions are written in turns with other work; scrapes that arrive meanwhile get the same result.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import Any

from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.monitoring import exposition
from tailrace.broker.monitoring.health import describe_readiness
from tailrace.broker.monitoring.http import Content, HttpServer
from tailrace.broker.monitoring.metrics import METRICS
from tailrace.broker.monitoring.observed import Look, Observed
from tailrace.errors import TailraceError
from tailrace.runtime import Runtime
from tailrace.runtime.process import ProcessUsage
from tailrace.runtime.tasks import Tasks

logger = logging.getLogger("tailrace.broker")

OFF = -1
#: The number of lines to write before other work runs: a tenth of a millisecond.
_LINES_PER_TURN = 100
_LAG_INTERVAL_SECONDS = 0.5


class MonitoringPortError(TailraceError):
    """The broker cannot listen on the monitoring port."""


class Monitoring:
    """The monitoring port of one broker, if one is configured."""

    def __init__(
        self, config: BrokerConfig, runtime: Runtime, observed: Observed, background: Tasks, requests: Tasks
    ) -> None:
        self.observed = observed
        #: The address it listens on; None if it does not.
        self.address: tuple[str, int] | None = None
        self._host = config.get_str("metrics.host")
        self._port = config.get_int("metrics.port")
        self._runtime = runtime
        self._background = background
        self._requests = requests
        self._writing: asyncio.Task[list[bytes]] | None = None
        self._server = HttpServer(
            runtime.network,
            requests,
            {"/metrics": self._metrics_page, "/healthz": self._health_page, "/readyz": self._readiness_page},
        )

    async def start(self) -> None:
        """Start to listen, unless no port is configured."""
        if self._port == OFF:
            return
        try:
            port = await self._server.listen(self._host, self._port)
        except OSError as error:
            raise MonitoringPortError(
                f"cannot listen on {self._host}:{self._port} for metrics: {error.strerror or error}; choose "
                "another address with metrics.host and metrics.port, or set the port to -1 for none"
            ) from error
        self.address = (self._host, port)
        self._background.spawn(self._measure_lag(), "event loop lag")

    async def close(self) -> None:
        """Close all connections."""
        await self._server.close()

    async def _measure_lag(self) -> None:
        clock = self._runtime.clock
        while True:
            due = clock.monotonic() + _LAG_INTERVAL_SECONDS
            await asyncio.sleep(_LAG_INTERVAL_SECONDS)
            self.observed.loop_lag.observe(max(0.0, clock.monotonic() - due))

    # --- pages

    async def _metrics_page(self) -> Content:
        if self._writing is None:
            self._writing = self._requests.spawn(self._write(), "metrics")
            self._writing.add_done_callback(self._written)
        # Shielded: a client that disconnects must not cancel the others' result.
        return Content(HTTPStatus.OK, exposition.CONTENT_TYPE, await asyncio.shield(self._writing))

    def _written(self, task: asyncio.Task[list[bytes]]) -> None:
        self._writing = None

    async def _write(self) -> list[bytes]:
        return await write_metrics(Look(self.observed, await self._usage()))

    async def _usage(self) -> ProcessUsage | None:
        if self.observed.process_usage is None:
            return None
        try:
            return await self._runtime.disk.offload(self.observed.process_usage)
        except OSError as error:
            logger.debug("cannot read the resource usage of the process: %s", error)
            return None

    async def _health_page(self) -> Content:
        return _json(HTTPStatus.OK, {"status": "alive"})

    async def _readiness_page(self) -> Content:
        is_ready, status = describe_readiness(self.observed)
        return _json(HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE, status)


async def write_metrics(look: Look) -> list[bytes]:
    """Return all metrics as text, in pieces."""
    pieces: list[bytes] = []
    for metric in METRICS:
        waiting: list[str] = []
        for line in exposition.lines(metric.description, metric.samples(look)):
            waiting.append(line)
            if len(waiting) == _LINES_PER_TURN:
                pieces.append("".join(waiting).encode())
                waiting.clear()
                await asyncio.sleep(0)
        pieces.append("".join(waiting).encode())
        await asyncio.sleep(0)  # one line may have been the sum over all partitions
    return pieces


def _json(status: HTTPStatus, content: dict[str, Any]) -> Content:
    return Content(status, "application/json", [json.dumps(content).encode() + b"\n"])
