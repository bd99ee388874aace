"""A join always gets an answer, even if the coordinator ends before its records are committed."""

from __future__ import annotations

import asyncio

from tailrace.broker.handlers import join_group
from tailrace.broker.services import RequestContext
from tailrace.errors import ErrorCode
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.unit.groups.world import GROUP, REBALANCE_MS, SESSION_MS, GroupWorld, simulate, subscription


def test_a_classic_join_of_a_mixed_group_is_answered_when_the_broker_stops_before_it_is_kept() -> None:
    async def scenario(world: GroupWorld) -> None:
        await world.create_topic("orders", 2)
        newer = HeartbeatCall("m1", 0, rebalance_timeout_ms=5000, topics=frozenset(["orders"]), owned={})
        assert isinstance(await world.consumer(newer), HeartbeatResult)
        told = await world.join(protocols=(("range", subscription("orders")),), needs_known_id=True)
        assert told.error is ErrorCode.MEMBER_ID_REQUIRED
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=told.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))],
        )
        assert world.broker is not None
        context = RequestContext(7, "old", "PLAINTEXT", "10.0.0.1:5000", lambda: None)
        answer = join_group.handle(world.broker.services, context, request)
        assert asyncio.iscoroutine(answer), "its records are still to be synced"
        waiting = world.loop.create_task(answer)
        await asyncio.sleep(0)
        await world.node.stop()
        response = await waiting
        assert (response.error_code, response.member_id) == (ErrorCode.NOT_COORDINATOR, told.member_id)

    simulate(scenario, log_flush_interval_messages="1")
