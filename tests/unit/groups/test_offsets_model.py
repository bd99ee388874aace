"""Commits, transactions, markers, deletions and reloads in any order, against what the records mean as a whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.commits import Committer
from tailrace.groups.offsets import Offsets
from tailrace.groups.pending_offsets import PendingOffsets, PendingPartition
from tailrace.groups.records import OffsetCommitKey, OffsetCommitValue
from tailrace.model import TopicPartition
from tailrace.runtime.outcome import Outcome
from tailrace.testing.loop import SimLoop
from tests.unit.groups.offsets_model import Entry, Place, committed_of, compacted, pending_of
from tests.unit.groups.world import GROUP, GroupWorld, committing, now

PRODUCERS = (1, 2, 3)
TOPICS = ("orders", "payments")
PARTITIONS = tuple(TopicPartition(topic, number) for topic in TOPICS for number in range(2))
EXAMPLES = int(os.environ.get("TAILRACE_MODEL_EXAMPLES", "60"))

# --- the tables alone


def places(groups: Sequence[str]) -> st.SearchStrategy[Place]:
    return st.tuples(st.sampled_from(groups), st.sampled_from(PARTITIONS))


producers = st.sampled_from(PRODUCERS)
commits = st.tuples(places(("a", "b")), st.none() | producers)
changes = st.one_of(
    commits.map(lambda drawn: ("commit", *drawn)),
    commits.map(lambda drawn: ("commit", *drawn)),
    places(("a", "b")).map(lambda place: ("remove", place, None)),
    st.tuples(st.sampled_from(["commits", "aborts"]), producers).map(lambda drawn: (drawn[0], None, drawn[1])),
)


def log_of(drawn: Sequence[tuple[str, Place | None, int | None]]) -> list[Entry]:
    log = []
    for at, (kind, place, producer_id) in enumerate(drawn):
        if kind == "commit":
            log.append(Entry(at, place, 100 + at, producer_id))
        elif kind == "remove":
            log.append(Entry(at, place))
        else:
            log.append(Entry(at, producer_id=producer_id, is_commit=kind == "commits"))
    return log


def replayed(log: Sequence[Entry]) -> Offsets:
    offsets = Offsets()
    for entry in log:
        if entry.place is None:
            assert entry.producer_id is not None
            offsets.replay_marker(entry.producer_id, bool(entry.is_commit))
            continue
        group_id, (topic, number) = entry.place
        value = None if entry.offset is None else OffsetCommitValue(offset=entry.offset)
        offsets.replay(
            OffsetCommitKey(group=group_id, topic=topic, partition=number), value, entry.at, entry.producer_id
        )
    return offsets


def shown(offsets: Offsets) -> tuple[dict[Place, int], dict[Place, dict[int, int]]]:
    committed = {
        (group_id, place): found.offset
        for group_id in offsets.groups()
        for place, found in offsets.of_group(group_id).items()
    }
    pending = {
        (group_id, place): {producer_id: each.committed.offset for producer_id, each in found.producers.items()}
        for group_id in offsets.groups()
        for place, found in offsets.pending.of_group(group_id).items()
    }
    return committed, pending


def meant(log: Sequence[Entry]) -> tuple[dict[Place, int | None], dict[Place, dict[int, int]]]:
    return {place: entry.offset for place, entry in committed_of(log).items()}, pending_of(log)


@settings(max_examples=5 * EXAMPLES)
@given(st.lists(changes, max_size=40))
def test_replay_shows_what_the_records_mean(drawn: list[Any]) -> None:
    log = log_of(drawn)
    offsets = replayed(log)
    assert shown(offsets) == meant(log)
    held = pending_of(log)
    assert len(offsets.pending) == sum(len(found) for found in held.values())
    assert set(offsets.groups()) == {group_id for group_id, _ in [*committed_of(log), *held]}


@settings(max_examples=5 * EXAMPLES)
@given(st.lists(changes, max_size=40), st.integers(0, 40), st.booleans(), st.lists(changes, max_size=10))
def test_compaction_changes_nothing_that_is_shown(
    drawn: list[Any], limit: int, keeps_removals: bool, later: list[Any]
) -> None:
    log = log_of(drawn)
    kept = compacted(log, min(limit, len(log)), keeps_removals=keeps_removals)
    assert shown(replayed(kept)) == meant(log)
    # Nor anything that follows from it.
    behind = log_of([*drawn, *later])[len(log) :]
    assert shown(replayed([*kept, *behind])) == meant([*log, *behind])


def fails() -> None:
    """Replay logs with tables that somebody broke."""

    @settings(max_examples=500, phases=[Phase.generate], database=None, derandomize=True)
    @given(st.lists(changes, max_size=40))
    def replay(drawn: list[Any]) -> None:
        log = log_of(drawn)
        assert shown(replayed(log)) == meant(log)

    with pytest.raises((AssertionError, BaseExceptionGroup)):
        replay()


def test_the_model_catches_an_old_transaction_that_wins_over_a_new_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingPartition, "outdate", lambda partition: None)
    fails()


def test_the_model_catches_transactions_that_take_effect_in_the_order_of_their_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PendingPartition, "take", lambda partition, pending: True)
    fails()


def test_the_model_catches_pending_offsets_that_outlive_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingOffsets, "remove", lambda pending, group_id, partition: None)
    fails()


def test_the_model_catches_an_aborted_transaction_that_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Offsets.replay_marker
    monkeypatch.setattr(Offsets, "replay_marker", lambda offsets, producer_id, _: replay(offsets, producer_id, True))
    fails()


# --- a broker

RETENTION_SECONDS = 60
CHECK_SECONDS = 20


class OffsetsMachine(RuleBasedStateMachine):
    """Drives the shard of one broker in virtual time, and the log that its requests should make."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(7, max_virtual_seconds=1e7)
        self.log: list[Entry] = []
        self.next_offset = 0

    @initialize()
    def start(self) -> None:
        async def begin() -> GroupWorld:
            settings = {
                "offsets.topic.num.partitions": "1",
                "offsets.retention.minutes": str(RETENTION_SECONDS // 60),
                "offsets.retention.check.interval.ms": str(CHECK_SECONDS * 1000),
            }
            world = GroupWorld(self.loop, settings)
            await world.start()
            for topic in TOPICS:
                await world.create_topic(topic, 2)
            return world

        self.world = self.loop.run_until_complete(begin())

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.loop.run(self.world.node.stop())

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(step)

    def add(self, place: Place | None, offset: int | None, producer_id: int | None = None, **marker: bool) -> None:
        self.log.append(Entry(len(self.log), place, offset, producer_id, **marker))

    def offset(self) -> int:
        self.next_offset += 1
        return self.next_offset

    # --- what clients do

    @rule(wanted=st.lists(places((GROUP, "h")), min_size=1, max_size=5))
    def several_commit_in_one_turn(self, wanted: list[Place]) -> None:
        offsets = [(place, self.offset()) for place in wanted]

        async def step() -> None:
            shard = self.world.shard
            waiting = [
                shard.commit(group_id, "", None, -1, -1, [(place, offset, 0, "")])
                for (group_id, place), offset in offsets
            ]
            for each in waiting:
                assert await committing(each) == {}

        self.run(step())
        for place, offset in offsets:
            self.add(place, offset)

    @rule(where=places((GROUP, "h")))
    def somebody_commits_one_offset(self, where: Place) -> None:
        group_id, place = where
        offset = self.offset()

        async def step() -> None:
            assert self.world.broker is not None
            lineage = self.world.broker.metadata.image.topics[place.topic].lineage
            written: Outcome[None] = Outcome()
            self.world.shard.commit_one(group_id, "", None, -1, place, lineage, offset, 0, written)
            await written

        self.run(step())
        self.add(where, offset)

    @rule(
        group_id=st.sampled_from((GROUP, "h")),
        wanted=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4, unique=True),
        producer_id=producers,
    )
    def a_producer_commits(self, group_id: str, wanted: list[TopicPartition], producer_id: int) -> None:
        offsets = [(place, self.offset(), 0, "") for place in wanted]

        async def step() -> None:
            result = self.world.shard.commit_in_transaction(group_id, Committer(), producer_id, 0, offsets)
            assert await now(result) == {}

        self.run(step())
        for place, offset, _, _ in offsets:
            self.add((group_id, place), offset, producer_id)

    @rule(producer_id=producers, is_commit=st.booleans())
    def a_transaction_ends(self, producer_id: int, is_commit: bool) -> None:
        async def step() -> None:
            await now(self.world.shard.end_transaction(producer_id, 0, is_commit, 0))

        self.run(step())
        self.add(None, None, producer_id, is_commit=is_commit)

    # --- what operators do, and fate

    def there(self) -> set[Place]:
        return {*committed_of(self.log), *pending_of(self.log)}

    @rule(
        group_id=st.sampled_from((GROUP, "h")),
        wanted=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=2, unique=True),
    )
    def offsets_are_deleted(self, group_id: str, wanted: list[TopicPartition]) -> None:
        exists = any(name == group_id for name, _ in self.there())

        async def step() -> Any:
            try:
                return await now(self.world.shard.delete_offsets(group_id, wanted))
            except KafkaError as error:
                return error.code

        expected = dict.fromkeys(wanted, ErrorCode.NONE) if exists else ErrorCode.GROUP_ID_NOT_FOUND
        assert self.run(step()) == expected
        for place in wanted:
            self.add((group_id, place), None)

    @rule(group_id=st.sampled_from((GROUP, "h")))
    def a_group_is_deleted(self, group_id: str) -> None:
        exists = any(name == group_id for name, _ in self.there())

        async def step() -> ErrorCode:
            try:
                return await now(self.world.shard.delete_group(group_id))
            except KafkaError as error:
                return error.code

        assert self.run(step()) is (ErrorCode.NONE if exists else ErrorCode.GROUP_ID_NOT_FOUND)
        for place in PARTITIONS:
            self.add((group_id, place), None)

    @rule(name=st.sampled_from(TOPICS))
    def a_topic_is_deleted_and_made_again(self, name: str) -> None:
        async def step() -> None:
            assert self.world.broker is not None
            metadata = self.world.broker.metadata
            await metadata.delete_topic(metadata.image.topics[name])
            await self.world.create_topic(name, 2)
            await asyncio.sleep(0.1)

        self.run(step())
        for group_id, place in self.there():
            if place.topic == name:
                self.add((group_id, place), None)

    @rule()
    def offsets_expire(self) -> None:
        self.run(asyncio.sleep(RETENTION_SECONDS + 2 * CHECK_SECONDS))
        pending = pending_of(self.log)
        for place in committed_of(self.log):
            if place not in pending:
                self.add(place, None)

    @rule()
    def the_broker_is_killed_and_started_again(self) -> None:
        self.world.node.kill()
        self.run(self.world.start())

    # --- what always holds

    @invariant()
    def the_shard_shows_what_the_records_mean(self) -> None:
        if not hasattr(self, "world"):
            return
        assert shown(self.world.shard.offsets) == meant(self.log)
        listed = {group.group_id for group in self.world.shard.list_groups()}
        assert listed == {group_id for group_id, _ in self.there()}


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
