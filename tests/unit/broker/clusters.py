"""Brokers of one cluster in virtual time, over a store in memory, asked by a client over their network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tailrace.broker.assembly import Broker
from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.cluster.broker_proof import NONCE_BYTES, Challenge, proof_of, verifier_of
from tailrace.cluster.features import OLDEST, SUPPORTED, SupportedFeatures
from tailrace.cluster.image import BrokerEndpoint, BrokerImage, PartitionState, TopicImage
from tailrace.cluster.keys import broker_epoch_key, broker_key, epoch_to_bytes
from tailrace.cluster.store import Write
from tailrace.errors import ErrorCode
from tailrace.records.batch import iterate_batches
from tailrace.records.record import NewRecord, build_batch, iterate_records
from tailrace.replication.partition import Partition
from tailrace.runtime import Runtime
from tailrace.stores.memory import MemorySpace, MemoryStore
from tailrace.testing.client import KafkaClient
from tailrace.testing.clock import SimClock
from tailrace.testing.disk import SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.wire.codec import Message
from tailrace.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tailrace.wire.messages.prove_broker import ProveBrokerRequest, ProveBrokerResponse

PORT = 9092
Response = TypeVar("Response", bound=Message)


class Cluster:
    """Brokers by their ids, each on a host of its own."""

    def __init__(self, loop: SimLoop, settings: Mapping[str, str]) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, loop.random_for("network"))
        self.space = MemorySpace(SimClock(loop))
        self.brokers: dict[int, Broker] = {}
        #: What brokers support that are of an older release.
        self.supported: dict[int, SupportedFeatures] = {}
        self._settings = settings
        self.disks: dict[int, SimDisk] = {}
        self._stores: dict[int, MemoryStore] = {}
        self._clients: dict[int, KafkaClient] = {}
        #: The broker, and its epoch, that the client said last that it is.
        self.claimed: tuple[int, int] | None = None

    # --- brokers

    async def start(self, *ids: int) -> None:
        """Start brokers on whatever their disks have kept."""
        for broker_id in ids:
            name = f"broker-{broker_id}"
            self.network.restart(name)
            random = self.loop.random_for(name)
            disk = self.disks.setdefault(broker_id, SimDisk(self.loop.random_for(f"{name} disk")))
            config = BrokerConfig(
                {
                    "node.id": str(broker_id),
                    "listeners": f"PLAINTEXT://{name}:{PORT}",
                    "log.dirs": "/data",
                    "offsets.topic.num.partitions": "2",
                    "group.initial.rebalance.delay.ms": "0",
                    **self._settings,
                }
            )
            clock = SimClock(self.loop)
            secrets = self.loop.random_for(f"{name} secrets at {self.loop.time()}")
            helper = SimHelper(disk, random)
            runtime = Runtime(clock, disk, self.network.host(name), random, helper, secrets=secrets)
            store = self._stores[broker_id] = MemoryStore(self.space)
            broker = self.brokers[broker_id] = Broker(config, runtime, store)
            broker.metadata.supported = self.supported.get(broker_id, SUPPORTED)
            await broker.start()
        await self.until(
            lambda: all(set(self.brokers) <= set(broker.metadata.image.brokers) for broker in self.brokers.values())
        )

    def kill(self, broker_id: int) -> None:
        """End a broker as SIGKILL does; its session is left to expire."""
        broker = self.brokers.pop(broker_id)
        for tasks in [broker.requests, broker.background, *(each.tasks for each in broker.partitions.directories)]:
            tasks.abandon()
        broker.coordinators.close()
        self._stores.pop(broker_id).abandon()
        self.disks[broker_id].kill()
        self.network.crash(f"broker-{broker_id}", silently=False)
        self._clients.pop(broker_id, None)

    async def stop(self, *ids: int) -> None:
        """Stop brokers as SIGTERM does."""
        for broker_id in ids or list(self.brokers):
            await self.brokers.pop(broker_id).stop()
            await self._stores.pop(broker_id).close()
            self._clients.pop(broker_id, None)

    def partition(self, broker_id: int, topic: str = "orders", number: int = 0) -> Partition:
        return self.brokers[broker_id].partitions.find(topic, number)

    async def register_stranger(self, broker_id: int, epoch: int = 5, features: SupportedFeatures = OLDEST) -> None:
        """Let everybody believe in a broker that is only played by the test; nobody proves anything to an old one."""
        name = f"broker-{broker_id}"
        endpoints = (BrokerEndpoint("PLAINTEXT", name, PORT),)
        verifier = verifier_of(token_of(broker_id))
        broker = BrokerImage(broker_id, endpoints, epoch=epoch, features=features, verifier=verifier)
        writes = [
            Write(broker_key(broker_id), broker.to_bytes()),
            Write(broker_epoch_key(broker_id), epoch_to_bytes(epoch)),
        ]
        await next(iter(self._stores.values())).txn([], writes)
        await self.until(
            lambda: all(
                (known := each.metadata.image.brokers.get(broker_id)) is not None and known.epoch == epoch
                for each in self.brokers.values()
            )
        )

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Let virtual time pass until something holds."""
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, f"does not hold after {seconds} s"
            await asyncio.sleep(0.005)

    # --- topics

    async def create(
        self, name: str, assignment: Sequence[Sequence[int]], *, isr: Sequence[int] | None = None, **configs: str
    ) -> None:
        """Create a topic on given brokers, and wait until all of them know it."""
        wanted = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
                for number, replicas in enumerate(assignment)
            ],
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        broker_id = next(iter(self.brokers))
        response = await self.ask(broker_id, CreateTopicsRequest(topics=[wanted]), 7, CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.NONE, response.topics[0].error_message
        await self.until(lambda: all(name in broker.metadata.image.topics for broker in self.brokers.values()))
        if isr is not None:
            await self.move(name, isr=tuple(isr))

    async def move(self, name: str = "orders", numbers: Sequence[int] = (0,), **changes: Any) -> None:
        """Give partitions another leader or ISR, in a new leader epoch, and wait until all brokers know it."""
        metadata = next(iter(self.brokers.values())).metadata
        topic = metadata.image.topics[name]

        def changed(stored: TopicImage) -> TopicImage:
            states = list(stored.partitions)
            for number in numbers:
                states[number] = replace(states[number], leader_epoch=states[number].leader_epoch + 1, **changes)
            return replace(stored, partitions=tuple(states))

        await metadata.alter_topic(topic, changed)
        wanted = metadata.image.topics[name].partitions[numbers[0]].leader_epoch
        await self.until(lambda: all(self.state(one, name, numbers[0]).leader_epoch >= wanted for one in self.brokers))

    def state(self, broker_id: int, name: str = "orders", number: int = 0) -> PartitionState:
        """A partition as a broker knows it."""
        return self.brokers[broker_id].metadata.image.topics[name].partitions[number]

    # --- clients

    async def client(self, broker_id: int) -> KafkaClient:
        client = self._clients.get(broker_id)
        if client is None or not client.is_open:
            host = self.network.host("client")
            client = self._clients[broker_id] = await KafkaClient.connect(host, f"broker-{broker_id}", PORT, "client")
        return client

    async def prove(self, broker_id: int, stranger_id: int, epoch: int) -> ErrorCode:
        """Have the client prove to a broker that it is one that the test plays."""
        self.claimed = stranger_id, epoch
        first = ProveBrokerRequest(broker_id=stranger_id, broker_epoch=epoch, nonce=bytes(NONCE_BYTES))
        asked = await self.ask(broker_id, first, 0, ProveBrokerResponse)
        if asked.error_code:
            return ErrorCode(asked.error_code)
        cluster_id = self.brokers[broker_id].metadata.image.cluster_id
        challenge = Challenge(cluster_id, stranger_id, epoch, broker_id, bytes(NONCE_BYTES), bytes(asked.nonce))
        second = ProveBrokerRequest(proof=proof_of(token_of(stranger_id), challenge))
        return ErrorCode((await self.ask(broker_id, second, 0, ProveBrokerResponse)).error_code)

    async def ask(self, broker_id: int, request: Message, version: int, kind: type[Response]) -> Response:
        return await (await self.client(broker_id)).call(request, version, kind)

    async def produce(
        self,
        broker_id: int,
        *values: bytes,
        topic: str = "orders",
        number: int = 0,
        acks: int = -1,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> PartitionProduceResponse:
        """Send records in one batch; an idempotent producer has an id, an epoch and a sequence number."""
        producer_id, producer_epoch, base_sequence = producer
        batch = build_batch(
            [NewRecord(value, timestamp=1_700_000_000_000) for value in values],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        request = ProduceRequest(
            acks=acks,
            timeout_ms=5000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=number, records=bytes(batch))])
            ],
        )
        response = await self.ask(broker_id, request, 9, ProduceResponse)
        return response.responses[0].partition_responses[0]

    async def fetch(
        self, broker_id: int, offset: int = 0, topic: str = "orders", number: int = 0, wait_ms: int = 0
    ) -> PartitionData:
        """What a consumer is given."""
        topic_id = self.brokers[broker_id].metadata.image.topics[topic].topic_id
        wanted = FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])]
        )
        return (await self.ask(broker_id, request, 17, FetchResponse)).responses[0].partitions[0]

    def log(self, broker_id: int, topic: str = "orders", number: int = 0) -> list[tuple[int, int, bytes | None]]:
        """Everything in a replica's log: offset, leader epoch, value."""
        log = self.partition(broker_id, topic, number).log
        found: list[tuple[int, int, bytes | None]] = []
        offset = log.start_offset
        while (part := log.read(offset, 1 << 20, log.end_offset)) is not None:
            data = part.file.read(part.position, part.size)
            for position, header in iterate_batches(memoryview(data)):
                for record in iterate_records(data, header, position):
                    if record.offset >= log.start_offset:
                        found.append((record.offset, header.leader_epoch, record.value))
                offset = header.next_offset
        return found

    async def until_equal(self, *ids: int, topic: str = "orders", number: int = 0) -> None:
        """Wait until replicas have the same log."""
        first, *others = ids
        await self.until(
            lambda: all(self.log(first, topic, number) == self.log(other, topic, number) for other in others)
        )


def token_of(stranger_id: int) -> bytes:
    """The token of a broker that is only played by the test."""
    return f"the token of broker {stranger_id}".encode()


def values(data: PartitionData) -> list[bytes | None]:
    """The values of the records in an answer."""
    records = bytes(data.records or b"")  # type: ignore[arg-type]
    return [
        record.value
        for position, header in iterate_batches(memoryview(records))
        for record in iterate_records(records, header, position)
    ]


def simulate(
    test: Callable[[Cluster], Coroutine[Any, Any, None]], *, brokers: int = 3, seed: int = 1, **settings: str
) -> None:
    """Run a test with brokers 1, 2, … of one cluster."""
    loop = SimLoop(seed, max_virtual_seconds=3600)

    async def main() -> None:
        cluster = Cluster(loop, {key.replace("_", "."): value for key, value in settings.items()})
        try:
            await cluster.start(*range(1, brokers + 1))
            await test(cluster)
        finally:
            await cluster.stop()

    loop.run(main())
