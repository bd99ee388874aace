"""What the monitoring port says while a broker starts, serves, loses its disk and stops; and who may stay connected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tailrace.broker.monitoring.http import IDLE_SECONDS, PATIENCE_SECONDS
from tailrace.cluster.store import Entry
from tailrace.stores.memory import MemoryStore
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import SimNode
from tests.support.network.http_client import HttpAnswer, HttpClient, request

METRICS_PORT = 9404
SEEDS = range(5)


class SlowStore(MemoryStore):
    """A store that is slow on request."""

    seconds = 0.0

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(self.seconds)
        return await super().get(key)


class World:
    """One broker with a monitoring port, and its clients."""

    def __init__(self, loop: SimLoop, settings: dict[str, str]) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, loop.random_for("network"))
        monitored = {"metrics.port": str(METRICS_PORT), "metrics.host": "0.0.0.0", **settings}
        self.node = SimNode(loop, self.network, "broker", monitored)
        self.store = self.node.store = SlowStore()

    async def client(self) -> HttpClient:
        return await HttpClient.connect(self.network.host("scraper"), "broker", METRICS_PORT)

    async def get(self, path: str) -> HttpAnswer:
        client = await self.client()
        try:
            return await client.get(path)
        finally:
            client.close()

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        answer = await self.get("/readyz")
        assert answer.headers["content-type"] == "application/json"
        return answer.status, json.loads(answer.body)


def simulate(seed: int, scenario: Callable[[World], Coroutine[Any, Any, None]], **settings: str) -> None:
    loop = SimLoop(seed, max_virtual_seconds=3600)

    async def main() -> None:
        await scenario(World(loop, {name.replace("_", "."): value for name, value in settings.items()}))

    loop.run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_is_alive_before_it_is_ready_and_says_so_until_its_end(seed: int) -> None:
    async def scenario(world: World) -> None:
        world.store.seconds = 5.0
        starting = world.loop.create_task(world.node.start())
        await asyncio.sleep(1)
        assert (await world.get("/healthz")).status == 200
        status, body = await world.readiness()
        assert status == 503
        assert body["status"] == "not ready"
        assert "starting" in body["reason"]
        broker = await starting
        world.store.seconds = 0.0

        status, body = await world.readiness()
        assert (status, body["status"]) == (200, "ready")
        assert body["cluster_id"] == broker.metadata.image.cluster_id
        assert body["log_directories"] == [{"path": "/data", "online": True}]

        # A slow disk makes the stop long enough to observe.
        await broker.metadata.create_topic(broker.metadata.plan_topic("orders", 1, 1, {}, {}))
        world.node.disk.latency_seconds = (5.0, 5.0)
        stopping = world.loop.create_task(world.node.stop())
        await asyncio.sleep(1)
        status, body = await world.readiness()
        assert status == 503
        assert "stopping" in body["reason"]
        assert (await world.get("/healthz")).status == 200
        await stopping
        with pytest.raises(OSError):
            await world.client()

    simulate(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_without_any_disk_is_not_ready_and_one_with_some_is(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.node.start()
        await broker.metadata.create_topic(broker.metadata.plan_topic("orders", 2, 1, {}, {}))
        first, second = broker.partitions.directories
        world.node.disk.fail(lambda path: path.startswith("/one/"), times=None)
        await asyncio.sleep(120)  # checkpoints are due every minute
        assert first.failure is not None
        status, body = await world.readiness()
        assert status == 200
        assert [each["online"] for each in body["log_directories"]] == [False, True]
        world.node.disk.fail(lambda path: path.startswith("/two/"), times=None)
        await asyncio.sleep(120)
        assert second.failure is not None
        status, body = await world.readiness()
        assert status == 503
        assert "every log directory is offline" in body["reason"]
        assert "injected fault" in body["reason"]
        assert (await world.get("/healthz")).status == 200
        await world.node.stop()

    simulate(seed, scenario, log_dirs="/one,/two")


@pytest.mark.parametrize("seed", SEEDS)
def test_metrics_are_served_in_a_simulation_too(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.node.start()
        await broker.metadata.create_topic(broker.metadata.plan_topic("orders", 3, 1, {}, {}))
        client = await world.client()
        for _ in range(3):
            answer = await client.get("/metrics")
            assert answer.status == 200
            assert b"kafka_controller_kafkacontroller_globalpartitioncount 3\n" in answer.body
            assert b"process_" not in answer.body.replace(b"# HELP process_", b"").replace(b"# TYPE process_", b"")
            await asyncio.sleep(60)
        await world.node.stop()
        await client.closed()

    simulate(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_and_silent_clients_are_let_go(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.node.start()
        silent, slow, idle = await world.client(), await world.client(), await world.client()
        began = world.loop.time()
        assert (await idle.get("/healthz")).status == 200

        async def drip() -> None:
            for byte in request("/healthz", X="x" * 1000):
                if slow.is_closed:
                    return
                slow.send(bytes([byte]))
                await asyncio.sleep(1)

        dripping = world.loop.create_task(drip())
        await silent.closed()
        assert PATIENCE_SECONDS - 1 < world.loop.time() - began < PATIENCE_SECONDS + 2
        await slow.closed()
        assert world.loop.time() - began < PATIENCE_SECONDS + 3
        assert slow.received_bytes == b""
        await dripping
        await idle.closed()
        assert IDLE_SECONDS - 1 < world.loop.time() - began < IDLE_SECONDS + 2
        assert (await world.get("/readyz")).status == 200
        await world.node.stop()

    simulate(seed, scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_does_not_take_its_answer_is_let_go(seed: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.node.start()
        await broker.metadata.create_topic(broker.metadata.plan_topic("orders", 400, 1, {}, {}))
        client = await world.client()
        assert client.transport is not None
        client.transport.pause_reading()
        for _ in range(20):
            client.send(request("/metrics"))
        await asyncio.sleep(PATIENCE_SECONDS + 5)
        client.transport.resume_reading()
        await client.closed()
        assert len(client.received_bytes) < 20 * len((await world.get("/metrics")).body)
        await world.node.stop()

    simulate(seed, scenario)
