"""A log on a disk that reorders changes of names, by seed: what a power cut leaves is a run of it from a lawful start.

Each seed appends, copies from a leader with and without gaps, syncs, applies retention, cuts and begins anew, and loses
power, or only the process, between two operations or within one. What is found then has no hole, starts nowhere the log
could not start, and has all that was synced. After a process ended between two operations, it has everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from uuid import UUID

import pytest

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.records.batch import assign_offset
from tailrace.runtime import Runtime
from tailrace.runtime.disk import DiskFullError
from tailrace.storage.log_config import LogConfig
from tailrace.storage.log_directory import LogDirectory
from tailrace.storage.producer_state import ProducerState
from tailrace.testing.clock import SimClock
from tailrace.testing.cluster.mutations import POWER_CUT_MUTATIONS
from tailrace.testing.disk import Fault, SimDisk
from tailrace.testing.helper import SimHelper
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tests.unit.storage.logs import BATCH_BYTES, NOW_MS, Logs, append, batch, read_all

NAME = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=1)
METADATA = f"/data/{NAME}/partition.metadata"
SIZE = len(batch(value=b"000000"))
SEEDS_PER_TEST = 100
#: Kept by some seeds: everything that is not newer than the clock is old.
CONFIG = LogConfig(index_interval_bytes=0, file_delete_delay_ms=50, retention_ms=-1)
HOLE, FALSE_START, LOST, INVENTED = "hole", "false start", "lost", "invented"


class Violation(AssertionError):
    """What must hold did not; the first words say what."""


@dataclass
class Lineage:
    """One log as it may be found: what was ever appended to it, and what of that must be there."""

    records: dict[int, bytes] = field(default_factory=dict)
    #: The latest offset at which it may start.
    latest_start: int = 0
    #: Everything between these survives.
    durable_start: int = 0
    durable_end: int = 0

    def problem_of(self, start: int, end: int, found: dict[int, bytes]) -> str | None:
        """Why what was found cannot be this log after a crash; None where it can."""
        expected = {offset: value for offset, value in self.records.items() if start <= offset < end}
        if missing := [offset for offset in expected if offset not in found]:
            return f"{HOLE}: {missing} of {start} to {end}"
        if others := [offset for offset, value in found.items() if expected.get(offset) != value]:
            return f"{INVENTED}: {others}"
        if start > self.latest_start:
            return f"{FALSE_START}: {start} instead of {self.latest_start} or before, up to {end}"
        if lost := [offset for offset in self.records if max(self.durable_start, end) <= offset < self.durable_end]:
            return f"{LOST}: {lost}, found {start} to {end}"
        return None


class PowerCut(Exception):
    """It came within an operation."""


class Run:
    """One seed."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.random: Random = loop.random_for("test")
        self.disk = SimDisk(loop.random_for("disk"), cached_probability=1.0, latency_seconds=(0.0001, 0.002))
        network = SimNetwork(loop, Random(1)).host("broker")
        self.runtime = Runtime(SimClock(loop), self.disk, network, Random(2), SimHelper(self.disk, Random(3)))
        self.config = replace(
            CONFIG,
            segment_bytes=self.random.choice((1, 2, 3, 6)) * BATCH_BYTES,
            flush_messages=self.random.choice((1, 1 << 62)),
        )
        self.has_gaps = self.random.random() < 0.4
        self.records: dict[int, bytes] = {}
        #: What the log may also be, because an operation was cut short.
        self.others: list[Lineage] = []
        self.count = 0
        self.power_cuts = 0
        self.fault: Fault | None = None
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory("/data", self.runtime, background_bytes=1 << 30, background_ms=-1)
        self.directory.open()
        self.log = self.directory.open_partition(NAME, TOPIC_ID, self.config)
        self.directory.start()

    def reconfigure(self, **settings: int) -> None:
        self.config = replace(self.config, **settings)
        self.directory.reconfigure(self.log, self.config)

    # --- what is done

    def value(self, offset: int, size: int = 6) -> bytes:
        self.count += 1
        self.records[offset] = b"%0*d" % (size, self.count)
        return self.records[offset]

    async def append(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            # A large batch begins a segment also where the one before has room for small ones.
            value = self.value(self.log.end_offset, self.random.choice((6, 6, 60)))
            append(self.log, batch(value=value, timestamp=NOW_MS))

    async def copy(self) -> None:
        """Batches from a leader, some of which compaction has taken out there."""
        offset, sent = self.log.end_offset, b""
        for _ in range(self.random.randint(1, 8)):
            if self.has_gaps and self.random.random() < 0.4:
                offset += self.random.randint(1, 5)
            data = batch(value=self.value(offset), timestamp=NOW_MS)
            assign_offset(data, offset, 0)
            sent += data
            offset += 1
        self.log.append_replicated(memoryview(sent), self.random.choice((offset, offset + 50)) if self.has_gaps else 0)

    async def sync(self) -> None:
        if self.directory.syncs.running_for(self.log) is None:
            await self.directory.syncs.sync_once(self.log)

    async def checkpoint(self) -> None:
        await self.directory.checkpoints.save()

    async def wait(self) -> None:
        await asyncio.sleep(0.1)

    async def give_up(self) -> None:
        log = self.log
        log.advance_start(self.random.randint(log.start_offset, log.end_offset))

    async def retention(self) -> None:
        await self.remove_expired(self.random.choice((1, 2, None)))

    async def remove_expired(self, most: int | None = None) -> None:
        log = self.log
        take_out = partial(log.remove_expired, log.end_offset, most=most)
        self.directory.removals.remove_later(log, await self.directory.starts.take_out_expired(log, take_out))

    async def cut(self) -> None:
        log = self.log
        offset = self.random.randint(max(0, log.start_offset - 3), log.end_offset)
        if offset in self.records and self.records.get(offset - 1) == self.records[offset]:
            offset -= 1  # else it would be in the middle of a batch
        kept = {at: value for at, value in self.records.items() if at < offset}
        durable_end = min(offset, log.flushed_offset)
        self.others = [Lineage(kept, max(offset, self.latest_start()), log.start_offset, durable_end)]
        self.others.append(Lineage(dict(self.records), self.latest_start(), log.start_offset, durable_end))
        assert await self.directory.cuts.truncate(log, offset, lambda: True) is None
        self.records, self.others = kept, []

    async def begin_anew(self) -> None:
        log = self.log
        offset = self.random.choice(
            (0, log.start_offset, log.end_offset, log.end_offset + 7, max(0, log.end_offset - 2))
        )
        self.others = [Lineage({}, max(offset, self.latest_start()))]
        self.others.append(Lineage(dict(self.records), self.latest_start()))
        assert await self.directory.cuts.restart(log, offset, lambda: True) is None
        self.records, self.others = {}, []

    async def begin_within(self) -> None:
        """Go on with a batch that begins before the log, which is new."""
        log = self.log
        if log.end_offset > 0 and log.segments.bases == [log.end_offset]:
            data = batch(2, value=self.value(log.end_offset), timestamp=NOW_MS)
            self.records[log.end_offset - 1] = self.records[log.end_offset]
            assign_offset(data, log.end_offset - 1, 0)
            log.append_replicated(memoryview(data), 0)

    async def compact(self) -> None:
        """Let compaction leave gaps from now on, as far as the log is durable; it leaves none here."""
        if self.log.flushed_offset == self.log.end_offset:
            await self.directory.swaps.allow_gaps(self.log, self.log.end_offset)

    # --- crashes

    def latest_start(self) -> int:
        metadata = self.log.metadata
        assert metadata is not None
        return max(self.log.start_offset, metadata.first_offset or 0)

    def lineage(self, durable_end: int) -> Lineage:
        return Lineage(dict(self.records), self.latest_start(), self.log.start_offset, durable_end)

    def end_after(self, operations: int) -> None:
        """Lose power, or only the process, within what is done next."""
        left = operations

        def is_the_one(_: str) -> bool:
            nonlocal left
            left -= 1
            return left == -1

        is_kill = self.random.random() < 0.4

        def end(_: str) -> BaseException:
            self.note_crash()
            # What a process did not sync before it was killed may still be lost with the next power cut.
            self.end(self.disk.kill if is_kill else self.disk.crash)
            return asyncio.CancelledError()

        self.fault = self.disk.fail(is_the_one, error=end, times=None)

    def note_crash(self) -> None:
        if not self.others:
            self.others = [self.lineage(self.log.flushed_offset)]
        self.power_cuts += 1

    def end(self, how: Callable[[], None]) -> None:
        self.directory.tasks.abandon()
        how()

    async def crash(self) -> None:
        """Lose power between two operations, or only the process."""
        if self.random.random() < 0.3:
            self.others = [self.lineage(self.log.end_offset)]
            self.end(self.disk.kill)
        else:
            self.note_crash()
            self.end(self.disk.crash)
        await self.find()

    async def find(self) -> None:
        """Start again, and look."""
        await asyncio.sleep(0.5)  # until what was cancelled has ended
        self.open()
        start, end = self.log.start_offset, self.log.end_offset
        found = {record.offset: record.value or b"" for record in read_all(self.log)}
        problems = [lineage.problem_of(start, end, found) for lineage in self.others]
        if all(problems):
            raise Violation("; or ".join(problem or "" for problem in problems))
        self.others = []
        self.records = found

    async def run(self) -> None:
        steps = [self.append] * 6 + [self.copy] * 4 + [self.sync] * 2
        steps += [self.checkpoint, self.wait, self.give_up, self.retention, self.retention, self.cut, self.begin_anew]
        steps += [self.begin_within, self.compact]
        for _ in range(self.random.randint(5, 40)):
            if self.random.random() < 0.15:
                self.end_after(self.random.randint(0, 25))
            generation = self.disk.generation
            try:
                await self.random.choice(steps)()
                await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.02)))
            except (asyncio.CancelledError, StorageError):
                if self.disk.generation == generation:
                    raise
            if self.fault is not None:
                self.fault.lift()
                self.fault = None
            if self.disk.generation != generation:
                await self.find()
            elif self.random.random() < 0.2:
                await self.crash()
        if self.directory.failure is not None:
            raise self.directory.failure


def run_seed(seed: int) -> int:
    loop = SimLoop(f"power cuts {seed}", max_virtual_seconds=3600)

    async def run() -> int:
        world = Run(loop)
        await world.run()
        return world.power_cuts

    try:
        return loop.run(run())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("name", POWER_CUT_MUTATIONS)
def test_a_broken_rule_is_caught(name: str) -> None:
    mutation = POWER_CUT_MUTATIONS[name]
    with mutation.switched_on():
        for seed in range(500):
            found = violation_of(seed)
            if found is not None:
                print(f"caught by seed {seed}: {found}")
                assert found.split(":")[0] in mutation.caught_by
                return
    raise AssertionError("nobody noticed")


def violation_of(seed: int) -> str | None:
    try:
        run_seed(seed)
    except Violation as error:
        return str(error)
    return None


@pytest.mark.parametrize("chunk", range(6))
def test_what_a_power_cut_leaves_has_no_hole_and_no_false_start_and_all_that_was_synced(chunk: int) -> None:
    cuts = sum(run_seed(seed) for seed in range(chunk * SEEDS_PER_TEST, (chunk + 1) * SEEDS_PER_TEST))
    assert cuts > SEEDS_PER_TEST


def test_it_holds_on_systems_that_cannot_sync_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "sync_all", lambda disk, path: False)
    cuts = sum(run_seed(seed) for seed in range(200, 300))
    assert cuts > SEEDS_PER_TEST


# --- one case at a time


def crashed(
    test: Callable[[Run], Awaitable[None]],
    *,
    gone: Sequence[int] = (),
    metadata: bytes | None = None,
    stopped_cleanly: bool = False,
) -> Run:
    """A log after something was done to it, after which some segments are gone, and perhaps what its metadata says."""
    loop = SimLoop(1)

    async def run() -> Run:
        world = Run(loop)
        world.has_gaps = False
        world.reconfigure(segment_bytes=2 * SIZE, flush_messages=1 << 62)
        await test(world)
        if stopped_cleanly:
            await world.directory.close()
        world.end(world.disk.kill)
        await asyncio.sleep(1)
        for base in gone:
            world.disk.remove(f"/data/orders-0/{base:020d}.log")
        if metadata is not None:
            identity = world.disk.read_file(METADATA) or b""
            world.disk.replace_file(METADATA, identity.partition(b"first_offset")[0] + metadata)
        world.open()
        return world

    return loop.run(run())


def found(world: Run) -> tuple[int, int, list[int]]:
    """Where the log starts and ends, and its segments."""
    return world.log.start_offset, world.log.end_offset, list(world.log.segments.bases)


async def ten_records(world: Run) -> None:
    for offset in range(10):
        append(world.log, batch(value=world.value(offset), timestamp=NOW_MS))


async def ten_and_a_checkpoint(world: Run) -> None:
    await ten_records(world)
    await world.sync()
    await world.checkpoint()


def test_a_later_segment_without_the_first_is_no_log() -> None:
    assert found(crashed(ten_records)) == (0, 10, [0, 2, 4, 6, 8])
    assert found(crashed(ten_records, gone=[0])) == (0, 0, [0])
    world = crashed(ten_records, gone=[0, 2, 4, 6])
    assert found(world) == (0, 0, [0])
    assert [name for name in world.disk.list("/data/orders-0") if name.endswith(".log")] == [f"{0:020d}.log"]


def test_a_log_that_an_earlier_version_made_starts_with_the_first_segment_that_is_there() -> None:
    world = crashed(ten_records, gone=[0, 2], metadata=b"")
    assert found(world) == (4, 10, [4, 6, 8])
    assert world.latest_start() == 4  # and from now on it is known


@pytest.mark.parametrize("metadata", [b"first_offset: 0\n", b"first_offset: 3"])
def test_what_was_synced_is_not_thrown_away_for_what_metadata_says(metadata: bytes) -> None:
    assert found(crashed(ten_and_a_checkpoint, gone=[0, 2], metadata=metadata)) == (4, 10, [4, 6, 8])
    assert found(crashed(ten_records, gone=[0, 2], metadata=metadata, stopped_cleanly=True)) == (4, 10, [4, 6, 8])


def test_after_a_clean_stop_the_log_is_what_is_there() -> None:
    world = crashed(ten_records, metadata=b"first_offset: 50\n", stopped_cleanly=True)
    assert found(world) == (0, 10, [0, 2, 4, 6, 8])
    assert world.latest_start() == 0


def test_what_the_checkpointed_start_explains_is_not_thrown_away() -> None:
    async def given_up(world: Run) -> None:
        await ten_records(world)
        world.log.advance_start(5)
        await world.checkpoint()

    assert found(crashed(given_up, gone=[0, 2])) == (5, 10, [4, 6, 8])


async def expired_up_to_6(world: Run) -> None:
    await ten_records(world)
    await world.sync()
    world.log.advance_start(6)
    await world.remove_expired()
    assert world.latest_start() == 6


@pytest.mark.parametrize("came_back", [[0, 2, 4], [0, 4], [2], [0]])
def test_of_what_retention_took_out_nothing_comes_back_whatever_names_do(came_back: list[int]) -> None:
    async def renamed_in_any_order(world: Run) -> None:
        await expired_up_to_6(world)
        for base in came_back:
            name = f"/data/orders-0/{base:020d}.log"
            world.disk.rename(f"{name}.deleted", name)

    assert found(crashed(renamed_in_any_order)) == (6, 10, [6, 8])


def test_offsets_that_retention_ended_are_not_used_again_if_all_else_is_lost() -> None:
    assert found(crashed(expired_up_to_6, gone=[6, 8])) == (6, 6, [6])
    assert found(crashed(expired_up_to_6, gone=[6])) == (6, 6, [6])


def test_a_log_that_begins_anew_says_where_before_its_first_record() -> None:
    async def anew_at(world: Run, offset: int) -> None:
        await ten_and_a_checkpoint(world)
        assert await world.directory.cuts.restart(world.log, offset, lambda: True) is None
        assert b"first_offset: %d\n" % offset in (world.disk.read_file(METADATA) or b"")
        for _ in range(6):
            append(world.log, batch(value=b"%06d" % 0, timestamp=NOW_MS))

    for offset in (4, 100):
        begun = partial(anew_at, offset=offset)
        bases = [offset, offset + 2, offset + 4]
        assert found(crashed(begun)) == (offset, offset + 6, bases)
        assert found(crashed(begun, gone=bases[:1])) == (offset, offset, [offset])
        assert found(crashed(begun, gone=bases[:2])) == (offset, offset, [offset])


def test_a_full_disk_does_not_hold_up_retention() -> None:
    async def full(world: Run) -> None:
        await ten_and_a_checkpoint(world)
        fault = world.disk.fail(lambda path: METADATA in path, "replace_file", DiskFullError, times=None)
        world.log.advance_start(6)
        while world.log.segments.bases[0] < 6:
            await world.remove_expired()
        fault.lift()
        assert b"first_offset: 0" in (world.disk.read_file(METADATA) or b"")

    assert found(crashed(full)) == (6, 10, [6, 8])
    assert found(crashed(full, stopped_cleanly=True)) == (6, 10, [6, 8])


def test_a_full_disk_holds_up_retention_of_what_no_checkpoint_says_was_durable() -> None:
    async def full(world: Run) -> None:
        await ten_records(world)
        fault = world.disk.fail(lambda path: METADATA in path, "replace_file", DiskFullError, times=None)
        world.log.advance_start(6)
        await world.remove_expired()
        assert world.log.segments.bases[0] == 0
        assert await world.directory.cuts.restart(world.log, 100, lambda: True) is not None
        fault.lift()

    crashed(full)


@pytest.mark.parametrize("seed", range(20))
def test_a_segment_that_recovery_dropped_does_not_come_back_behind_other_records(seed: int) -> None:
    disk = SimDisk(Random(seed), cached_probability=1.0)
    logs = Logs("/log", disk=disk).configure(segment_bytes=4 * SIZE)
    log = logs.open()
    for _ in range(8):
        append(log, batch(value=b"old   "))
    _, work = log.sync_work()
    work()
    first = disk.open("/log/00000000000000000000.log")
    first.truncate(3 * SIZE)
    first.sync()
    for name in disk.list("/log"):
        if name.endswith(".snapshot"):
            disk.remove(f"/log/{name}")  # else their removal would be made durable, and all other names with it
    disk.sync_directory("/log")
    disk.crash()
    again = logs.open()
    assert again.end_offset == 3
    for _ in range(5):
        append(again, batch(value=b"new   "))
    disk.open("/log/00000000000000000000.log").sync()  # a sync begins with the oldest, and came no further
    disk.crash()
    values = [record.value for record in read_all(logs.open())]
    assert values[3:] == [b"new   "] * (len(values) - 3)


@pytest.mark.parametrize("batches", [3, 10])
def test_a_record_behind_the_gap_in_which_a_log_was_cut_survives(logs: Logs, batches: int) -> None:
    log = logs.configure(segment_bytes=batches * BATCH_BYTES).open()
    sent = b""
    for offset in (0, 1, 2, 7, 8):
        data = batch()
        assign_offset(data, offset, 0)
        sent += data
    log.append_replicated(memoryview(sent), 9)
    log.truncate(5, ProducerState())
    for _ in range(2):
        _, work = log.sync_work()
        work()
        append(log)
    assert [record.offset for record in read_all(logs.open())] == [0, 1, 2, 5, 6]
