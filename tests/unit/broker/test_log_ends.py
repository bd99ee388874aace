"""Asking brokers for log ends: the election continues, whatever one of them answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.broker.leading.log_ends import Leaderless, ask_log_ends
from tailrace.cluster.image import BrokerEndpoint, BrokerImage
from tailrace.cluster.leaders import LogEnd
from tailrace.model import TopicPartition
from tailrace.runtime import Runtime
from tailrace.testing.loop import SimLoop
from tailrace.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.support.response_header import encode_response_header
from tests.unit.broker.memory_transport import MemoryTransport

ASKED = TopicPartition("orders", 0)
VERSION = 4


class Answering:
    """A network on which everybody answers each request with the same body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def connect(self, host: str, port: int, factory: Any) -> MemoryTransport:
        transport = MemoryTransport()
        receiver = transport.receiver = factory(transport)
        frame = encode_response_header(1, flexible=True) + self._body
        asyncio.get_running_loop().call_soon(lambda: transport.deliver(len(frame).to_bytes(4, "big") + frame))
        assert receiver is not None
        return transport


def ask(body: bytes) -> dict[TopicPartition, dict[int, LogEnd]]:
    runtime = cast(Runtime, SimpleNamespace(network=Answering(body)))
    brokers = {1: BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "one", 9092),))}
    return asyncio.run(ask_log_ends(runtime, None, brokers, [Leaderless(ASKED, 7, (1,))], 0.5, lambda _: True))


def result(topic: str, partition: int, error_code: int = 0) -> OffsetForLeaderTopicResult:
    end = EpochEndOffset(error_code=error_code, partition=partition, leader_epoch=6, end_offset=5)
    return OffsetForLeaderTopicResult(topic=topic, partitions=[end])


def test_an_answer_counts_for_what_was_asked_and_nothing_else() -> None:
    others = [result("orders", 1), result("others", 0, 75), result("orders", 0)]
    assert ask(OffsetForLeaderEpochResponse(topics=others).encode(VERSION)) == {ASKED: {1: LogEnd(6, 5)}}


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00\x00\xff\xff\xff\xff\x0f", bytes(range(256))])
def test_a_malformed_answer_is_none(body: bytes) -> None:
    assert ask(body) == {ASKED: {}}


class Silent:
    """A network on which connections are accepted and nobody answers."""

    async def connect(self, host: str, port: int, factory: Any) -> MemoryTransport:
        transport = MemoryTransport()
        transport.receiver = factory(transport)
        return transport


def test_a_silent_replica_is_waited_for_while_it_is_alive_to_the_store_and_not_for_ever() -> None:
    async def test(loop: SimLoop, dies_at: float) -> float:
        runtime = cast(Runtime, SimpleNamespace(network=Silent()))
        brokers = {1: BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "one", 9092),))}
        asked = [Leaderless(ASKED, 7, (1,))]
        assert await ask_log_ends(runtime, None, brokers, asked, 9.0, lambda _: loop.time() < dies_at) == {ASKED: {}}
        return loop.time()

    for dies_at, ends_at in ((5.0, 5.0), (1000.0, 9.0)):
        loop = SimLoop(1)
        assert loop.run(test(loop, dies_at)) == pytest.approx(ends_at, abs=0.3)


class Losing(Answering):
    """A network that resets the first connection and answers on the others."""

    is_lost = False

    async def connect(self, host: str, port: int, factory: Any) -> MemoryTransport:
        if self.is_lost:
            return await super().connect(host, port, factory)
        self.is_lost = True
        transport = MemoryTransport()
        receiver = transport.receiver = factory(transport)
        asyncio.get_running_loop().call_soon(receiver.disconnected, ConnectionResetError("reset"))
        return transport


def test_a_replica_whose_connection_is_lost_is_asked_again() -> None:
    """It may have the only copy of an acknowledged record."""
    body = OffsetForLeaderEpochResponse(topics=[result("orders", 0)]).encode(VERSION)

    async def test(loop: SimLoop) -> None:
        runtime = cast(Runtime, SimpleNamespace(network=Losing(body)))
        brokers = {1: BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "one", 9092),))}
        asked = [Leaderless(ASKED, 7, (1,))]
        found = await ask_log_ends(runtime, None, brokers, asked, 9.0, lambda _: True)
        assert found == {ASKED: {1: LogEnd(6, 5)}}
        assert loop.time() < 1

    loop = SimLoop(1)
    loop.run(test(loop))


class Refusing:
    """A network on which no process listens."""

    async def connect(self, host: str, port: int, factory: Any) -> MemoryTransport:
        raise ConnectionRefusedError("nobody listens")


def test_a_replica_whose_process_has_ended_is_not_waited_for() -> None:
    async def test(loop: SimLoop) -> None:
        runtime = cast(Runtime, SimpleNamespace(network=Refusing()))
        brokers = {1: BrokerImage(1, (BrokerEndpoint("PLAINTEXT", "one", 9092),))}
        asked = [Leaderless(ASKED, 7, (1,))]
        assert await ask_log_ends(runtime, None, brokers, asked, 9.0, lambda _: True) == {ASKED: {}}
        assert loop.time() < 1

    loop = SimLoop(1)
    loop.run(test(loop))
