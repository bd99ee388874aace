"""The classic protocol in virtual time: generations, timers, static members, refusals, and what survives a restart."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic_group import ClassicGroup, GroupState
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.groups.consumer_group import ConsumerGroup
from tests.unit.groups.world import GROUP, REBALANCE_MS, SESSION_MS, GroupWorld, simulate


def group(world: GroupWorld) -> ClassicGroup:
    found = world.shard.describe(GROUP)
    assert isinstance(found, ClassicGroup)
    return found


def test_members_that_come_within_the_first_delay_make_one_generation() -> None:
    async def scenario(world: GroupWorld) -> None:
        began = world.loop.time()
        first = world.join()
        await asyncio.sleep(1)
        second = world.join()
        one, two = await first, await second
        # The first delay is prolonged once, because somebody came.
        assert world.loop.time() - began == pytest.approx(6.0, abs=0.01)
        assert one.generation == two.generation == 1
        assert one.leader == two.leader == one.member_id
        assert {member.member_id for member in one.members} == {one.member_id, two.member_id}
        assert two.members == ()
        assert group(world).state is GroupState.COMPLETING_REBALANCE
        follower = world.sync(two.member_id, 1)
        await asyncio.sleep(0.1)
        assert not follower.done()
        leader = await world.sync(one.member_id, 1, {one.member_id: b"A", two.member_id: b"B"})
        assert leader.assignment == b"A"
        assert (await follower).assignment == b"B"
        assert group(world).state is GroupState.STABLE
        assert world.heartbeat(two.member_id, 1) is ErrorCode.NONE

    simulate(scenario)


def test_a_newcomer_has_to_come_back_with_its_id() -> None:
    async def scenario(world: GroupWorld) -> None:
        told = await world.join(needs_known_id=True)
        assert told.error is ErrorCode.MEMBER_ID_REQUIRED
        assert told.member_id.startswith("client-")
        joined = await world.join(told.member_id)
        assert joined.error is ErrorCode.NONE
        assert joined.member_id == told.member_id

    simulate(scenario)


def test_a_member_that_never_comes_back_with_its_id_holds_a_rebalance_up_no_longer_than_its_session() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        assert (await world.join(needs_known_id=True)).error is ErrorCode.MEMBER_ID_REQUIRED
        began = world.loop.time()
        again = await world.join(one.member_id)
        assert again.generation == 2
        assert world.loop.time() - began == pytest.approx(SESSION_MS / 1000, abs=0.1)

    simulate(scenario)


def test_a_silent_member_is_given_up_and_the_others_are_called_together() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = await world.form(2)
        for _ in range(4):
            await asyncio.sleep(3)
            code = world.heartbeat(one.member_id, 1)
        assert code is ErrorCode.REBALANCE_IN_PROGRESS
        assert world.heartbeat(two.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        again = await world.join(one.member_id)
        assert again.generation == 2
        assert [member.member_id for member in again.members] == [one.member_id]

    simulate(scenario)


def test_who_does_not_rejoin_within_the_rebalance_timeout_is_left_behind() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = await world.form(2, session_ms=300_000)
        third = world.join(session_ms=300_000)
        began = world.loop.time()
        first = world.join(one.member_id, session_ms=300_000)
        joined = await third
        assert world.loop.time() - began == pytest.approx(REBALANCE_MS / 1000, abs=0.1)
        assert (await first).generation == joined.generation == 2
        assert set(group(world).members) == {one.member_id, joined.member_id}
        assert world.heartbeat(two.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    simulate(scenario)


def test_members_that_never_ask_for_the_plan_are_given_up() -> None:
    async def scenario(world: GroupWorld) -> None:
        joins = [world.join(session_ms=300_000), world.join(session_ms=300_000)]
        one, two = [await join for join in joins]
        assert (await world.sync(one.member_id, 1, {})).error is ErrorCode.NONE
        await asyncio.sleep(REBALANCE_MS / 1000 + 1)
        assert world.heartbeat(one.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        assert two.member_id not in group(world).members

    simulate(scenario)


def test_the_last_one_leaves_an_empty_group_whose_generation_goes_on() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        assert await world.leave(one.member_id) is ErrorCode.NONE
        assert group(world).state is GroupState.EMPTY
        assert await world.leave(one.member_id) is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await world.join()).generation == 3

    simulate(scenario)


def test_the_protocol_that_most_prefer_among_those_that_all_know_is_chosen() -> None:
    async def scenario(world: GroupWorld) -> None:
        joins = [
            world.join(protocols=[("range", b"1"), ("sticky", b"s1")]),
            world.join(protocols=[("sticky", b"s2"), ("own", b"o"), ("range", b"2")]),
            world.join(protocols=[("sticky", b"s3"), ("range", b"3")]),
        ]
        results = [await join for join in joins]
        assert {result.protocol for result in results} == {"sticky"}
        leader = next(result for result in results if result.members)
        assert sorted(member.metadata for member in leader.members) == [b"s1", b"s2", b"s3"]

    simulate(scenario)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"protocols": [("other", b"")]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"session_ms": 10}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 3_600_000}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody", "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_does_not_fit_changes_nothing(options: dict, code: ErrorCode) -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        assert (await world.join(**options)).error is code
        assert set(group(world).members) == {one.member_id}
        assert world.heartbeat(one.member_id, 1) is ErrorCode.NONE

    simulate(scenario)


def test_requests_of_another_generation_or_of_strangers_are_refused() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        assert world.heartbeat(one.member_id, 0) is ErrorCode.ILLEGAL_GENERATION
        assert world.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await world.sync(one.member_id, 5)).error is ErrorCode.ILLEGAL_GENERATION
        assert (await world.sync("nobody", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
        wrong = await world.sync(one.member_id, 1, protocol_type="consumer", protocol="sticky")
        assert wrong.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    simulate(scenario)


def test_a_full_group_takes_nobody_more() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, _ = await world.form(2)
        assert (await world.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert world.heartbeat(one.member_id, 1) is ErrorCode.NONE

    simulate(scenario, group_max_size="2")


def test_a_member_whose_answer_was_lost_gets_it_again() -> None:
    async def scenario(world: GroupWorld) -> None:
        joins = [world.join(), world.join()]
        one, two = [await join for join in joins]
        again = await world.join(one.member_id)
        assert (again.generation, again.members) == (1, one.members)
        assert (await world.join(two.member_id)).generation == 1
        plan = {one.member_id: b"A", two.member_id: b"B"}
        await world.sync(one.member_id, 1, plan)
        assert (await world.sync(two.member_id, 1)).assignment == b"B"
        assert (await world.sync(two.member_id, 1)).assignment == b"B"
        assert (await world.join(two.member_id)).generation == 1

    simulate(scenario)


def test_a_leader_that_joins_again_starts_a_rebalance() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = await world.form(2)
        first = world.join(one.member_id)
        await asyncio.sleep(0.1)
        assert world.heartbeat(two.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        second = world.join(two.member_id)
        assert (await first).generation == (await second).generation == 2

    simulate(scenario)


# --- static members


def test_a_static_member_that_is_back_within_its_session_disturbs_nobody() -> None:
    async def scenario(world: GroupWorld) -> None:
        first, second = world.join(instance_id="a"), world.join(instance_id="b")
        one, two = await first, await second
        follower = world.sync(two.member_id, 1, instance_id="b")
        await world.sync(one.member_id, 1, {one.member_id: b"A", two.member_id: b"B"}, instance_id="a")
        await follower
        back = await world.join(instance_id="b")
        assert (back.generation, back.error) == (1, ErrorCode.NONE)
        assert back.member_id != two.member_id
        assert (await world.sync(back.member_id, 1, instance_id="b")).assignment == b"B"
        assert world.heartbeat(one.member_id, 1, "a") is ErrorCode.NONE
        assert world.heartbeat(two.member_id, 1, "b") is ErrorCode.FENCED_INSTANCE_ID
        leader = await world.join(instance_id="a")
        assert (leader.generation, leader.skip_assignment, len(leader.members)) == (1, True, 2)
        assert leader.leader == leader.member_id

    simulate(scenario)


def test_a_static_leader_that_cannot_skip_the_assignment_does_not_learn_that_it_leads() -> None:
    async def scenario(world: GroupWorld) -> None:
        one = await world.join(instance_id="a")
        await world.sync(one.member_id, 1, {one.member_id: b"A"}, instance_id="a")
        back = await world.join(instance_id="a", can_skip_assignment=False)
        assert back.leader == one.member_id
        assert back.leader != back.member_id
        assert (await world.sync(back.member_id, 1, instance_id="a")).assignment == b"A"

    simulate(scenario)


def test_a_static_member_that_stays_away_is_given_up_after_its_session() -> None:
    async def scenario(world: GroupWorld) -> None:
        one = await world.join(instance_id="a")
        await world.sync(one.member_id, 1, {}, instance_id="a")
        await asyncio.sleep(SESSION_MS / 1000 - 1)
        assert group(world).state is GroupState.STABLE
        await asyncio.sleep(2)
        assert group(world).state is GroupState.EMPTY

    simulate(scenario)


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    async def scenario(world: GroupWorld) -> None:
        one = await world.join(instance_id="a")
        await world.sync(one.member_id, 1, {}, instance_id="a")
        assert await world.leave("other", "a") is ErrorCode.FENCED_INSTANCE_ID
        assert await world.leave("", "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
        assert await world.leave("", "a") is ErrorCode.NONE
        assert group(world).state is GroupState.EMPTY

    simulate(scenario)


# --- what survives


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_stable_group_survives_its_coordinator(how: str) -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = await world.form(2)
        waiting = world.join()
        await asyncio.sleep(0.1)
        if how == "stop":
            await world.node.stop()
            assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        else:
            world.node.kill()
            waiting.cancel()
        await world.start()
        assert group(world).state is GroupState.STABLE
        assert group(world).leader == one.member_id
        assert world.heartbeat(two.member_id, 1) is ErrorCode.NONE
        assert (await world.sync(two.member_id, 1)).assignment == two.member_id.encode()
        # Nobody who was silent since the restart stays for ever.
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert group(world).state is GroupState.EMPTY

    simulate(scenario)


def test_a_plan_that_cannot_be_kept_is_told_to_nobody() -> None:
    async def scenario(world: GroupWorld) -> None:
        joins = [world.join(), world.join()]
        one, two = [await join for join in joins]
        follower = world.sync(two.member_id, 1)
        world.node.disk.capacity_bytes = world.node.disk.used_bytes
        leader = await world.sync(one.member_id, 1, {one.member_id: b"A"})
        assert leader.error is ErrorCode.NOT_COORDINATOR
        assert (await follower).error is ErrorCode.NOT_COORDINATOR
        assert group(world).state is GroupState.PREPARING_REBALANCE
        world.node.disk.capacity_bytes = None

    simulate(scenario)


def test_a_static_member_that_is_back_has_the_session_of_its_last_join() -> None:
    async def scenario(world: GroupWorld) -> None:
        one = await world.join(instance_id="a")
        await world.sync(one.member_id, 1, {}, instance_id="a")
        await asyncio.sleep(SESSION_MS / 1000 - 1)
        back = await world.join(instance_id="a", session_ms=2 * SESSION_MS)
        await asyncio.sleep(2 * SESSION_MS / 1000 - 1)
        assert list(group(world).members) == [back.member_id]
        await asyncio.sleep(2)
        assert group(world).state is GroupState.EMPTY

    simulate(scenario)


def test_what_members_know_beside_the_chosen_protocol_outlives_the_record_of_a_plan() -> None:
    async def scenario(world: GroupWorld) -> None:
        both = [("range", b"r"), ("sticky", b"s")]
        (one,) = await world.form(1, protocols=both)
        newcomer = world.join(protocols=[("sticky", b"s2")])
        again = world.join(one.member_id, protocols=both)
        assert (await newcomer).error is ErrorCode.NONE
        assert (await again).protocol == "sticky"

    simulate(scenario)


def full_disk(world: GroupWorld) -> None:
    world.node.disk.capacity_bytes = world.node.disk.used_bytes


def test_a_static_member_whose_return_cannot_be_written_is_still_the_one_it_was() -> None:
    async def scenario(world: GroupWorld) -> None:
        one = await world.join(instance_id="a")
        await world.sync(one.member_id, 1, {one.member_id: b"A"}, instance_id="a")
        full_disk(world)
        refused = await world.join(instance_id="a", client_id="another")
        assert refused.error is ErrorCode.NOT_COORDINATOR
        assert world.heartbeat(one.member_id, 1, "a") is ErrorCode.NONE
        assert world.heartbeat(refused.member_id, 1, "a") is ErrorCode.FENCED_INSTANCE_ID
        assert list(group(world).members) == [group(world).leader] == [one.member_id]
        assert group(world).members[one.member_id].client_id == "client"
        world.node.disk.capacity_bytes = None
        back = await world.join(instance_id="a", client_id="another")
        assert (back.error, back.generation) == (ErrorCode.NONE, 1)
        assert world.heartbeat(one.member_id, 1, "a") is ErrorCode.FENCED_INSTANCE_ID
        await world.node.stop()
        await world.start()
        assert group(world).members[back.member_id].client_id == "another"
        assert (await world.sync(back.member_id, 1, instance_id="a")).assignment == b"A"

    simulate(scenario)


def test_a_group_is_empty_when_its_journal_says_so() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        full_disk(world)
        assert await world.leave(one.member_id) is ErrorCode.NONE
        assert world.heartbeat(one.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert (group(world).state, group(world).generation) == (GroupState.PREPARING_REBALANCE, 1)
        world.node.disk.capacity_bytes = None
        await asyncio.sleep(6)
        assert (group(world).state, group(world).generation) == (GroupState.EMPTY, 2)
        world.node.kill()
        await world.start()
        assert (group(world).state, group(world).generation) == (GroupState.EMPTY, 2)
        assert (await world.join()).generation == 3

    simulate(scenario)


def test_members_that_come_while_the_empty_group_cannot_be_written_make_the_next_generation() -> None:
    async def scenario(world: GroupWorld) -> None:
        (one,) = await world.form(1)
        full_disk(world)
        assert await world.leave(one.member_id) is ErrorCode.NONE
        joins = [world.join(client_id="c1"), world.join(client_id="c2")]
        world.node.disk.capacity_bytes = None
        joined = [await join for join in joins]
        assert [each.generation for each in joined] == [2, 2]
        assert set(group(world).members) == {each.member_id for each in joined}

    simulate(scenario)


def test_nobody_is_told_of_a_plan_that_is_written_and_not_committed() -> None:
    async def scenario(world: GroupWorld) -> None:
        one, two = [await join for join in [world.join(), world.join()]]
        leader = world.sync(one.member_id, 1, {one.member_id: b"A", two.member_id: b"B"})
        follower = world.sync(two.member_id, 1)
        assert group(world).awaits_plan
        assert world.shard.list_groups()[0].state == GroupState.COMPLETING_REBALANCE
        assert world.heartbeat(two.member_id, 1) is ErrorCode.NONE
        with pytest.raises(KafkaError) as refusal:
            world.shard.classic.check_commit(group(world), two.member_id, None, 1)
        assert refusal.value.code is ErrorCode.REBALANCE_IN_PROGRESS
        # The leader believes that its plan was lost, and has made another one.
        again = world.sync(one.member_id, 1, {one.member_id: b"X", two.member_id: b"Y"})
        assert not follower.done()
        assert (await leader).error is ErrorCode.REBALANCE_IN_PROGRESS
        told = ((await again).assignment, (await follower).assignment)
        assert told == (b"A", b"B")
        assert world.shard.list_groups()[0].state == GroupState.STABLE
        world.node.kill()
        await world.start()
        assert tuple(member.assignment for member in group(world).members.values()) == told

    simulate(scenario, log_flush_interval_messages="1")


def test_a_classic_group_takes_the_place_of_an_empty_one_of_the_newer_protocol_or_nothing_changes() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 1)
        call = HeartbeatCall("m", 0, rebalance_timeout_ms=1000, topics=frozenset({"orders"}), owned={})
        assert isinstance(await world.consumer(call), HeartbeatResult)
        assert isinstance(await world.consumer(HeartbeatCall("m", -1)), HeartbeatResult)
        full_disk(world)
        assert (await world.join(protocol_type="")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await world.join()).error is ErrorCode.NOT_COORDINATOR
        assert isinstance(world.shard.describe(GROUP), ConsumerGroup)
        world.node.disk.capacity_bytes = None
        assert (await world.join(protocol_type="")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert isinstance(world.shard.describe(GROUP), ConsumerGroup)
        (one,) = await world.form(1)
        world.node.kill()
        await world.start()
        assert world.heartbeat(one.member_id, 1) is ErrorCode.NONE

    simulate(scenario)


def test_a_member_without_any_time_to_join_does_not_keep_the_coordinator_busy() -> None:
    async def scenario(world: GroupWorld) -> None:
        first = await world.join(instance_id="one")
        assert (await world.sync(first.member_id, 1, {first.member_id: b""}, instance_id="one")).error is ErrorCode.NONE
        back = await world.join(instance_id="one", rebalance_ms=0)
        joining = world.join(rebalance_ms=0)
        (other,) = [member_id for member_id in group(world).members if member_id != back.member_id]
        assert await world.leave(other) is ErrorCode.NONE
        assert (await joining).error is ErrorCode.UNKNOWN_MEMBER_ID
        await asyncio.sleep(0)
        waiting = group(world).rebalance
        for _ in range(20):
            await asyncio.sleep(0)
        assert group(world).state is GroupState.PREPARING_REBALANCE
        assert group(world).rebalance is waiting, "it looks again and again whether somebody has joined"
        assert (await world.join(back.member_id, instance_id="one", rebalance_ms=0)).generation == 2

    simulate(scenario)
