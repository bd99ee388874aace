"""Three replicas against a model that fits on a page: whatever happens to them, what was committed stays as it is.

Hypothesis chooses who appends, fetches, answers late, is killed, loses power, starts again or is elected, when the
image reaches whom, and what the store says of a change of the ISR. The replicas are the broker's own, on disks that
lose what was not synced; store and controller are the model: a state that changes under the rules of the cluster.
Power is never cut where it would take the last replica that has everything: nothing could be promised then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tailrace.cluster.image import PartitionState
from tailrace.cluster.metadata import IsrChange
from tailrace.errors import KafkaError
from tailrace.replication.acknowledging import ACKS_ALL
from tailrace.replication.following import Following
from tailrace.replication.isr import UNBOUNDED, Followers
from tailrace.replication.partition import Partition
from tailrace.storage.leader_epochs import LeaderEpochs
from tailrace.storage.log_config import LogConfig
from tailrace.testing.loop import SimLoop
from tests.unit.replication.replicas import LAG_MS, Fetched, Replica
from tests.unit.storage.logs import BATCH_BYTES

T = TypeVar("T")

IDS = (1, 2, 3)
NOBODY = -1
brokers = st.sampled_from(IDS)


class ReplicationMachine(RuleBasedStateMachine):
    """Replicas, the store's state of their partition, and what was acknowledged."""

    @initialize(seed=st.integers(0, 1 << 32), flush_messages=st.sampled_from((1, 2**63 - 1)))
    def begin(self, seed: int, flush_messages: int) -> None:
        self.loop = SimLoop(seed)
        config = LogConfig(index_interval_bytes=0, segment_bytes=6 * BATCH_BYTES, flush_messages=flush_messages)

        async def start() -> dict[int, Replica]:
            return {number: Replica(self.loop, number, config) for number in IDS}

        self.replicas = self.run(start())
        self.state = PartitionState(IDS, IDS, 1, 0)
        #: The incarnations that are registered: those of brokers whose session has not ended.
        self.registered = dict.fromkeys(IDS, 1)
        self.number = 0
        #: Acknowledged with acks=all, by offset.
        self.acknowledged: dict[int, bytes] = {}
        #: Who lost power since it was last taken into the ISR.
        self.doubtful: dict[int, None] = {}
        #: Answers on their way, and changes of the ISR that a leader has not heard of.
        self.answers: dict[int, Fetched] = {}
        self.unheard: dict[int, IsrChange] = {}
        self.high_watermarks: dict[tuple[int, int], int] = {}
        for replica in self.replicas.values():
            self.show(replica)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return

        async def end() -> None:
            for replica in self.replicas.values():
                if replica.is_up:
                    await replica.crash(power_cut=False)

        self.loop.run(end())

    def show(self, replica: Replica) -> None:
        """Let a replica see the image as it is now."""
        replica.partition.min_insync_replicas = 2
        replica.apply(self.state, dict(self.registered))

    def up(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.is_up]

    def settle(self) -> None:
        self.run(asyncio.sleep(0.05))

    # --- clients

    @rule(number=brokers, count=st.integers(1, 3), acks=st.sampled_from((ACKS_ALL, ACKS_ALL, 1)))
    def append(self, number: int, count: int, acks: int) -> None:
        replica = self.replicas[number]
        if not replica.is_up:
            return
        self.number += 1
        value = b"%07d" % self.number

        async def produce() -> None:
            last = replica.append(value, acks, count)
            future = replica.partition.acknowledging.wait_for(last, acks)
            offsets = range(last - count + 1, last + 1)
            if acks == ACKS_ALL:
                future.add_done_callback(lambda done: self.heard(done, offsets, value))

        try:
            self.run(produce())
        except KafkaError:
            pass

    def heard(self, done: asyncio.Future[None], offsets: range, value: bytes) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        for offset in offsets:
            assert self.acknowledged.setdefault(offset, value) == value, "two values were acknowledged at one offset"

    # --- replication

    @rule(number=brokers, max_bytes=st.sampled_from((1, 2 * BATCH_BYTES, 1 << 20)))
    def ask(self, number: int, max_bytes: int) -> None:
        """A follower's fetch reaches its leader, whose answer is on its way."""
        follower = self.replicas[number]
        leader = self.replicas.get(follower.partition.leader_id)
        if leader is None or leader is follower or not (follower.is_up and leader.is_up):
            return
        if not follower.partition.following.may_fetch:
            return
        try:
            self.answers[number] = leader.answer(follower, max_bytes)
        except KafkaError:
            pass

    @rule(number=brokers)
    def hear(self, number: int) -> None:
        """The answer arrives, unless its follower was started again meanwhile."""
        answer = self.answers.pop(number, None)
        follower = self.replicas[number]
        if answer is None or not follower.is_up:
            return
        try:
            self.run(follower.take(answer))
        except KafkaError:
            pass

    @rule(number=brokers, rounds=st.integers(1, 3))
    def catch_up(self, number: int, rounds: int) -> None:
        """Several fetches in a row."""
        for _ in range(rounds):
            self.ask(number, 1 << 20)
            self.hear(number)

    # --- the cluster

    @rule(number=brokers)
    def see(self, number: int) -> None:
        """The image reaches a broker, which others may have seen long ago."""
        replica = self.replicas[number]
        if replica.is_up:
            self.show(replica)

    @rule(
        number=brokers, seconds=st.sampled_from((0, 6, 15)), outcome=st.sampled_from(("yes", "no", "unheard", "lost"))
    )
    def change_isr(self, number: int, seconds: int, outcome: str) -> None:
        """A leader looks at its followers, and asks the store for another ISR."""
        leader = self.replicas[number]
        if not leader.is_up:
            return
        self.run(asyncio.sleep(seconds))
        change = self.unheard.pop(number, None) or leader.partition.leading.wanted_isr(self.loop.time(), LAG_MS)
        if change is None:
            return
        if outcome in ("yes", "unheard"):
            self.store_isr(leader, change)
        if outcome in ("unheard", "lost"):
            # The store is unavailable: the leader asks again for the same.
            self.unheard[number] = change
        else:
            self.show(leader)
            leader.partition.leading.isr_change_ended(change)

    def store_isr(self, leader: Replica, change: IsrChange) -> None:
        state = self.state
        if (state.leader, state.leader_epoch) != (leader.broker_id, change.leader_epoch):
            return
        if any(self.replicas[added].broker_epoch != epoch for added, epoch in change.added.items()):
            return
        isr = tuple(number for number in change.isr if number in state.isr or number in change.added)
        self.state = replace(state, isr=isr)
        for added in change.added:
            self.doubtful.pop(added, None)

    @rule(number=brokers)
    def expire(self, number: int) -> None:
        """The session of a broker that is down ends, and the controller moves on without it."""
        if not self.replicas[number].is_up and number in self.registered:
            del self.registered[number]
            self.leave(number)
            self.elect()

    @rule(number=brokers)
    def suspect(self, number: int) -> None:
        """The session of a broker ends that is up but was paused or cut off: it does not know yet."""
        if self.replicas[number].is_up and number in self.registered:
            del self.registered[number]
            self.leave(number)
            self.elect()

    @rule(number=brokers)
    def register_again(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.is_up and number not in self.registered:
            self.registered[number] = replica.broker_epoch
            self.elect()

    def leave(self, number: int) -> None:
        """Take a broker out of the ISR where others remain, and leadership from it."""
        others = tuple(other for other in self.state.isr if other != number)
        # Sessions end in the order in which brokers went: none that kept everything gives way to one that lost power.
        if any(other not in self.doubtful for other in others):
            self.state = replace(self.state, isr=others)
        if self.state.leader == number:
            self.state = replace(self.state, leader=NOBODY, leader_epoch=self.state.leader_epoch + 1)

    def elect(self) -> None:
        if self.state.leader == NOBODY:
            live = [number for number in self.state.replicas if number in self.state.isr and number in self.registered]
            if live:
                self.state = replace(self.state, leader=live[0], leader_epoch=self.state.leader_epoch + 1)

    @rule(number=brokers)
    def prefer(self, number: int) -> None:
        """An administrator moves leadership to another replica in sync."""
        if number in self.state.isr and number in self.registered and number != self.state.leader:
            self.state = replace(self.state, leader=number, leader_epoch=self.state.leader_epoch + 1)

    # --- faults

    @rule(number=brokers, power_cut=st.booleans())
    def crash(self, number: int, power_cut: bool) -> None:
        replica = self.replicas[number]
        if not replica.is_up:
            return
        if power_cut:
            sound = [other for other in self.state.isr if other != number and other not in self.doubtful]
            if not sound:
                return
            self.doubtful[number] = None
        self.run(replica.crash(power_cut=power_cut))
        self.answers.pop(number, None)
        self.unheard.pop(number, None)

    @precondition(lambda self: any(not replica.is_up for replica in self.replicas.values()))
    @rule(number=brokers)
    def restart(self, number: int) -> None:
        """A broker starts again after a crash: a new incarnation, out of the ISR unless it is the last in it."""
        replica = self.replicas[number]
        if replica.is_up:
            return

        async def start() -> None:
            replica.start()

        self.run(start())
        self.leave(number)
        self.registered[number] = replica.broker_epoch
        self.elect()
        self.show(replica)

    # --- what holds

    @invariant()
    def what_was_acknowledged_is_in_every_log_that_is_in_sync(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.settle()
        for replica in self.up():
            if replica.broker_id not in self.state.isr or replica.broker_id in self.doubtful:
                continue
            found = replica.values()
            missing = {at: value for at, value in self.acknowledged.items() if found.get(at) != value}
            assert not missing, f"broker {replica.broker_id} is in sync without {missing}"

    @invariant()
    def replicas_agree_on_what_both_say_is_committed(self) -> None:
        if not hasattr(self, "loop"):
            return
        found = [(replica.partition.high_watermark, replica.values()) for replica in self.up()]
        for index, (high_watermark, values) in enumerate(found):
            assert list(values) == list(range(len(values)))
            for other_high_watermark, others in found[:index]:
                common = min(high_watermark, other_high_watermark)
                for at in range(common):
                    assert values.get(at) == others.get(at), f"offset {at} has two values below {common}"

    @invariant()
    def the_high_watermark_stays_in_the_log_and_never_goes_back_in_an_epoch(self) -> None:
        if not hasattr(self, "loop"):
            return
        for replica in self.up():
            partition = replica.partition
            assert partition.high_watermark <= partition.log.end_offset
            if partition.is_leader:
                known = self.high_watermarks.get((partition.leader_epoch, replica.broker_epoch), 0)
                assert partition.high_watermark >= known
                self.high_watermarks[partition.leader_epoch, replica.broker_epoch] = partition.high_watermark

    @invariant()
    def a_leader_has_no_more_than_one_epoch_of_its_own(self) -> None:
        if not hasattr(self, "loop"):
            return
        leaders = [replica.partition.leader_epoch for replica in self.up() if replica.partition.is_leader]
        assert len(leaders) == len(dict.fromkeys(leaders)), "two leaders in one epoch"


LIMITS = settings(
    max_examples=int(os.environ.get("TAILRACE_MODEL_EXAMPLES", "40")),
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow],
)
TestReplication = ReplicationMachine.TestCase
TestReplication.settings = LIMITS


# --- the invariants bite: the same steps hold with the broker's code, and not with code that somebody broke

NEVER = 2**63 - 1


def play(scenario: Callable[[ReplicationMachine], None], seed: int = 1) -> None:
    """Let chosen steps happen and look at the invariants after them."""
    machine = ReplicationMachine()
    try:
        machine.begin(seed=seed, flush_messages=NEVER)
        scenario(machine)
        machine.what_was_acknowledged_is_in_every_log_that_is_in_sync()
        machine.replicas_agree_on_what_both_say_is_committed()
        machine.the_high_watermark_stays_in_the_log_and_never_goes_back_in_an_epoch()
    finally:
        machine.teardown()


def expect(is_so: bool) -> None:
    """Fail unless the scenario happened; such a failure says nothing about the mutation."""
    if not is_so:
        raise RuntimeError("the scenario did not happen")


def lead_alone(machine: ReplicationMachine) -> None:
    machine.append(1, 1, ACKS_ALL)


def part_and_meet(machine: ReplicationMachine) -> None:
    """A leader has a record that nobody else has, and follows another leader that has written in its place."""
    machine.append(1, 1, ACKS_ALL)
    machine.prefer(2)
    for number in (2, 3, 1):
        machine.see(number)
    machine.append(2, 1, ACKS_ALL)
    for _ in range(3):
        for number in (3, 1):
            machine.catch_up(number, 1)
    expect(machine.acknowledged == {0: b"0000002"})


def give_up_a_tail(machine: ReplicationMachine) -> None:
    """A leader has one record more than was committed, and follows another one."""
    machine.append(1, 1, ACKS_ALL)
    for number in (2, 3):
        machine.catch_up(number, 2)
    machine.append(1, 1, ACKS_ALL)
    machine.prefer(2)
    for number in (2, 1):
        machine.see(number)
    machine.catch_up(1, 1)
    expect(machine.acknowledged == {0: b"0000001"})


def lag_and_catch_up(machine: ReplicationMachine) -> None:
    """The third replica falls out of sync, and then has everything again."""
    machine.append(1, 1, ACKS_ALL)
    machine.catch_up(2, 2)
    machine.change_isr(1, 15, "yes")
    expect(machine.state.isr == (1, 2))
    machine.catch_up(2, 2)
    machine.catch_up(3, 3)


def join_unheard(machine: ReplicationMachine) -> None:
    """The store has taken a replica into the ISR, and its leader does not know."""
    lag_and_catch_up(machine)
    machine.change_isr(1, 0, "unheard")
    expect(machine.state.isr == (1, 2, 3))
    machine.append(1, 1, ACKS_ALL)
    machine.catch_up(2, 2)


def join_after_losing_power(machine: ReplicationMachine) -> None:
    """A replica that had everything loses power before it is taken into the ISR."""
    lag_and_catch_up(machine)
    machine.crash(3, power_cut=True)
    machine.restart(3)
    machine.see(1)
    machine.change_isr(1, 0, "yes")


SCENARIOS = [lead_alone, part_and_meet, give_up_a_tail, lag_and_catch_up, join_unheard, join_after_losing_power]


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("seed", range(5))
def test_what_broken_code_is_caught_by_holds_for_the_brokers_own(
    scenario: Callable[[ReplicationMachine], None], seed: int
) -> None:
    play(scenario, seed)


def is_caught(scenario: Callable[[ReplicationMachine], None], seed: int = 1) -> bool:
    try:
        play(scenario, seed)
    except AssertionError:
        return True
    return False


def test_a_leader_that_waits_for_nobody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(self: Followers) -> None:
        self.committed_limit = UNBOUNDED

    monkeypatch.setattr(Followers, "_count", count)
    assert is_caught(lead_alone)


def test_a_leader_that_forgets_changes_on_their_way_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Followers, isr: object) -> None:
        for follower in self._by_id.values():
            follower.is_joining = False
        self._count()

    monkeypatch.setattr(Followers, "wait_for_change", forget)
    assert is_caught(join_unheard)


def test_a_leader_that_asks_for_no_incarnation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_registered(self: Followers, replica: int, follower: object) -> bool:
        return True

    def store_isr(self: ReplicationMachine, leader: Replica, change: IsrChange) -> None:
        epochs = {added: self.replicas[added].broker_epoch for added in change.added}
        original(self, leader, replace(change, added=epochs))

    original = ReplicationMachine.store_isr
    monkeypatch.setattr(Followers, "_is_registered", is_registered)
    monkeypatch.setattr(ReplicationMachine, "store_isr", store_isr)
    # What a power cut leaves is a matter of luck.
    assert any(is_caught(join_after_losing_power, seed) for seed in range(10))


def test_a_follower_that_keeps_what_its_leader_does_not_have_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "diverging_epoch", lambda self, epoch, offset: None)
    assert is_caught(part_and_meet)


def test_a_leader_that_does_not_say_where_epochs_ended_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_offset_for(self: LeaderEpochs, epoch: int, log_end_offset: int) -> tuple[int, int]:
        return epoch, log_end_offset

    monkeypatch.setattr(LeaderEpochs, "end_offset_for", end_offset_for)
    assert is_caught(part_and_meet)


def test_a_follower_that_cuts_off_too_much_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def truncate_at(self: Following, offset: int) -> None:
        await original(self, max(0, offset - 1))

    original = Following.truncate_at
    monkeypatch.setattr(Following, "truncate_at", truncate_at)
    assert is_caught(give_up_a_tail)
