from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailrace.runtime.transport import Transport
from tailrace.testing import loop as sim
from tailrace.testing.network import SimNetwork

SEEDS = range(20)


class End:
    """One end of a connection and what it was told."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.data = b""
        self.ends: list[Exception | None] = []
        self._buffer = bytearray(4096)

    def lend_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self.data += self._buffer[:size]

    def drained(self) -> None:
        """Nothing here depends on it."""

    def disconnected(self, reason: Exception | None) -> None:
        self.ends.append(reason)


class Pair:
    """A client connected to a broker, on two hosts."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.accepted: list[End] = []
        self.client: End

    def accept(self, transport: Transport) -> End:
        self.accepted.append(End(transport))
        return self.accepted[-1]

    def keep_client(self, transport: Transport) -> End:
        self.client = End(transport)
        return self.client

    @property
    def broker(self) -> End:
        return self.accepted[0]


def in_every_seed(scenario: Callable[[Pair], Awaitable[None]], **options: float) -> None:
    """Run a scenario with a connected pair, in several seeds."""

    async def connected() -> None:
        loop = sim.current()
        network = SimNetwork(loop, loop.random_for("network"), **options)
        pair = Pair(network)
        await network.host("broker").listen("broker", 9092, pair.accept)
        await network.host("client").connect("broker", 9092, pair.keep_client)
        await scenario(pair)

    for seed in SEEDS:
        sim.run(connected(), seed=seed)


def test_bytes_take_virtual_time() -> None:
    async def scenario(pair: Pair) -> None:
        began = sim.current().time()
        pair.client.transport.send([b"hello"])
        while not pair.broker.data:  # noqa: ASYNC110 - virtual time: each turn is one event
            await asyncio.sleep(0.01)
        assert sim.current().time() - began >= 0.5

    in_every_seed(scenario, latency_seconds=(0.5, 0.6))


def test_what_is_sent_during_a_cut_arrives_in_order_when_it_heals() -> None:
    async def scenario(pair: Pair) -> None:
        pair.client.transport.send([b"1"])
        await asyncio.sleep(1)
        pair.network.cut("client", "broker")
        for digit in (b"2", b"3"):
            pair.client.transport.send([digit])
        pair.broker.transport.send([b"back"])
        await asyncio.sleep(60)
        assert (pair.broker.data, pair.client.data) == (b"1", b"")
        pair.network.heal("client", "broker")
        pair.client.transport.send([b"4"])
        await asyncio.sleep(5)
        assert (pair.broker.data, pair.client.data) == (b"1234", b"back")
        assert pair.broker.ends == pair.client.ends == []

    in_every_seed(scenario)


def test_a_one_way_cut_lets_the_other_way_through() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.cut("client", "broker", one_way=True)
        pair.client.transport.send([b"lost for now"])
        pair.broker.transport.send([b"heard"])
        await asyncio.sleep(10)
        assert (pair.broker.data, pair.client.data) == (b"", b"heard")
        pair.network.heal()
        await asyncio.sleep(5)
        assert pair.broker.data == b"lost for now"

    in_every_seed(scenario)


def test_after_a_long_cut_the_sender_gives_up_and_the_other_end_stays_half_open() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.isolate("broker")
        pair.client.transport.send([b"never"])
        await asyncio.sleep(60)
        (reason,) = pair.client.ends
        assert isinstance(reason, TimeoutError)
        assert pair.broker.ends == []
        pair.network.heal("broker")
        await asyncio.sleep(3600)
        assert pair.broker.ends == [], "an idle end cannot know"
        pair.broker.transport.send([b"anybody there?"])
        await asyncio.sleep(5)
        (reason,) = pair.broker.ends
        assert isinstance(reason, ConnectionResetError)
        assert pair.broker.data == b""

    in_every_seed(scenario, retransmission_timeout_seconds=30)


def test_a_sender_with_a_full_window_gives_up_on_a_host_that_is_gone() -> None:
    async def scenario(pair: Pair) -> None:
        pair.broker.transport.pause_reading()
        pair.client.transport.send([bytes(1 << 20)])
        await asyncio.sleep(5)
        pair.network.crash("broker", silently=True)
        await asyncio.sleep(60)
        (reason,) = pair.client.ends
        assert isinstance(reason, TimeoutError)

    in_every_seed(scenario, retransmission_timeout_seconds=30)


def test_a_killed_process_resets_its_peers_and_is_told_nothing_itself() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.crash("broker", silently=False)
        await asyncio.sleep(5)
        (reason,) = pair.client.ends
        assert isinstance(reason, ConnectionResetError)
        assert pair.broker.ends == []
        pair.broker.transport.send([b"from the grave"])
        pair.broker.transport.close()
        await asyncio.sleep(5)
        assert (pair.client.data, pair.broker.ends) == (b"", [])
        with pytest.raises(ConnectionRefusedError):
            await pair.network.host("client").connect("broker", 9092, pair.keep_client)

    in_every_seed(scenario)


def test_a_machine_that_lost_power_says_nothing_until_it_is_back() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.crash("broker", silently=True)
        await asyncio.sleep(5)
        pair.client.transport.send([b"hello?"])
        await asyncio.sleep(5)
        assert pair.client.ends == []
        with pytest.raises(TimeoutError):
            await pair.network.host("client").connect("broker", 9092, End)
        pair.network.restart("broker")
        await asyncio.sleep(5)
        (reason,) = pair.client.ends
        assert isinstance(reason, ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await pair.network.host("client").connect("broker", 9092, End)
        await pair.network.host("broker").listen("", 9092, pair.accept)
        await pair.network.host("client").connect("broker", 9092, pair.keep_client)
        pair.client.transport.send([b"again"])
        await asyncio.sleep(5)
        assert pair.accepted[1].data == b"again"

    in_every_seed(scenario)


def test_the_seed_decides_how_a_host_crashes() -> None:
    noticed: list[bool] = []

    async def scenario(pair: Pair) -> None:
        pair.network.crash("broker")
        await asyncio.sleep(5)
        noticed.append(bool(pair.client.ends))

    in_every_seed(scenario)
    assert 3 < sum(noticed) < len(SEEDS) - 3


def test_a_reset_is_seen_by_both_sides() -> None:
    async def scenario(pair: Pair) -> None:
        assert pair.network.reset("client", "nobody") == 0
        assert pair.network.reset("broker", "client") == 2
        await asyncio.sleep(1)
        for end in (pair.client, pair.broker):
            (reason,) = end.ends
            assert isinstance(reason, ConnectionResetError)

    in_every_seed(scenario)


def test_connecting_succeeds_when_a_cut_heals_in_time_and_times_out_otherwise() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.cut("broker", "client", one_way=True)
        connecting = asyncio.create_task(pair.network.host("client").connect("broker", 9092, pair.keep_client))
        await asyncio.sleep(10)
        assert not connecting.done()
        pair.network.heal()
        await connecting
        pair.client.transport.send([b"new"])
        await asyncio.sleep(1)
        assert pair.accepted[-1].data == b"new"
        pair.network.cut("broker", "client")
        began = sim.current().time()
        with pytest.raises(TimeoutError):
            await pair.network.host("client").connect("broker", 9092, End)
        assert sim.current().time() - began == pytest.approx(30)

    in_every_seed(scenario, connect_timeout_seconds=30)


def test_an_unknown_host_cannot_be_reached() -> None:
    async def scenario(pair: Pair) -> None:
        with pytest.raises(OSError, match="nowhere"):
            await pair.network.host("client").connect("nowhere", 1, End)

    in_every_seed(scenario)


def test_a_connection_that_is_no_longer_wanted_is_reset_at_the_other_side() -> None:
    half_open = 0

    async def scenario(pair: Pair) -> None:
        nonlocal half_open
        connecting = asyncio.create_task(pair.network.host("client").connect("broker", 9092, End))
        await asyncio.sleep(0.15)
        connecting.cancel()
        await asyncio.wait([connecting])
        await asyncio.sleep(5)
        for end in pair.accepted[1:]:
            half_open += 1
            assert len(end.ends) == 1

    in_every_seed(scenario, latency_seconds=(0.1, 0.2))
    assert half_open > 3


def test_a_crash_ends_the_attempts_of_its_host_to_connect() -> None:
    async def scenario(pair: Pair) -> None:
        connecting = asyncio.create_task(pair.network.host("client").connect("broker", 9092, End))
        await asyncio.sleep(0)
        pair.network.crash("client")
        await asyncio.wait([connecting])
        assert connecting.cancelled()

    in_every_seed(scenario)


def test_hosts_that_are_down_can_neither_listen_nor_connect() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.crash("broker", silently=True)
        with pytest.raises(OSError, match="down"):
            await pair.network.host("broker").listen("", 1, End)
        with pytest.raises(OSError, match="down"):
            await pair.network.host("broker").connect("client", 1, End)

    in_every_seed(scenario)


def test_a_buffer_that_changes_too_early_is_found_in_what_arrives() -> None:
    async def scenario(pair: Pair) -> None:
        buffer = bytearray(b"a" * 1_000_000)
        pair.client.transport.send([buffer])
        buffer[:] = b"b" * 1_000_000
        await asyncio.sleep(30)
        assert len(pair.broker.data) == 1_000_000
        assert b"b" in pair.broker.data

    in_every_seed(scenario)


def test_connections_lists_what_a_host_has_open() -> None:
    async def scenario(pair: Pair) -> None:
        assert pair.network.connections("client") == [pair.client.transport]
        pair.client.transport.close()
        await asyncio.sleep(1)
        assert pair.network.connections("client") == pair.network.connections("broker") == []

    in_every_seed(scenario)
