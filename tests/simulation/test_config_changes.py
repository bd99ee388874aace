"""Configuration changes while the broker is killed and unplugged: acknowledged ones last, others are whole or absent.

Each seed is one run: a client that changes a topic and the broker over and over, crashes at random moments, and after
each restart a look at what is stored, what is told and what the open log goes by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tailrace.cluster.store import Check, Entry, Write
from tailrace.stores.memory import MemoryStore
from tailrace.testing.client import KafkaClient
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import PORT, SimNode
from tailrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SEEDS = range(40)
TOPIC, BROKER = 2, 4


class SlowStore(MemoryStore):
    """A store with a pause before and after each change, in which anything may happen."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._random = loop.random_for("store")

    async def get(self, key: str) -> Entry | None:
        await asyncio.sleep(self._random.uniform(0, 0.02))
        return await super().get(key)

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> bool:
        await asyncio.sleep(self._random.uniform(0, 0.02))
        done = await super().txn(checks, writes)
        await asyncio.sleep(self._random.uniform(0, 0.02))
        return done


class Changer:
    """A client that sets two keys of a topic, and two of the broker, to the same growing number."""

    def __init__(self, network: SimNetwork) -> None:
        self._network = network
        self.sent = 0
        self.acknowledged = 0
        self.heard = asyncio.Event()
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                client = await KafkaClient.connect(self._network.host("client"), "broker", PORT, "client")
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                while not self.is_stopping:
                    await self._change(client)
            except ConnectionError:
                pass
            client.close()

    async def _change(self, client: KafkaClient) -> None:
        self.sent += 1
        number = self.sent
        keys = {
            (TOPIC, "orders"): ("retention.ms", "segment.ms"),
            (BROKER, "1"): ("message.max.bytes", "max.connections"),
        }
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[AlterableConfig(name=key, value=str(1000 + number)) for key in names],
                )
                for (kind, name), names in keys.items()
            ]
        )
        response = await client.call(request, 1, IncrementalAlterConfigsResponse)
        assert [answer.error_code for answer in response.responses] == [0, 0]
        self.acknowledged = number
        self.heard.set()


async def simulate(loop: SimLoop) -> int:
    random = loop.random_for("scenario")
    network = SimNetwork(loop, loop.random_for("network"))
    node = SimNode(loop, network, "broker", {})
    node.store = SlowStore(loop)
    broker = await node.start()
    await broker.metadata.create_topic(broker.metadata.plan_topic("orders", 2, 1, {}, {}))
    changer = Changer(network)
    task = loop.create_task(changer.run())
    for _ in range(5):
        await asyncio.sleep(random.uniform(0.01, 0.6))
        (node.kill if random.random() < 0.5 else node.unplug)()
        # No answer can come from a broker that is gone.
        acknowledged = changer.acknowledged
        broker = await node.start()
        topic = broker.metadata.image.topics["orders"].configs
        own = broker.metadata.image.configs_of("1")
        for names, configs in (
            (("retention.ms", "segment.ms"), topic),
            (("message.max.bytes", "max.connections"), own),
        ):
            values = [int(configs.get(name, "1000")) - 1000 for name in names]
            assert values[0] == values[1], "half a change"
            assert acknowledged <= values[0] <= changer.sent
        config = broker.partitions.find("orders", 1).log.config
        assert config.retention_ms == int(topic.get("retention.ms", str(config.retention_ms)))
        assert config.max_message_bytes == broker.config.get_int("message.max.bytes")
        assert config.max_message_bytes == int(own.get("message.max.bytes", str(config.max_message_bytes)))
    # A running broker accepts changes again.
    changer.heard.clear()
    await changer.heard.wait()
    changer.is_stopping = True
    await task
    await node.stop()
    return changer.acknowledged


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_crash_a_change_is_there_whole_or_not_at_all(seed: int) -> None:
    loop = SimLoop(seed, max_virtual_seconds=3600)
    assert loop.run(simulate(loop)) > 0
