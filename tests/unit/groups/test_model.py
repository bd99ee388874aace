"""The classic coordinator against a model that fits on a page: whatever members do, in any order, both answer alike.

Hypothesis chooses who joins, rejoins, syncs, beats, commits, leaves or falls silent, and when the broker is killed. The
model knows the rules of the protocol and no timers: rebalance timeouts are too long to end here (they have tests of
their own), and a member that is silent for a while is simply gone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic import ClassicProtocol
from tailrace.groups.classic_group import ClassicGroup, GroupState, JoinResult, SyncResult
from tailrace.model import TopicPartition
from tailrace.testing.loop import SimLoop
from tests.unit.groups.world import GROUP, SESSION_MS, GroupWorld, committing, now

MAX_MEMBERS = 5
#: So long that no rebalance ends because of it.
REBALANCE_MS = 10 * 3_600_000
#: Longer than a session, shorter than two.
SILENCE_SECONDS = SESSION_MS / 1000 + 2
BEAT_SECONDS = 3
STEP_SECONDS = 0.01
#: A newcomer that waits to join is given up after five minutes; these runs stay below that.
MAX_SILENCES = 20
PLACE = TopicPartition("orders", 0)

choices = st.integers(0, MAX_MEMBERS + 1)


@dataclass
class Actor:
    """Somebody who was once a member, and what it was last told."""

    member_id: str
    generation: int
    metadata: bytes


@dataclass
class Expectation:
    """A request without an answer; what the answer has to be, once the model knows."""

    task: asyncio.Task[Any]
    is_right: Callable[[Any], bool] | None = None


@dataclass
class Model:
    """A classic group as its members see it."""

    exists: bool = False
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    #: Metadata of each member.
    members: dict[str, bytes] = field(default_factory=dict)
    joining: dict[str, Expectation] = field(default_factory=dict)
    syncing: dict[str, Expectation] = field(default_factory=dict)
    leader: str = ""
    plan: dict[str, bytes] = field(default_factory=dict)
    offset: int | None = None
    #: What a new coordinator would find: generation, members with metadata, plan, leader.
    kept: tuple[int, dict[str, bytes], dict[str, bytes], str] | None = None

    def refuse(self, waiting: dict[str, Expectation], member_id: str, error: ErrorCode) -> None:
        expectation = waiting.pop(member_id, None)
        if expectation is not None:
            expectation.is_right = lambda result: result.error is error

    def prepare(self) -> None:
        """Members have to come together."""
        for member_id in list(self.syncing):
            self.refuse(self.syncing, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        self.state = GroupState.PREPARING_REBALANCE
        self.complete_if_all_joined()

    def complete_if_all_joined(self) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or set(self.joining) != set(self.members):
            return
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.plan = {}
            self.kept = (self.generation, {}, {}, "")
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.plan = {}
        generation, names = self.generation, set(self.members)
        for member_id in list(self.joining):
            expectation = self.joining.pop(member_id)
            expectation.is_right = lambda result: _is_of_generation(result, generation, names)

    def remove(self, gone: list[str]) -> None:
        gone = [member_id for member_id in gone if member_id in self.members]
        if not gone:
            return
        for member_id in gone:
            del self.members[member_id]
            self.refuse(self.joining, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
            self.refuse(self.syncing, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined()
        else:
            self.prepare()


def _is_of_generation(result: JoinResult, generation: int, names: set[str]) -> bool:
    shown = {member.member_id for member in result.members}
    return (
        result.error is ErrorCode.NONE
        and result.generation == generation
        and result.leader in names
        and shown == (names if result.member_id == result.leader else set())
    )


class ClassicGroupMachine(RuleBasedStateMachine):
    """Drives a broker in virtual time and the model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(7, max_virtual_seconds=24 * 3600)
        self.actors: list[Actor] = []
        self.model = Model()
        #: Every request that waits or has just been answered.
        self.open: list[tuple[Expectation, Actor | None]] = []
        self.next_offset = 0
        self.silences = 0

    # --- running

    @initialize()
    def start(self) -> None:
        async def begin() -> GroupWorld:
            world = GroupWorld(self.loop, {"group.initial.rebalance.delay.ms": "0"})
            await world.start()
            await world.create_topic("orders", 1)
            return world

        self.world = self.loop.run_until_complete(begin())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for expectation, _ in self.open:
                expectation.task.cancel()
            self.loop.run(self.world.node.stop())

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        async def then_settle() -> Any:
            result = await step
            await asyncio.sleep(STEP_SECONDS)
            return result

        return self.loop.run_until_complete(then_settle())

    def actor(self, choice: int) -> Actor | None:
        """One of the members, or of the two who were last let go."""
        members = [actor for actor in self.actors if actor.member_id in self.model.members]
        others = [actor for actor in self.actors if actor.member_id not in self.model.members]
        candidates = [*members, *others[-2:]]
        return candidates[choice % len(candidates)] if candidates else None

    def ask(self, task: asyncio.Task[Any], actor: Actor | None) -> Expectation:
        expectation = Expectation(task)
        self.open.append((expectation, actor))
        return expectation

    def settle(self) -> None:
        """Compare answers: what the model says is answered is, rightly, and the rest still waits."""
        waiting: list[tuple[Expectation, Actor | None]] = []
        for expectation, actor in self.open:
            task = expectation.task
            if expectation.is_right is None:
                assert not task.done(), f"answered too early: {task.result()}"
                waiting.append((expectation, actor))
                continue
            assert task.done(), "not answered"
            result = task.result()
            assert expectation.is_right(result), f"{result} does not fit {self.model}"
            if isinstance(result, JoinResult) and result.error is ErrorCode.NONE:
                self.model.leader = result.leader
                if actor is None:
                    # Under this name it is known from now on.
                    continue
                actor.generation = result.generation
        self.open = waiting

    # --- what members do

    @precondition(lambda self: len(self.model.members) < MAX_MEMBERS)
    @rule(metadata=st.sampled_from([b"a", b"b"]))
    def somebody_joins(self, metadata: bytes) -> None:
        model = self.model

        async def step() -> asyncio.Task[JoinResult]:
            return self.world.join(protocols=(("range", metadata),), rebalance_ms=REBALANCE_MS)

        task = self.run(step())
        # Its name is the coordinator's choice: it is read off the group.
        group = self.described()
        assert group is not None
        (member_id,) = set(group.members) - set(model.members)
        actor = Actor(member_id, -1, metadata)
        self.actors.append(actor)
        expectation = self.ask(task, actor)
        model.exists = True
        model.members[member_id] = metadata
        model.joining[member_id] = expectation
        if model.state is GroupState.PREPARING_REBALANCE:
            model.complete_if_all_joined()
        else:
            model.prepare()
        self.settle()

    @rule(choice=choices, metadata=st.sampled_from([b"a", b"b"]))
    def somebody_joins_again(self, choice: int, metadata: bytes) -> None:
        actor, model = self.actor(choice), self.model
        if actor is None:
            return

        async def step() -> asyncio.Task[JoinResult]:
            return self.world.join(actor.member_id, protocols=(("range", metadata),), rebalance_ms=REBALANCE_MS)

        expectation = self.ask(self.run(step()), actor)
        member_id = actor.member_id
        if member_id not in model.members:
            expectation.is_right = lambda result: result.error is ErrorCode.UNKNOWN_MEMBER_ID
            self.settle()
            return
        is_unchanged = model.members[member_id] == metadata
        actor.metadata = metadata
        is_leader = member_id == model.leader
        answered_at_once = is_unchanged and (
            model.state is GroupState.COMPLETING_REBALANCE or (model.state is GroupState.STABLE and not is_leader)
        )
        if answered_at_once:
            generation = model.generation
            names = set(model.members)
            if model.state is GroupState.COMPLETING_REBALANCE:
                expectation.is_right = lambda result: _is_of_generation(result, generation, names)
            else:
                expectation.is_right = lambda result: (result.error, result.generation) == (ErrorCode.NONE, generation)
        else:
            model.refuse(model.joining, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            model.members[member_id] = metadata
            model.joining[member_id] = expectation
            if model.state is GroupState.PREPARING_REBALANCE:
                model.complete_if_all_joined()
            else:
                model.prepare()
        self.settle()

    @rule(choice=choices, is_current=st.booleans() | st.just(True))
    def somebody_asks_for_its_assignment(self, choice: int, is_current: bool) -> None:
        actor, model = self.actor(choice), self.model
        if actor is None:
            return
        member_id = actor.member_id
        generation = actor.generation if is_current else actor.generation - 1
        plan = {name: b"%d %s" % (generation, name.encode()) for name in model.members}
        is_leader = member_id == model.leader

        async def step() -> asyncio.Task[SyncResult]:
            return self.world.sync(member_id, generation, plan if is_leader else None)

        expectation = self.ask(self.run(step()), actor)
        error = self.refusal(member_id, generation)
        if error is ErrorCode.NONE and model.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            expectation.is_right = lambda result: result.error is error
        elif model.state is GroupState.STABLE:
            share = model.plan.get(member_id, b"")
            expectation.is_right = lambda result: (result.error, result.assignment) == (ErrorCode.NONE, share)
        else:
            model.refuse(model.syncing, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            model.syncing[member_id] = expectation
            if is_leader:
                model.state, model.plan = GroupState.STABLE, plan
                model.kept = (model.generation, dict(model.members), dict(plan), model.leader)
                for name in list(model.syncing):
                    _expect_share(model.syncing.pop(name), plan[name])
        self.settle()

    @rule()
    def everybody_does_what_is_due(self) -> None:
        """As clients do who have nothing else in mind: the group is stable afterwards."""
        for due in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            members = [actor for actor in self.actors if actor.member_id in self.model.members]
            for number, actor in enumerate(members):
                if self.model.state is not due:
                    break
                if due is GroupState.PREPARING_REBALANCE:
                    if actor.member_id not in self.model.joining:
                        self.somebody_joins_again(number, actor.metadata)
                elif actor.member_id not in self.model.syncing or actor.member_id == self.model.leader:
                    self.somebody_asks_for_its_assignment(number, True)
        assert self.model.state in (GroupState.STABLE, GroupState.EMPTY)

    @rule(choice=choices, is_current=st.booleans())
    def somebody_beats(self, choice: int, is_current: bool) -> None:
        actor = self.actor(choice)
        if actor is None:
            return
        generation = actor.generation if is_current else actor.generation + 1
        expected = self.refusal(actor.member_id, generation)
        if expected is ErrorCode.NONE and self.model.state is GroupState.PREPARING_REBALANCE:
            expected = ErrorCode.REBALANCE_IN_PROGRESS

        async def step() -> ErrorCode:
            return self.world.heartbeat(actor.member_id, generation)

        assert self.run(step()) is expected

    @rule(choice=choices, is_current=st.booleans() | st.just(True))
    def somebody_commits(self, choice: int, is_current: bool) -> None:
        actor, model = self.actor(choice), self.model
        if actor is None:
            return
        generation = actor.generation if is_current else actor.generation + 1
        expected = self.refusal(actor.member_id, generation)
        if not model.exists:
            # A generation of a group that nobody knows.
            expected = ErrorCode.GROUP_ID_NOT_FOUND if generation != -1 else ErrorCode.NONE
        elif expected is ErrorCode.NONE and model.state is GroupState.COMPLETING_REBALANCE:
            expected = ErrorCode.REBALANCE_IN_PROGRESS
        self.commit(actor.member_id, generation, expected)

    @rule()
    def an_outsider_commits(self) -> None:
        self.commit("", -1, ErrorCode.UNKNOWN_MEMBER_ID if self.model.members else ErrorCode.NONE)

    def commit(self, member_id: str, generation: int, expected: ErrorCode) -> None:
        self.next_offset += 1
        offset = self.next_offset

        async def step() -> ErrorCode:
            try:
                places = [(PLACE, offset, -1, "")]
                refused = await committing(self.world.shard.commit(GROUP, member_id, None, generation, -1, places))
                return refused.get(PLACE, ErrorCode.NONE)
            except KafkaError as error:
                return error.code

        assert self.run(step()) is expected
        if expected is ErrorCode.NONE:
            self.model.offset = offset

    @rule(choice=choices)
    def somebody_leaves(self, choice: int) -> None:
        actor, model = self.actor(choice), self.model
        if actor is None:
            return
        expected = ErrorCode.NONE if actor.member_id in model.members else ErrorCode.UNKNOWN_MEMBER_ID
        assert self.run(self.world.leave(actor.member_id)) is expected
        model.remove([actor.member_id])
        self.settle()

    @precondition(lambda self: self.silences < MAX_SILENCES)
    @rule(alive=st.sets(choices))
    def time_passes_in_which_only_some_beat(self, alive: set[int]) -> None:
        self.silences += 1
        model = self.model
        waiting = {*model.joining, *model.syncing}
        beating = [
            actor
            for number, actor in enumerate(self.actors)
            if number % MAX_MEMBERS in alive and actor.member_id not in waiting
        ]
        kept = waiting | {actor.member_id for actor in beating if actor.generation == model.generation}

        async def step() -> None:
            for _ in range(int(SILENCE_SECONDS / BEAT_SECONDS)):
                for actor in beating:
                    self.world.heartbeat(actor.member_id, actor.generation)
                await asyncio.sleep(BEAT_SECONDS)

        self.run(step())
        model.remove([member_id for member_id in model.members if member_id not in kept])
        self.settle()

    # --- what operators do, and fate

    @rule()
    def the_group_is_deleted(self) -> None:
        model = self.model
        if model.members:
            expected = ErrorCode.NON_EMPTY_GROUP
        elif model.exists or model.offset is not None:
            expected = ErrorCode.NONE
        else:
            expected = ErrorCode.GROUP_ID_NOT_FOUND

        async def step() -> ErrorCode:
            try:
                return await now(self.world.shard.delete_group(GROUP))
            except KafkaError as error:
                return error.code

        assert self.run(step()) is expected
        if expected is ErrorCode.NONE:
            self.model = Model()

    @rule()
    def the_broker_is_killed_and_started_again(self) -> None:
        for expectation, _ in self.open:
            expectation.task.cancel()
        self.open.clear()
        self.world.node.kill()
        self.run(self.world.start())
        kept, offset = self.model.kept, self.model.offset
        self.model = Model(offset=offset)
        if kept is None:
            return
        generation, members, plan, leader = kept
        self.model = Model(
            exists=True,
            state=GroupState.STABLE if members else GroupState.EMPTY,
            generation=generation,
            members=dict(members),
            leader=leader,
            plan=dict(plan),
            offset=offset,
            kept=kept,
        )

    # --- what always holds

    def refusal(self, member_id: str, generation: int) -> ErrorCode:
        if member_id not in self.model.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.model.generation else ErrorCode.ILLEGAL_GENERATION

    def described(self) -> ClassicGroup | None:
        try:
            group = self.world.shard.describe(GROUP)
        except KafkaError:
            return None
        assert isinstance(group, ClassicGroup)
        return group

    @invariant()
    def the_group_is_as_the_model_says(self) -> None:
        if not hasattr(self, "world"):
            return
        group, model = self.described(), self.model
        if not model.exists:
            assert group is None or (model.offset is not None and not group.members)
            return
        assert group is not None
        assert (group.state, group.generation) == (model.state, model.generation)
        assert set(group.members) == set(model.members)
        assert group.leader in group.members or not group.members

    @invariant()
    def the_committed_offset_is_the_last_that_was_acknowledged(self) -> None:
        if hasattr(self, "world"):
            committed = self.world.shard.offsets.of_group(GROUP).get(PLACE)
            assert (None if committed is None else committed.offset) == self.model.offset


def _expect_share(expectation: Expectation, share: bytes) -> None:
    expectation.is_right = lambda result: (result.error, result.assignment) == (ErrorCode.NONE, share)


LIMITS = settings(
    max_examples=int(os.environ.get("TAILRACE_MODEL_EXAMPLES", "60")),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestClassicGroup = ClassicGroupMachine.TestCase
TestClassicGroup.settings = LIMITS


def fails() -> None:
    """Run the machine on a coordinator that somebody broke; the smallest example is nobody's concern here."""
    quick = settings(LIMITS, max_examples=200, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        run_state_machine_as_test(ClassicGroupMachine, settings=quick)  # type: ignore[no-untyped-call]


def test_the_model_catches_a_coordinator_that_takes_commits_from_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicProtocol, "check_commit", lambda *arguments: None)
    fails()


def test_the_model_catches_a_coordinator_that_answers_a_plan_it_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(protocol: ClassicProtocol, group: ClassicGroup, assignments: dict[str, bytes]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(ClassicProtocol, "_write", forget)
    fails()


def test_the_model_catches_a_generation_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ClassicGroup.begin_generation

    def begin_again(group: ClassicGroup) -> None:
        begin(group)
        group.generation = max(1, group.generation - (group.generation == 3))

    monkeypatch.setattr(ClassicGroup, "begin_generation", begin_again)
    fails()
