"""Members that join and never return use bounded memory of the broker, and leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import ErrorCode
from tailrace.groups import newcomers
from tailrace.groups.classic import JoinCall
from tailrace.groups.classic_group import MemberProtocol
from tailrace.groups.newcomers import Newcomers
from tests.unit.groups.world import GROUP, GroupWorld, simulate

ROOM_FOR = 20


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers.Newcomers.__init__, "__defaults__", (ROOM_FOR * 2_100,))


def known_newcomers(world: GroupWorld) -> Newcomers:
    return world.shard.classic._newcomers


def ask_to_join(world: GroupWorld, group_id: str) -> str:
    """The first request of a client that does not come back; the id that it is given."""
    call = JoinCall("", None, "c", "/host", 1_800_000, 60_000, "consumer", (MemberProtocol("range", b""),), True, True)
    assert world.broker is not None
    result = world.broker.groups.shard(group_id).join(group_id, call)
    assert not isinstance(result, asyncio.Future)
    assert result.error is ErrorCode.MEMBER_ID_REQUIRED
    return result.member_id


def test_clients_that_ask_for_ids_and_never_come_back_are_bounded() -> None:
    async def scenario(world: GroupWorld) -> None:
        ids = [ask_to_join(world, GROUP) for _ in range(10 * ROOM_FOR)]
        group = world.shard.describe(GROUP)
        assert len(group.pending) == len(known_newcomers(world)) == ROOM_FOR  # type: ignore[union-attr]
        # Those that came last are still waited for; an earlier one has to begin anew.
        assert (await world.join(ids[0])).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await world.join(ids[-1])).error is ErrorCode.NONE

    simulate(scenario)


def test_a_group_that_nobody_came_back_to_is_gone_at_once() -> None:
    async def scenario(world: GroupWorld) -> None:
        for number in range(10 * ROOM_FOR):
            ask_to_join(world, f"group {number}")
        assert world.broker is not None
        listed = [one for shard in world.broker.groups for one in shard.list_groups()]
        assert len(listed) == ROOM_FOR
        await asyncio.sleep(1801)
        assert [one for shard in world.broker.groups for one in shard.list_groups()] == []
        assert len(known_newcomers(world)) == 0

    simulate(scenario, offsets_retention_check_interval_ms="36000000")


def test_members_that_never_ask_for_their_assignment_are_bounded_by_what_they_sent() -> None:
    async def scenario(world: GroupWorld) -> None:
        joins = [world.join(protocols=[("range", bytes(4_100))], session_ms=1_800_000) for _ in range(4 * ROOM_FOR)]
        group = world.shard.describe(GROUP)
        assert len(group.members) < ROOM_FOR / 2
        results = [await join for join in joins]
        told = [result.error for result in results]
        assert told.count(ErrorCode.NONE) == len(group.members)
        assert told.count(ErrorCode.UNKNOWN_MEMBER_ID) == len(joins) - len(group.members)
        # Also members that heard nothing after their answer.
        flood = [ask_to_join(world, "another") for _ in range(2 * ROOM_FOR)]
        assert group.members == {}
        assert len(flood) > len(known_newcomers(world)) == ROOM_FOR

    simulate(scenario)


def test_who_has_come_back_is_not_given_up_for_others() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = await world.form(2, session_ms=1_800_000)
        for _ in range(10 * ROOM_FOR):
            ask_to_join(world, "another")
        assert world.heartbeat(one.member_id, one.generation) is ErrorCode.NONE
        assert world.heartbeat(two.member_id, two.generation) is ErrorCode.NONE

    simulate(scenario)


def test_nothing_is_kept_of_newcomers_that_left_or_whose_group_moved() -> None:
    async def scenario(world: GroupWorld) -> None:
        assert await world.leave(ask_to_join(world, GROUP)) is ErrorCode.NONE
        assert world.shard.list_groups() == []
        waiting = world.join()
        ask_to_join(world, GROUP)
        known = known_newcomers(world)
        assert len(known) == 2
        assert world.broker is not None
        world.broker.groups.close()
        assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        assert len(known) == 0

    simulate(scenario)
