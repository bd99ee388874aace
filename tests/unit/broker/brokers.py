"""A whole broker over a real disk and a store in memory, asked through its router as a connection asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tailrace.broker.assembly import Broker
from tailrace.broker.config.broker_config import BrokerConfig
from tailrace.broker.network.buffers import BufferPool
from tailrace.broker.network.connection import Connection
from tailrace.broker.network.request_memory import RequestMemory
from tailrace.broker.network.router import Router
from tailrace.cluster.store import Store
from tailrace.records.record import NewRecord, build_batch
from tailrace.runtime import Runtime
from tailrace.runtime.disk import Disk, FileRange
from tailrace.runtime.system.clock import SystemClock
from tailrace.runtime.system.disk import SystemDisk
from tailrace.runtime.system.helper import SystemHelper
from tailrace.runtime.system.network import SystemNetwork
from tailrace.runtime.transport import Part
from tailrace.security.authorizer import Authorizer
from tailrace.security.principals import Principal
from tailrace.security.quotas import Quotas
from tailrace.stores.memory import MemoryStore
from tailrace.wire.apis import ApiKey
from tailrace.wire.codec import Message
from tailrace.wire.frames import RequestHeader, decode_response_header, encode_request
from tailrace.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tailrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.messages import RESPONSES
from tests.unit.broker.memory_transport import MemoryTransport

Response = TypeVar("Response", bound=Message)
CORRELATION_ID = 77


class TestedBroker:
    """A started broker and one client of it."""

    __test__ = False

    def __init__(self, directories: list[Path], disk: Disk, store: Store, settings: dict[str, str]) -> None:
        config = BrokerConfig(
            {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": ",".join(map(str, directories)), **settings}
        )
        self.disk = disk
        self.broker = Broker(config, Runtime(SystemClock(), disk, SystemNetwork(), Random(1), SystemHelper()), store)
        self.transport = MemoryTransport()
        self._router = Router(self.broker.services, self.broker.requests)
        scratch = memoryview(bytearray(1 << 20))
        self._connection = Connection(
            self.transport,
            "PLAINTEXT",
            self._router.answer,
            scratch,
            1 << 26,
            lambda connection: None,
            SystemClock(),
            BufferPool(),
            RequestMemory(),
        )

    def answer(self, request: Message, version: int) -> list[Part] | asyncio.Future[list[Part]] | None:
        header = RequestHeader(request.API_KEY, version, CORRELATION_ID, "a test")
        frame = encode_request(header, request.is_flexible(version), request.encode(version))
        return self._router.answer(self._connection, memoryview(bytearray(frame))[4:])

    def use(self, *, authorizer: Authorizer | None = None, quotas: Quotas | None = None) -> None:
        """Answer with an authorizer or quotas from now on, and know no request by its bytes."""
        services = replace(self.broker.services, authorizer=authorizer, quotas=quotas)
        self._router = Router(services, self.broker.requests)

    def speak_for(self, principal: Principal) -> None:
        """Have the connection speak for somebody else."""
        self._connection.principal = principal

    async def ask(self, request: Message, version: int, kind: type[Response]) -> Response:
        """Send a request and decode its response, checking the frame around it."""
        answer = self.answer(request, version)
        assert answer is not None
        parts = answer if isinstance(answer, list) else await answer
        data = b"".join(
            part.file.read(part.position, part.size) if isinstance(part, FileRange) else bytes(part) for part in parts
        )
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        assert RESPONSES[request.API_KEY] is kind
        is_flexible = kind.is_flexible(version) and request.API_KEY != ApiKey.API_VERSIONS
        correlation_id, position = decode_response_header(memoryview(data)[4:], is_flexible)
        assert correlation_id == CORRELATION_ID
        return kind.decode(version, memoryview(data)[4 + position :])

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        wanted = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
        )
        response = await self.ask(CreateTopicsRequest(topics=[wanted]), 7, CreateTopicsResponse)
        assert response.topics[0].error_code == 0, response.topics[0].error_message

    async def produce(
        self,
        topic: str = "orders",
        records: int = 1,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        data: bytes | None = None,
        **fields: Any,
    ) -> PartitionProduceResponse:
        request = produce_request(topic, records, partition=partition, acks=acks, data=data, **fields)
        response = await self.ask(request, version, ProduceResponse)
        return response.responses[0].partition_responses[0]


def produce_request(
    topic: str, records: int = 1, *, partition: int = 0, acks: int = -1, data: bytes | None = None, **fields: Any
) -> ProduceRequest:
    """A request for one partition; without data it has that many equal records of now."""
    if data is None:
        now = SystemClock().wall_ms()
        data = bytes(build_batch([NewRecord(b"value", timestamp=now + number) for number in range(records)]))
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(
                name=topic,
                topic_id=fields.pop("topic_id", TopicProduceData().topic_id),
                partition_data=[PartitionProduceData(index=partition, records=data)],
            )
        ],
        **fields,
    )


def with_broker(
    path: Path,
    test: Callable[[TestedBroker], Coroutine[Any, Any, None]],
    *,
    store: Store | None = None,
    disk: Disk | None = None,
    directories: tuple[str, ...] = ("data",),
    prepare: Callable[[TestedBroker], None] | None = None,
    **settings: str,
) -> None:
    """Start a broker, run a test with it, and stop it."""

    async def run() -> None:
        tested = TestedBroker(
            [path / name for name in directories],
            disk or SystemDisk(),
            store or MemoryStore(),
            {key.replace("_", "."): value for key, value in settings.items()},
        )
        if prepare is not None:
            prepare(tested)
        try:
            await tested.broker.start()
            await test(tested)
        finally:
            await tested.broker.stop()

    asyncio.run(run())
