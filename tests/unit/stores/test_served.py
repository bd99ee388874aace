"""The store that a supervisor serves: which clients are alive, what outlives the server, and what strangers can do."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tailrace.cluster.store import Unavailable, Write
from tailrace.errors import StorageError
from tailrace.runtime.system.clock import SystemClock
from tailrace.stores import frames
from tailrace.stores.served import ServedStore
from tailrace.stores.server import StoreServer
from tests.contract.follower import Follower
from tests.support.stores.store_process import LOST, StoreProcess

CLOCK = SystemClock()
#: Far longer than any test: a session with it does not expire in one.
LONG_MS = 600_000


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


@asynccontextmanager
async def served(directory: Path, name: str = "store.sock") -> AsyncIterator[StoreServer]:
    server = StoreServer(str(directory / "metadata.sqlite"), str(directory / name), CLOCK)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def client(path: Path, request_seconds: float = 5.0) -> AsyncIterator[ServedStore]:
    store = ServedStore(str(path), CLOCK, request_seconds=request_seconds)
    try:
        yield store
    finally:
        await store.close()


# --- who is alive


def test_the_session_of_a_process_that_is_killed_ends_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "store.sock"
        async with served(tmp_path), client(path) as store, Follower(store, "/held") as follower:
            async with StoreProcess("hold", str(path), "/held/a", str(LONG_MS)):
                await follower.until(lambda seen: seen == {"/held/a": b"held"})
            await follower.until(lambda seen: seen == {})  # with patience of far less than its time to live

    run(test)


def test_the_session_of_a_process_that_is_stopped_ends_after_its_time_to_live_and_it_finds_out(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "store.sock"
        async with (
            served(tmp_path),
            client(path) as store,
            Follower(store, "/held") as follower,
            StoreProcess("hold", str(path), "/held/a", "1500") as holder,
        ):
            await follower.until(lambda seen: seen == {"/held/a": b"held"})
            stopped = time.monotonic()
            await holder.stop()
            await follower.until(lambda seen: seen == {})
            # Its last renewal is a third of a time to live old at most, and a little for a busy machine.
            assert time.monotonic() - stopped >= 0.5
            holder.resume()
            assert await holder.next_line() == LOST

    run(test)


def test_a_process_that_is_stopped_for_less_than_its_time_to_live_loses_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "store.sock"
        async with (
            served(tmp_path),
            client(path) as store,
            Follower(store, "/held") as follower,
            StoreProcess("hold", str(path), "/held/a", "1500") as holder,
        ):
            await follower.until(lambda seen: seen == {"/held/a": b"held"})
            await holder.stop()
            await asyncio.sleep(0.3)
            holder.resume()
            # Longer than its time to live: it is there because it is renewed again.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    await follower.until(lambda seen: seen != {"/held/a": b"held"})

    run(test)


# --- a server that is killed or stopped


def test_clients_go_on_with_the_successor_of_a_killed_server(tmp_path: Path) -> None:
    path, database = tmp_path / "store.sock", tmp_path / "metadata.sqlite"

    async def test() -> None:
        async with client(path) as store, client(path) as other:
            async with StoreProcess("serve", str(database), str(path)):
                session = await store.open_session(LONG_MS)
                leaving = await other.open_session(2_000)
                await store.txn([], [Write("/things/mine", b"1", session)])
                await other.txn([], [Write("/things/leaving", b"1", leaving)])
                follower = Follower(store, "/things")
                async with follower:
                    await follower.until(lambda seen: len(seen) == 2)
            await other.close()  # tells nobody: there is nobody to tell
            async with (
                Follower(store, "/things") as follower,
                StoreProcess("serve", str(database), str(path)),
            ):
                await follower.until(lambda seen: "/things/mine" in seen)
                assert not session.is_lost
                assert await store.txn([], [Write("/things/second", b"2", session)]) is not None
                # Who does not come back is gone after its time to live.
                await follower.until(lambda seen: seen == {"/things/mine": b"1", "/things/second": b"2"})
                await session.close()
                await follower.until(lambda seen: seen == {})

    run(test)


def test_a_server_that_was_stopped_expires_nobody_for_what_it_could_not_hear(tmp_path: Path) -> None:
    path, database = tmp_path / "store.sock", tmp_path / "metadata.sqlite"

    async def test() -> None:
        async with (
            StoreProcess("serve", str(database), str(path)) as server,
            client(path, request_seconds=2.0) as store,
        ):
            session = await store.open_session(3_000)
            long = await store.open_session(LONG_MS)
            await store.txn([], [Write("/things/mine", b"1", session)])
            await store.txn([], [Write("/things/long", b"1", long)])
            await server.stop()
            with pytest.raises(Unavailable, match="no answer"):
                await store.get("/things/mine")
            await session.wait_until_lost()  # by its own clock
            server.resume()
            async with Follower(store, "/things") as follower:
                await follower.until(lambda seen: list(seen) == ["/things/long"])
            assert not long.is_lost
            following = await store.open_session(LONG_MS)
            assert await store.txn([], [Write("/things/mine", b"2", following)]) is not None

    run(test)


def test_an_outcome_that_was_lost_with_the_server_is_unknown(tmp_path: Path) -> None:
    async def test() -> None:
        async with client(tmp_path / "store.sock") as store:
            async with served(tmp_path) as server:
                await store.txn([], [Write("/things/a", b"1")])
                waiting = [asyncio.ensure_future(store.txn([], [Write("/things/a", b"2")])) for _ in range(5)]
                await asyncio.sleep(0)
                await server.close()
            async with served(tmp_path):
                # Reads wait for the next server; what may have been done is not done again.
                entry = await store.get("/things/a")
                assert entry is not None
                assert entry.value in (b"1", b"2")
                outcomes = await asyncio.gather(*waiting, return_exceptions=True)
                lost = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert lost
                assert {type(outcome) for outcome in lost} == {Unavailable}
                assert "disconnected during a request" in str(lost[0])

    run(test)


# --- the socket


def test_nobody_else_may_open_the_socket_and_its_path_may_be_long(tmp_path: Path) -> None:
    async def test() -> None:
        deep = tmp_path / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        async with served(deep), client(deep / "store.sock") as store:
            await store.txn([], [Write("/things/a", b"1")])
            assert stat.S_IMODE((deep / "store.sock").stat().st_mode) == 0o600
        assert not (deep / "store.sock").exists()

    run(test)


def test_a_socket_that_is_served_is_refused_and_one_left_behind_is_taken(tmp_path: Path) -> None:
    async def test() -> None:
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(tmp_path / "store.sock"))
        left.close()
        async with served(tmp_path):
            second = StoreServer(str(tmp_path / "other.sqlite"), str(tmp_path / "store.sock"), CLOCK)
            with pytest.raises(StorageError, match=r"store\.sock is in use: stop the cluster"):
                await second.start()
            await second.close()
            async with client(tmp_path / "store.sock") as store:  # the first still serves
                await store.txn([], [Write("/things/a", b"1")])
        (tmp_path / "file").write_text("precious")
        for name, reason in (("no/dir", "cannot serve the metadata store at .*: No such file"), ("file", "in the way")):
            server = StoreServer(str(tmp_path / "other.sqlite"), str(tmp_path / name), CLOCK)
            with pytest.raises(StorageError, match=reason):
                await server.start()
            await server.close()
        assert (tmp_path / "file").read_text() == "precious"

    run(test)


def test_who_cannot_be_reached_is_named_with_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        path = tmp_path / "store.sock"
        async with client(path, request_seconds=0.3) as store:
            for _ in range(2):
                with pytest.raises(Unavailable) as caught:
                    await store.get("/things/a")
                assert str(caught.value) == (
                    f"cannot reach the metadata store at {path} (No such file or directory): "
                    "check that the cluster that serves it is running"
                )
            async with served(tmp_path):
                assert await store.get("/things/a") is None
                await store.close()

    with caplog.at_level(logging.INFO, "tailrace.stores"):
        run(test)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2  # once for a whole outage
    assert "Cannot reach" in said[0]
    assert "Reconnected to" in said[1]


def test_a_server_of_another_protocol_is_refused_with_its_version(tmp_path: Path) -> None:
    async def test() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frames.encode({"protocol": 7, "software": "99.0"}))
            await reader.read()
            writer.close()

        server = await asyncio.start_unix_server(greet, str(tmp_path / "s"))
        async with client(tmp_path / "s", request_seconds=0.3) as store:
            with pytest.raises(Unavailable, match=r"server has protocol version 7, .*the server's is 99\.0"):
                await store.get("/things/a")
        server.close()

    run(test)


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">II", 1 << 31, 4),
        struct.pack(">II", 8, 100) + b"abcd",
        struct.pack(">II", 8, 4) + b"abcd",
        struct.pack(">II", 6, 2) + b"[]",
        frames.encode({"id": 1}),
        frames.encode({"id": 1, "do": "format"}),
        frames.encode({"id": 1, "do": "get"}),
        frames.encode({"id": 1, "do": "list", "directory": 5}),
        frames.encode({"id": 1, "do": "txn", "checks": [], "writes": [["/a/b", 100, 0]]}, [b"short"]),
        frames.encode({"id": 1, "do": "txn", "checks": [], "writes": [["not a path", -1, 0]]}),
        b"\x00",
    ],
    ids=range(11),
)
def test_what_is_no_request_ends_its_own_connection_and_nothing_else(tmp_path: Path, sent: bytes) -> None:
    async def test() -> None:
        path = tmp_path / "s"
        async with served(tmp_path, "s"), client(path) as store:
            session = await store.open_session(LONG_MS)
            await store.txn([], [Write("/things/mine", b"1", session)])
            reader, writer = await asyncio.open_unix_connection(str(path))
            assert await frames.read(reader) is not None
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            assert await store.get("/things/mine") is not None
            assert not session.is_lost

    run(test)


def test_a_client_that_does_not_read_costs_the_server_no_memory(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "s"
        async with served(tmp_path, "s") as server, client(path) as store:
            reader, writer = await asyncio.open_unix_connection(str(path), limit=1)
            writer.write(frames.encode({"do": "watch", "watch": 1, "directory": "/things"}))
            value = bytes(100_000)
            for number in range(100):
                await store.txn([], [Write(f"/things/{number % 5}", value + b"%d" % number)])
            largest = max(connection._writer.transport.get_write_buffer_size() for connection in server._connections)
            # Less than two batches of the whole directory, of the ten megabytes that were written.
            assert largest < 1_100_000
            last = b""
            while not last.endswith(b"99"):
                frame = await frames.read(reader)
                assert frame is not None
                header, blob = frame
                if "watch" in header:
                    for entry in frames.entries_from(header["entries"], blob):
                        last = entry.value if entry.key == "/things/4" else last
            writer.close()

    run(test)


def test_a_watch_that_nobody_reads_any_more_is_given_up(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "s"
        async with served(tmp_path, "s") as server, client(path) as store:
            for _ in range(20):
                assert (await anext(store.watch("/things"))).is_complete
            async with Follower(store, "/things") as follower:
                # Two changes: the first is answered with what is not wanted any more.
                for number in range(2):
                    value = b"%d" % number
                    await store.txn([], [Write("/things/a", value)])
                    await follower.until(lambda seen: seen == {"/things/a": value})  # noqa: B023
                await store.get("/things/a")
                (connection,) = server._connections
                assert len(connection._watches) == 1

    run(test)
