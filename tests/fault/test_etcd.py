"""The store over three real etcd members that are killed, stopped and started again under load."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tailrace.runtime.system.clock import SystemClock
from tailrace.stores.etcd import EtcdStore, open_etcd_store
from tests.fault.store_load import (
    LONG_SESSION_TTL_MS,
    SESSION_TTL_MS,
    Load,
    load_while,
    run,
    without_a_majority,
)
from tests.support.stores.etcd_process import EtcdCluster

#: How often a leader is killed, and how often one is stopped.
ROUNDS = max(2, int(os.environ.get("TAILRACE_FAULT_KILLS", "20")) // 4)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path, members=3) as cluster:
        yield cluster
        for member in cluster.members:
            if member.is_running:
                member.resume()  # a stopped process cannot be asked to end


def open_to(cluster: EtcdCluster) -> Callable[[int], EtcdStore]:
    """Separate clients, each with another first member."""

    def open_store(number: int) -> EtcdStore:
        first = number % len(cluster.endpoints)
        endpoints = cluster.endpoints[first:] + cluster.endpoints[:first]
        return open_etcd_store(f"etcd://{','.join(endpoints)}/fault", SystemClock())

    return open_store


def test_leaders_that_are_killed_in_turn_cost_nothing_that_was_acknowledged(etcd: EtcdCluster) -> None:
    async def disturb(load: Load) -> None:
        for _ in range(ROUNDS):
            leader = await asyncio.to_thread(etcd.leader)
            await asyncio.to_thread(leader.kill)
            await load.goes_on("while one of three is dead")
            await asyncio.to_thread(etcd.start)

    async def test() -> None:
        print(f"\netcd, {ROUNDS} leaders killed: {await load_while(open_to(etcd), disturb)}")

    run(test())


def test_leaders_that_are_stopped_in_turn_cost_nothing_that_was_acknowledged(etcd: EtcdCluster) -> None:
    async def disturb(load: Load) -> None:
        for _ in range(ROUNDS):
            leader = await asyncio.to_thread(etcd.leader)
            leader.pause()
            await load.goes_on("while one of three hangs")
            leader.resume()
            await asyncio.to_thread(etcd.wait_until_ready)

    async def test() -> None:
        summary = await load_while(open_to(etcd), disturb, LONG_SESSION_TTL_MS)
        print(f"\netcd, {ROUNDS} leaders stopped: {summary}")

    run(test())


def test_without_a_majority_nothing_is_promised_and_everything_comes_back_by_itself(
    etcd: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        for member in etcd.members[:2]:
            member.kill()

    async def test() -> None:
        async with AsyncExitStack() as stack:
            store, other = open_to(etcd)(0), open_to(etcd)(1)
            stack.push_async_callback(store.close)
            stack.push_async_callback(other.close)
            await without_a_majority(store, other, lose, etcd.start, SESSION_TTL_MS, caplog)
        assert "is answering again" in caplog.text

    with caplog.at_level(logging.INFO, "tailrace.stores"):
        run(test())
