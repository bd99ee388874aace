"""Transactions in one log through everything that may happen to it, by seed: a model knows what readers must see.

Each seed appends batches of several producers, in transactions and outside, and markers. In between, the log rolls, is
synced, checkpointed, compacted, truncated, stopped, killed and unplugged, or loses power within an operation. Open
transactions, the last stable offset and what a reader of committed records finds are always those of the model.
TAILRACE_SIM_SEEDS sets how many seeds run, TAILRACE_SIM_SEED replays a single one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from tailrace.errors import ErrorCode, KafkaError, StorageError
from tailrace.model import NO_OFFSET
from tailrace.records.batch import TRANSACTIONAL_BIT, read_header
from tailrace.records.markers import Marker
from tailrace.records.record import NewRecord, build_batch
from tailrace.storage import recovery
from tailrace.storage.open_transactions import UNBOUNDED
from tailrace.storage.producer_entry import ProducerEntry
from tailrace.storage.producer_snapshots import find_producers_at_once
from tailrace.storage.producer_state import ProducerState
from tailrace.storage.segment import Segment
from tailrace.testing.loop import SimLoop
from tests.simulation.seeds import chunks_of_seeds, name_of_chunk
from tests.support.batches.compacted_log import CONFIG, World
from tests.unit.storage.transactions import aborted, read_committed

SEEDS_PER_TEST = 20
PRODUCERS = range(1, 6)
#: This many of them write with sequences, the others as coordinators write for producers.
SEQUENCED = 3


class Event(NamedTuple):
    """One batch of one record."""

    offset: int
    key: bytes
    #: None for a record outside of transactions.
    producer_id: int | None = None
    epoch: int = 0
    #: None for a record, else whether the marker commits.
    commits: bool | None = None


class Truth(NamedTuple):
    """What the batches of a log mean."""

    open: dict[int, int]
    #: By the offset of the marker: producer and first offset.
    aborted: dict[int, tuple[int, int]]
    visible: dict[int, bytes]
    epochs: dict[int, int]

    @property
    def stable_offset(self) -> int:
        return min(self.open.values(), default=UNBOUNDED)


def truth_of(events: list[Event]) -> Truth:
    truth = Truth({}, {}, {}, {})
    hidden: dict[int, list[Event]] = {}
    for event in events:
        if event.producer_id is None:
            truth.visible[event.offset] = event.key
            continue
        truth.epochs[event.producer_id] = event.epoch
        if event.commits is None:
            truth.open.setdefault(event.producer_id, event.offset)
            hidden.setdefault(event.producer_id, []).append(event)
            continue
        first = truth.open.pop(event.producer_id, None)
        records = hidden.pop(event.producer_id, [])
        if event.commits:
            truth.visible.update({record.offset: record.key for record in records})
        elif first is not None:
            truth.aborted[event.offset] = (event.producer_id, first)
    stable_offset = truth.stable_offset
    for offset in [offset for offset in truth.visible if offset >= stable_offset]:
        del truth.visible[offset]
    return truth


class Run:
    """One seed."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.random = random = Random(seed)
        self.world = World(
            loop, replace(CONFIG, segment_bytes=random.choice([300, 900, 3000]), compact=random.random() < 0.4)
        )
        self.events: list[Event] = []
        #: What is being appended, and may be in the log after a crash or not.
        self.pending: Event | None = None
        self.durable_offset = 0
        self.clean_offset = 0
        self.crashes = 0

    # --- steps

    def append(self, event: Event, make: Callable[[], bytearray]) -> None:
        self.pending = event
        data = make()
        try:
            self.world.log.append(memoryview(data), read_header(data), 0)
        except KafkaError as error:
            # A producer of which only a marker is known has to send again.
            if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            data = make()
            self.world.log.append(memoryview(data), read_header(data), 0)
        self.pending = None
        self.events.append(event)
        self.world.partition.advance()

    def record(self, event: Event, sequence: int) -> bytearray:
        is_transactional = event.producer_id is not None
        return build_batch(
            [NewRecord(b"%d" % event.offset, event.key, self.world.clock.wall_ms())],
            producer_id=-1 if event.producer_id is None else event.producer_id,
            producer_epoch=event.epoch if is_transactional else -1,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT if is_transactional else 0,
        )

    def write(self) -> None:
        key = b"k%d" % self.random.randrange(8)
        end = self.world.log.end_offset
        if self.random.random() < 0.3:
            event = Event(end, key)
            self.append(event, lambda: self.record(event, -1))
            return
        producer_id = self.random.choice(PRODUCERS)
        epoch = truth_of(self.events).epochs.get(producer_id, 0)
        event = Event(end, key, producer_id, epoch)
        before = [
            each for each in self.events if (each.producer_id, each.epoch, each.commits) == (producer_id, epoch, None)
        ]
        sequence = len(before) if producer_id <= SEQUENCED else -1
        self.append(event, lambda: self.record(event, sequence))

    def end(self) -> None:
        producer_id = self.random.choice(PRODUCERS)
        epoch = truth_of(self.events).epochs.get(producer_id, 0) + self.random.choice([0, 1])
        commits = self.random.random() < 0.5
        event = Event(self.world.log.end_offset, b"", producer_id, epoch, commits)
        self.append(event, lambda: self.world.log.new_marker(Marker(producer_id, epoch, commits, 0)))

    async def truncate(self) -> None:
        end_offset = self.world.log.end_offset
        offset = self.random.randint(max(self.clean_offset, end_offset - 40), end_offset)
        self.durable_offset = min(self.durable_offset, offset)
        refusal = await self.world.directory.cuts.truncate(self.world.log, offset, lambda: True)
        assert refusal is None
        self.world.partition.high_watermark = min(self.world.partition.high_watermark, self.world.log.end_offset)
        self.events = [event for event in self.events if event.offset < offset]
        assert self.world.log.end_offset == offset or self.world.log.gaps.within_below > offset
        self.durable_offset = offset

    async def sync(self) -> None:
        await self.world.sync()
        self.durable_offset = self.world.log.end_offset

    async def clean(self) -> None:
        self.world.roll()
        await self.sync()
        self.clean_offset = self.world.log.end_offset
        await self.world.clean()

    async def crash(self) -> None:
        self.world.crash(power_cut=self.random.random() < 0.7)
        await self.recover()

    async def recover(self) -> None:
        self.crashes += 1
        await self.world.reopen()
        end_offset = self.world.log.end_offset
        assert end_offset >= self.durable_offset, f"lost {end_offset} to {self.durable_offset}"
        if self.pending is not None and self.pending.offset < end_offset:
            self.events.append(self.pending)
        self.pending = None
        self.events = [event for event in self.events if event.offset < end_offset]
        self.clean_offset = min(self.clean_offset, end_offset)

    async def stop(self) -> None:
        await self.world.stop()
        self.world.open()
        self.world.partition.advance()
        self.durable_offset = self.world.log.end_offset

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.55:
            self.write()
        elif choice < 0.8:
            self.end()
        elif choice < 0.84:
            self.world.roll()
        elif choice < 0.88:
            await self.sync()
        elif choice < 0.91:
            await self.world.directory.checkpoints.save()
        elif choice < 0.93:
            await self.truncate()
        elif choice < 0.95 and self.world.config.compact:
            await self.clean()
        elif choice < 0.97:
            await self.stop()
        else:
            await self.crash()

    async def risky_steps(self) -> None:
        """Steps of which one is interrupted by a crash."""
        self.world.crash_after(self.random.randint(0, 60), power_cut=self.random.random() < 0.7)
        generation = self.world.disk.generation
        work = asyncio.ensure_future(self._steps_until(generation))
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()
        self.world._ending.lift()
        if self.world.disk.generation == generation:
            self.world.crash(power_cut=True)
        await self.recover()

    async def _steps_until(self, generation: int) -> None:
        for _ in range(20):
            if self.world.disk.generation != generation:
                return
            choice = self.random.random()
            try:
                if choice < 0.4:
                    self.write()
                elif choice < 0.7:
                    self.end()
                elif choice < 0.8:
                    self.world.roll()
                elif choice < 0.9:
                    await self.sync()
                elif choice < 0.95:
                    await self.truncate()
                elif self.world.config.compact:
                    self.clean_offset = self.world.log.end_offset
                    await self.clean()
            except (asyncio.CancelledError, StorageError):
                return

    # --- checks

    def check(self) -> None:
        log = self.world.log
        truth = truth_of(self.events)
        found = {
            producer_id: entry.transaction_start
            for producer_id, entry in log.producers.entries()
            if entry.transaction_start != NO_OFFSET
        }
        assert found == truth.open
        assert log.producers.transactions.first_open == truth.stable_offset
        assert self.world.partition.last_stable_offset == min(truth.stable_offset, self.world.partition.high_watermark)
        visible = read_committed(log, max_bytes=self.random.choice([1, 200, 1 << 20]))
        assert set(visible) <= truth.visible.keys(), "a reader was given what is not committed"
        newest = {truth.visible[offset]: offset for offset in sorted(truth.visible)}
        wanted = {offset for offset in truth.visible if offset >= self.clean_offset} | set(newest.values())
        assert wanted <= set(visible), "a reader was not given what is committed"
        indexed = {each.last_offset: (each.producer_id, each.first_offset) for each in aborted(log)}
        assert indexed.keys() <= truth.aborted.keys()
        if self.clean_offset == 0:
            assert indexed == truth.aborted
            epochs = {producer_id: entry.epoch for producer_id, entry in log.producers.entries()}
            assert epochs == truth.epochs


async def simulate(seed: int) -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    run = Run(loop, seed)
    for _ in range(run.random.randint(5, 12)):
        for _ in range(run.random.randint(1, 30)):
            await run.step()
        run.check()
        if run.random.random() < 0.5:
            await run.risky_steps()
            run.check()
    await run.crash()
    run.check()
    await run.world.stop()
    return run.crashes


def run_seed(seed: int) -> int:
    try:
        return SimLoop(seed, max_virtual_seconds=3600).run(simulate(seed))
    except BaseException as error:
        error.add_note(f"replay with: TAILRACE_SIM_SEED={seed} pytest tests/simulation/test_transactions_in_logs.py")
        raise


@pytest.mark.parametrize("seeds", chunks_of_seeds(SEEDS_PER_TEST, one_in=2), ids=name_of_chunk)
def test_readers_of_committed_records_see_these_and_no_others_whatever_happens(seeds: list[int]) -> None:
    assert sum(run_seed(seed) for seed in seeds) >= len(seeds)


def seeds_until_caught(limit: int = 100) -> int:
    for seed in range(limit):
        try:
            run_seed(seed)
        except (AssertionError, KafkaError):
            return seed + 1
    raise AssertionError(f"nobody noticed in {limit} seeds")


def test_the_checks_catch_an_index_that_recovery_does_not_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "find_producers_at_once", lambda *arguments: find_producers_at_once(*arguments[:6]))
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_checks_catch_an_index_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "files_to_sync", lambda segment: [segment.log])
    print(f"caught after {seeds_until_caught(400)} seeds")


def test_the_checks_catch_a_truncation_that_leaves_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.storage.aborted_transactions.TransactionIndex.truncate", lambda index, offset: None)
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_checks_catch_a_truncation_that_takes_ended_transactions_for_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ProducerState.below

    def below(state: ProducerState, offset: int) -> ProducerState | None:
        state._marker_offset = NO_OFFSET
        for _, entry in state.entries():
            entry.changed_offset = NO_OFFSET
        return right(state, offset)

    monkeypatch.setattr(ProducerState, "below", below)
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_checks_catch_a_snapshot_without_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ProducerState.snapshot

    def snapshot(state: ProducerState) -> bytes:
        copied = ProducerState()
        copied._producers = {
            number: ProducerEntry(each.epoch, each.batches, each.last_timestamp, each.run)
            for number, each in state.entries()
        }
        return right(copied)

    monkeypatch.setattr(ProducerState, "snapshot", snapshot)
    print(f"caught after {seeds_until_caught()} seeds")
