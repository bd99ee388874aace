"""What every network promises, real or simulated."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tailrace.errors import StorageError
from tailrace.runtime.disk import File, FileRange
from tests.contract.receiver import Acceptor, Recorder, connection
from tests.contract.world import World


def _bytes(size: int) -> bytes:
    return Random(size).randbytes(size)


def _file(world: World, content: bytes) -> File:
    file = world.disk.open(f"{world.root}/range", create=True)
    file.append(content)
    return file


def test_what_is_sent_arrives_and_can_be_answered_from_within(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            server.on_received = lambda data: server.transport.send([data])
            sent = b""
            for size in (1, 2, 1000, 70_000):
                message = _bytes(size)
                sent += message
                client.transport.send([message])
                await client.until(lambda: len(client.data) >= len(sent))  # noqa: B023
            assert client.data == sent
            assert server.data == sent

    world.run(scenario())


def test_parts_of_every_kind_arrive_in_the_order_they_were_sent(world: World) -> None:
    async def scenario() -> None:
        file = _file(world, b"0123456789")
        async with connection(world) as (client, server, _):
            client.transport.send([b"a", b"", bytearray(b"b"), FileRange(file, 2, 3)])
            client.transport.send([])
            client.transport.send([FileRange(file, 9, 1), memoryview(b"xyz")[1:2], FileRange(file, 0, 0)])
            client.transport.send([b"!"])
            await server.until(lambda: server.data.endswith(b"!"))
            assert server.data == b"ab2349y!"

    world.run(scenario())


def test_many_small_parts_arrive_whole(world: World) -> None:
    async def scenario() -> None:
        parts = [_bytes(size % 37) for size in range(5000)]
        async with connection(world) as (client, server, _):
            client.transport.send(parts)
            whole = b"".join(parts)
            await server.until(lambda: len(server.data) >= len(whole))
            assert server.data == whole

    world.run(scenario())


def test_both_sides_know_each_other_by_host_and_port(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, listener):
            assert client.transport.peer.rpartition(":")[2] == str(listener.port)
            host, _, port = server.transport.peer.rpartition(":")
            assert host
            assert 0 < int(port) < 65_536

    world.run(scenario())


def test_no_more_is_received_at_once_than_the_lent_buffer_holds(world: World) -> None:
    async def scenario() -> None:
        async with connection(world, server_buffer_bytes=7) as (client, server, _):
            message = _bytes(1000)
            client.transport.send([message])
            await server.until(lambda: len(server.data) >= 1000)
            assert server.data == message
            assert server.largest_piece <= 7

    world.run(scenario())


def test_a_slow_reader_gets_everything_and_the_sender_learns_when_it_has_drained(world: World) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        message = _bytes(world.more_than_buffers)
        async with connection(world, client_buffer_bytes=world.more_than_buffers // 64) as (client, server, _):
            pauses = 0

            def rest(_: bytes) -> None:
                nonlocal pauses
                if pauses < 50:
                    pauses += 1
                    client.transport.pause_reading()
                    loop.call_later(0.001, client.transport.resume_reading)

            client.on_received = rest
            server.transport.send([message])
            assert 0 < server.transport.unsent_bytes <= len(message)
            assert server.drained_count == 0
            await server.until(lambda: server.drained_count == 1)
            assert server.transport.unsent_bytes == 0
            await client.until(lambda: len(client.data) >= len(message))
            assert client.data == message
            assert pauses == 50
            assert server.drained_count == 1

    world.run(scenario())


def test_nothing_is_received_while_reading_is_paused(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            server.transport.send([b"early"])
            # The way back is open and longer than the way there, so paused data would have arrived.
            client.transport.send([b"ping"])
            await server.until(lambda: bool(server.data))
            await asyncio.sleep(0.05)
            assert client.data == b""
            client.transport.resume_reading()
            await client.until(lambda: client.data == b"early")

    world.run(scenario())


def test_a_paused_receiver_holds_the_sender_back(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            message = _bytes(world.more_than_buffers)
            server.transport.send([message])
            await asyncio.sleep(0.05)
            assert server.transport.unsent_bytes > 0
            assert server.drained_count == 0
            client.transport.resume_reading()
            await client.until(lambda: len(client.data) >= len(message))
            assert client.data == message

    world.run(scenario())


def test_file_ranges_larger_than_the_socket_buffers_arrive_whole(world: World) -> None:
    async def scenario() -> None:
        content = _bytes(world.more_than_buffers + 10)
        file = _file(world, content)
        async with connection(world) as (client, server, _):
            server.transport.send([b"<", FileRange(file, 10, world.more_than_buffers), b">"])
            await client.until(lambda: len(client.data) >= world.more_than_buffers + 2)
            assert client.data == b"<" + content[10:] + b">"

    world.run(scenario())


def test_a_file_range_whose_file_was_removed_is_still_sent(world: World) -> None:
    async def scenario() -> None:
        content = _bytes(world.more_than_buffers)
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            server.transport.send([FileRange(_file(world, content), 0, len(content))])
            world.disk.remove(f"{world.root}/range")
            client.transport.resume_reading()
            await client.until(lambda: len(client.data) >= len(content))
            assert client.data == content

    world.run(scenario())


def test_a_file_that_shrinks_while_it_is_sent_ends_the_connection(world: World) -> None:
    async def scenario() -> None:
        file = _file(world, _bytes(world.more_than_buffers))
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            server.transport.send([FileRange(file, 0, world.more_than_buffers)])
            file.truncate(0)
            client.transport.resume_reading()
            assert isinstance(await server.end(), StorageError)
            await client.end()
            assert len(client.data) < world.more_than_buffers

    world.run(scenario())


@pytest.mark.parametrize("amount", ["nothing", "little", "much"])
def test_closing_sends_what_is_queued_first(world: World, amount: str) -> None:
    size = {"nothing": 0, "little": 10, "much": world.more_than_buffers}[amount]

    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            message = _bytes(size)
            server.transport.send([message])
            server.transport.close()
            server.transport.close()
            assert await client.end() is None
            assert client.data == message
            assert await server.end() is None
            assert server.transport.unsent_bytes == 0

    world.run(scenario())


def test_aborting_drops_what_is_queued(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            server.transport.send([_bytes(world.more_than_buffers)])
            server.transport.abort()
            server.transport.abort()
            client.transport.resume_reading()
            await client.end()
            assert len(client.data) < world.more_than_buffers
            await server.end()
            assert server.transport.unsent_bytes == 0

    world.run(scenario())


def test_aborting_ends_a_close_that_waits_for_the_other_side(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            server.transport.send([_bytes(world.more_than_buffers)])
            server.transport.close()
            await asyncio.sleep(0.02)
            assert server.ends == []
            server.transport.abort()
            await server.end()

    world.run(scenario())


def test_a_connection_can_be_closed_or_aborted_from_within_a_call(world: World) -> None:
    async def scenario() -> None:
        async with connection(world, server_buffer_bytes=3) as (client, server, _):
            server.on_received = lambda data: server.transport.abort()
            client.transport.send([b"0123456789"])
            await server.end()
            await client.end()
            assert len(server.data) <= 3

    world.run(scenario())


def test_nothing_is_received_after_a_close(world: World) -> None:
    async def scenario() -> None:
        async with connection(world, server_buffer_bytes=3) as (client, server, _):
            server.on_received = lambda data: server.transport.close()
            client.transport.send([b"0123456789"])
            await server.end()
            assert len(server.data) <= 3

    world.run(scenario())


def test_calls_on_a_connection_that_is_gone_have_no_effect(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            server.transport.close()
            await client.end()
            client.transport.send([b"too late"])
            client.transport.pause_reading()
            client.transport.resume_reading()
            client.transport.close()
            client.transport.abort()
            assert client.transport.unsent_bytes == 0

    world.run(scenario())


def test_a_sender_learns_that_the_other_side_is_gone(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, _):
            client.transport.pause_reading()
            server.transport.send([_bytes(world.more_than_buffers)])
            client.transport.abort()
            await server.end()

    world.run(scenario())


def test_connecting_where_nobody_listens_is_refused(world: World) -> None:
    async def scenario() -> None:
        listener = await world.network.listen("127.0.0.1", 0, Acceptor())
        listener.close()
        with pytest.raises(OSError):
            await world.network.connect("127.0.0.1", listener.port, Recorder)

    world.run(scenario())


def test_a_port_in_use_cannot_be_listened_on(world: World) -> None:
    async def scenario() -> None:
        listener = await world.network.listen("127.0.0.1", 0, Acceptor())
        with pytest.raises(OSError):
            await world.network.listen("127.0.0.1", listener.port, Acceptor())
        listener.close()

    world.run(scenario())


def test_open_connections_go_on_after_their_listener_closed(world: World) -> None:
    async def scenario() -> None:
        async with connection(world) as (client, server, listener):
            listener.close()
            listener.close()
            client.transport.send([b"still here"])
            await server.until(lambda: server.data == b"still here")
            with pytest.raises(OSError):
                await world.network.connect("127.0.0.1", listener.port, Recorder)

    world.run(scenario())


def test_connections_of_one_listener_do_not_mix(world: World) -> None:
    async def scenario() -> None:
        acceptor = Acceptor()
        listener = await world.network.listen("127.0.0.1", 0, acceptor)
        clients: list[Recorder] = []

        def make(transport: object) -> Recorder:
            clients.append(Recorder(transport))
            return clients[-1]

        for number in range(5):
            await world.network.connect("127.0.0.1", listener.port, make)
            clients[number].transport.send([b"%d" % number * 100])
        await acceptor.until(len(clients))
        for client in clients:
            client.transport.close()
            await client.end()
        for server in acceptor.accepted:
            await server.end()
        listener.close()
        assert sorted(map(bytes, (server.data for server in acceptor.accepted))) == [
            b"%d" % number * 100 for number in range(5)
        ]

    world.run(scenario())
