"""The store over three real ZooKeeper servers that are killed, stopped and started again under load."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.zookeeper import ZooKeeperStore, open_zookeeper_store
from tests.fault.store_load import PATIENCE_SECONDS, SESSION_TTL_MS, Load, load_while, run, without_a_majority
from tests.support.stores.zookeeper_process import TICK_MS, ZooKeeperEnsemble, ZooKeeperServer

#: How often a leader is killed, a server stopped, and the holder of a session killed.
ROUNDS = max(2, int(os.environ.get("TAILRACE_FAULT_KILLS", "20")) // 4)
#: Of a session that others are to see end: so long that a holder that lives renews it on the busiest machine.
HELD_TTL_MS = 12 * TICK_MS
HOLDERS = max(2, ROUNDS // 2)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path, servers=3) as ensemble:
        yield ensemble


def url_of(ensemble: ZooKeeperEnsemble) -> str:
    return f"zookeeper://{','.join(ensemble.endpoints)}/fault"


def open_to(ensemble: ZooKeeperEnsemble) -> Callable[[int], ZooKeeperStore]:
    return lambda _: open_zookeeper_store(url_of(ensemble), SystemClock())


@asynccontextmanager
async def opened(ensemble: ZooKeeperEnsemble) -> AsyncIterator[ZooKeeperStore]:
    store = open_zookeeper_store(url_of(ensemble), SystemClock())
    try:
        yield store
    finally:
        await store.close()


def test_leaders_that_are_killed_in_turn_cost_nothing_that_was_acknowledged(zookeeper: ZooKeeperEnsemble) -> None:
    async def disturb(load: Load) -> None:
        for _ in range(ROUNDS):
            leader = await asyncio.to_thread(zookeeper.leader)
            await asyncio.to_thread(leader.kill)
            await load.goes_on("while one of three is dead")
            await asyncio.to_thread(zookeeper.start)

    async def test() -> None:
        print(f"\nZooKeeper, {ROUNDS} leaders killed: {await load_while(open_to(zookeeper), disturb)}")

    run(test())


def test_servers_that_are_stopped_in_turn_cost_nothing_that_was_acknowledged(zookeeper: ZooKeeperEnsemble) -> None:
    async def disturb(load: Load) -> None:
        for number in range(ROUNDS):
            # Leaders and followers: clients of a silent server must notice it.
            leader = await asyncio.to_thread(zookeeper.leader)
            followers = [server for server in zookeeper.servers if server is not leader]
            server: ZooKeeperServer = leader if number % 2 else followers[number % len(followers)]
            server.pause()
            await load.goes_on("while one of three hangs")
            server.resume()
            await asyncio.to_thread(zookeeper.start)

    async def test() -> None:
        summary = await load_while(open_to(zookeeper), disturb, may_be_late=True)
        print(f"\nZooKeeper, {ROUNDS} servers stopped: {summary}")

    run(test())


def test_without_a_majority_nothing_is_promised_and_everything_comes_back_by_itself(
    zookeeper: ZooKeeperEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        for server in zookeeper.servers[:2]:
            server.kill()

    async def test() -> None:
        async with opened(zookeeper) as store, opened(zookeeper) as other:
            await without_a_majority(store, other, lose, zookeeper.start, SESSION_TTL_MS, caplog)
        assert "Reconnected to ZooKeeper" in caplog.text

    with caplog.at_level(logging.INFO, "tailrace.stores"):
        run(test())


@contextmanager
def holder(ensemble: ZooKeeperEnsemble, ttl_ms: int, key: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a session with a key."""
    command = [sys.executable, "-m", "tests.support.stores.session_holder", url_of(ensemble), str(ttl_ms), key]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def asked(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    return process.stdout.readline().strip()


async def gone_after(store: ZooKeeperStore, end_of: Callable[[], None]) -> float:
    """How long after the end of its holder the key of a session was seen to vanish."""
    watch = store.watch("/held")
    assert len((await anext(watch)).entries) == 1
    started = time.monotonic()
    end_of()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await anext(watch)).removed:
            pass
    return time.monotonic() - started


def test_a_process_that_was_stopped_for_too_long_knows_at_once_that_its_session_is_lost(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    async def test() -> None:
        async with opened(zookeeper) as store:
            with holder(zookeeper, HELD_TTL_MS, "/held/mine") as process:
                assert asked(process) == "held written"
                await gone_after(store, lambda: process.send_signal(signal.SIGSTOP))
                process.send_signal(signal.SIGCONT)
                assert asked(process) == "lost refused"
                assert asked(process) == "lost refused"
            assert await store.get("/held/mine") is None

    run(test())


def test_the_keys_of_a_process_that_was_killed_are_gone_after_its_time_to_live(zookeeper: ZooKeeperEnsemble) -> None:
    async def test() -> None:
        async with opened(zookeeper) as store:
            took = []
            for _ in range(HOLDERS):
                with holder(zookeeper, HELD_TTL_MS, "/held/mine") as process:
                    took.append(await gone_after(store, process.kill))
            took.sort()
            print(
                f"\nZooKeeper, {HOLDERS} holders of a session of {HELD_TTL_MS} ms killed: gone after "
                f"{took[0]:.1f} s at least, {took[len(took) // 2]:.1f} s in the middle, {took[-1]:.1f} s at most"
            )

    run(test())
