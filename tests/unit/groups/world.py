"""A broker in virtual time, and members that speak to the shard of one group: what all group tests start from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tailrace.broker.assembly import Broker
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic import Identity, JoinCall, SyncCall
from tailrace.groups.classic_group import JoinResult, MemberProtocol, SyncResult
from tailrace.groups.consumer import HeartbeatCall, HeartbeatResult
from tailrace.groups.shard import GroupShard
from tailrace.groups.subscription import ConsumerProtocolSubscription, encode_subscription
from tailrace.model import TopicPartition
from tailrace.runtime.outcome import Outcome
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import SimNode

T = TypeVar("T")
GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class GroupWorld:
    """One broker and one group."""

    def __init__(self, loop: SimLoop, settings: dict[str, str]) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, loop.random_for("network"))
        defaults = {"offsets.topic.num.partitions": "3", "group.initial.rebalance.delay.ms": "3000"}
        self.node = SimNode(loop, self.network, "broker", {**defaults, **settings})
        self.broker: Broker | None = None

    async def start(self) -> None:
        self.broker = await self.node.start()
        await self.broker.groups.locate(GROUP, "PLAINTEXT")
        # Virtual time: whatever has to be loaded is loaded by then.
        await asyncio.sleep(1)
        assert not self.broker.groups.is_loading

    async def create_topic(self, name: str, partitions: int) -> None:
        assert self.broker is not None
        await self.broker.metadata.create_topic(self.broker.metadata.plan_topic(name, partitions, 1, {}, {}))

    @property
    def shard(self) -> GroupShard:
        assert self.broker is not None
        return self.broker.groups.shard(GROUP)

    # --- the classic protocol

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"r"),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        needs_known_id: bool = False,
        can_skip_assignment: bool = True,
        client_id: str = "client",
    ) -> asyncio.Task[JoinResult]:
        """Send a join; the task ends with its answer, a refusal is an answer with an error."""
        call = JoinCall(
            member_id,
            instance_id,
            client_id,
            "/host",
            session_ms,
            rebalance_ms,
            protocol_type,
            tuple(MemberProtocol(name, metadata) for name, metadata in protocols),
            needs_known_id,
            can_skip_assignment,
        )
        return self._task(lambda: self.shard.join(GROUP, call), lambda code: JoinResult(code, member_id=member_id))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> asyncio.Task[SyncResult]:
        call = SyncCall(member_id, instance_id, generation, protocol_type, protocol, assignments or {})
        return self._task(lambda: self.shard.sync(GROUP, call), SyncResult)

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        try:
            return self.shard.heartbeat(GROUP, member_id, instance_id, generation)
        except KafkaError as error:
            return error.code

    async def leave(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        try:
            left = await now(self.shard.leave(GROUP, [Identity(member_id, instance_id)]))
        except KafkaError as error:
            return error.code
        return left[0].error

    async def form(self, count: int, **options: Any) -> list[JoinResult]:
        """A stable group of this many members, each assigned its own id; the leader's join comes first."""
        joins = [self.join(client_id=f"c{number}", **options) for number in range(count)]
        joined = [await join for join in joins]
        leader = next(result for result in joined if result.member_id == result.leader)
        plan = {result.member_id: result.member_id.encode() for result in joined}
        syncs = [
            self.sync(result.member_id, result.generation, plan if result is leader else None) for result in joined
        ]
        for sync in syncs:
            assert (await sync).error is ErrorCode.NONE
        return [leader, *(result for result in joined if result is not leader)]

    def _task(self, call: Callable[[], Any], refused: Callable[[ErrorCode], T]) -> asyncio.Task[T]:
        try:
            result = call()
        except KafkaError as error:
            result = refused(error.code)
        return self.loop.create_task(now(result))

    # --- the newer protocol

    async def consumer(self, call: HeartbeatCall) -> HeartbeatResult | KafkaError:
        """One heartbeat; a refusal is returned."""
        try:
            return await now(self.shard.consumer_heartbeat(GROUP, call))
        except KafkaError as error:
            return error


async def committing(result: tuple[dict[TopicPartition, ErrorCode], Outcome[None] | None]) -> Any:
    """What a commit was refused for, when the rest of it is committed."""
    refused, written = result
    if written is not None:
        await written
    return refused


async def now(result: Any) -> Any:
    """The value of a result that may be a future."""
    return await result if isinstance(result, Awaitable) else result


def subscription(*topics: str, version: int = 1) -> bytes:
    """What a consumer's member says when it joins."""
    return encode_subscription(ConsumerProtocolSubscription(topics=list(topics)), version)


def simulate(scenario: Callable[[GroupWorld], Coroutine[Any, Any, None]], seed: int = 1, **settings: str) -> None:
    """Run a scenario on a started broker; settings are keys with underscores for dots."""
    loop = SimLoop(seed, max_virtual_seconds=24 * 3600)

    async def main() -> None:
        world = GroupWorld(loop, {key.replace("_", "."): value for key, value in settings.items()})
        await world.start()
        await scenario(world)
        await world.node.stop()

    loop.run(main())
