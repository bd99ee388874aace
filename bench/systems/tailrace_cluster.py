"""Three brokers as `tailrace serve` runs them, with their metadata in etcd, as in a cluster of machines."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.harness import processes
from bench.harness.processes import ServerProcess
from bench.systems.cluster import SESSION_MS, Cluster
from bench.systems.tailrace import EXECUTABLE


class TailraceCluster(Cluster):
    """Brokers with a store."""

    name = "tailrace"
    store_url: str

    def prepare(self) -> None:
        client, peer = (f"http://127.0.0.1:{processes.free_port()}" for _ in range(2))
        command = [
            *("etcd", "--data-dir", str(self.directory / "etcd"), "--initial-cluster", f"default={peer}"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        ]
        self.store = ServerProcess(command, self.directory / "etcd.log")
        address = client.removeprefix("http://")
        self.store_url = f"etcd://{address}/bench"
        processes.wait_for_port(int(address.partition(":")[2]), self.store)

    def launch(self, number: int) -> ServerProcess:
        command = [
            *(str(EXECUTABLE), "serve", "--node-id", str(number), "--port", str(self.ports[number - 1])),
            *("--data-dir", str(self.directory / f"broker-{number}"), "--coordination", self.store_url),
            *("--log-format", "json", "--set", f"broker.session.timeout.ms={SESSION_MS}"),
        ]
        return ServerProcess(command, self._log(number))

    def _log(self, number: int) -> Path:
        return self.directory / f"broker-{number}.log"

    def controller(self) -> int:
        with self.view() as view:
            return view.metadata().controller_id

    def events(self, number: int) -> list[dict[str, Any]]:
        """Return the broker's log events, each with `at`, the seconds of its wall clock."""
        found = []
        for line in self._log(number).read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # output from before the logging begins
            found.append({**event, "at": datetime.fromisoformat(event["ts"]).timestamp()})
        return found
