"""One controller at a time, and none that was deposed can write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tailrace.cluster.election import Election, FencedError
from tailrace.cluster.keys import CONTROLLER, CONTROLLER_EPOCH, ElectedController, epoch_from_bytes
from tailrace.cluster.store import Check, Unavailable, Write
from tailrace.stores.memory import MemorySpace, MemoryStore
from tests.unit.cluster.worlds import World, run


class LosingStore(MemoryStore):
    """A store that applies a transaction, or not, and does not answer."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space)
        self.applies: bool | None = None

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        if self.applies is None:
            return await super().txn(checks, writes)
        if self.applies:
            await super().txn(checks, writes)
        raise Unavailable("no answer")


async def epoch(world: World) -> int:
    entry = await world.store.get(CONTROLLER_EPOCH)
    assert entry is not None
    return epoch_from_bytes(entry.value)


def test_of_many_who_campaign_one_is_elected_and_the_next_one_is_of_the_next_epoch() -> None:
    async def test(world: World) -> None:
        stores = [MemoryStore(world.space) for _ in range(4)]
        sessions = [await store.open_session(9000) for store in stores]
        elections = [Election(store, number) for number, store in enumerate(stores)]
        for expected in (1, 2, 3):
            fences = await asyncio.gather(
                *(each.campaign(session) for each, session in zip(elections, sessions, strict=True))
            )
            (winner,) = [number for number, fence in enumerate(fences) if fence is not None]
            fence = fences[winner]
            assert fence is not None
            assert fence.epoch == await epoch(world) == expected
            assert await elections[winner].renew(fence) == [fence.check]
            await sessions[winner].close()
            assert await world.store.get(CONTROLLER) is None
            sessions[winner] = await stores[winner].open_session(9000)

    run(test)


def test_a_controller_that_was_deposed_is_refused_by_the_store() -> None:
    async def test(world: World) -> None:
        one, two = MemoryStore(world.space), MemoryStore(world.space)
        first = await Election(one, 1).campaign(await one.open_session(9000))
        assert first is not None
        assert await one.txn([first.check], [Write("/a", b"1")]) is not None
        one.abandon()  # paused, say
        await asyncio.sleep(10)
        second = await Election(two, 2).campaign(await two.open_session(9000))
        assert second is not None
        assert await two.txn([first.check], [Write("/a", b"2")]) is None
        assert await two.txn([second.check], [Write("/a", b"3")]) is not None
        with pytest.raises(FencedError, match="after epoch 1"):
            await Election(two, 1).renew(first)

    run(test)


def test_a_broker_that_is_back_before_its_old_session_has_ended_rules_in_a_new_epoch() -> None:
    async def test(world: World) -> None:
        before, after = MemoryStore(world.space), MemoryStore(world.space)
        first = await Election(before, 1).campaign(await before.open_session(9000))
        before.abandon()
        second = await Election(after, 1).campaign(await after.open_session(9000))
        assert first is not None
        assert second is not None
        assert second.epoch == 2
        await asyncio.sleep(20)
        entry = await world.store.get(CONTROLLER)
        assert entry is not None
        assert ElectedController.from_bytes(entry.value) == (1, 2)

    run(test)


@pytest.mark.parametrize("applies", [True, False])
def test_an_election_that_was_not_answered_is_found_out_about(applies: bool) -> None:
    async def test(world: World) -> None:
        store = LosingStore(world.space)
        session = await store.open_session(9000)
        store.applies = applies
        fence = await Election(store, 1).campaign(session)
        assert (fence is not None) == applies
        store.applies = None
        if fence is not None:
            assert await store.txn([fence.check], [Write("/a", b"1")]) is not None

    run(test)


def test_who_resigns_is_followed_at_once_and_takes_nobody_elses_place() -> None:
    async def test(world: World) -> None:
        one, two = MemoryStore(world.space), MemoryStore(world.space)
        sessions = await one.open_session(9000), await two.open_session(9000)
        first = await Election(one, 1).campaign(sessions[0])
        assert first is not None
        await Election(one, 1).resign(first)
        second = await Election(two, 2).campaign(sessions[1])
        assert second is not None
        await Election(one, 1).resign(first)
        await Election(two, 2).resign(first)
        assert await world.store.get(CONTROLLER) is not None

    run(test)
