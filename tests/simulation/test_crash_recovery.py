"""A whole broker in virtual time, killed and unplugged at random moments under load, by seed.

Each seed is one run: producers with several batches in flight, a handful of crashes, and after each restart a
reader from outside. TAILRACE_SIM_SEEDS sets how many seeds run, TAILRACE_SIM_SEED replays a single one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from tailrace.model import TopicPartition
from tailrace.records.record import Record
from tailrace.storage.partition_log import PartitionLog
from tailrace.storage.producer_state import ProducerState
from tailrace.testing.client import KafkaClient
from tailrace.testing.history import (
    check_is_prefix,
    check_offsets_contiguous,
    check_only_what_was_sent,
    check_order,
    check_promises,
)
from tailrace.testing.loop import SimLoop
from tailrace.testing.network import SimNetwork
from tailrace.testing.node import PORT, SimNode
from tailrace.testing.workload import Acknowledged, SimProducer, read_partition
from tests.simulation.seeds import chunks_of_seeds, name_of_chunk

SEEDS_PER_TEST = 50
#: Seeds that once found a bug, named after the bug.
REGRESSIONS = {
    "the high watermark fell back after a crash, until the first sync": 50,
    "records that survived a kill were not synced afterwards and lost to a power cut": 129,
    "a new partition's directory was lost with acknowledged records in it": 541,
}
BACKGROUND_SECONDS = 1.0
#: The longest sync in these runs, in addition to the interval.
SYNC_SECONDS = 0.5
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)]


@dataclass
class Run:
    """One seed's world."""

    seed: int
    loop: SimLoop
    random: Random
    network: SimNetwork
    node: SimNode
    flush_messages: int | None
    producers: list[SimProducer] = field(default_factory=list)
    seen: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    power_cuts: list[float] = field(default_factory=list)
    crashes: int = 0
    acknowledged: int = 0


async def simulate(seed: int, more_settings: Mapping[str, str] | None = None) -> Run:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    random = loop.random_for("scenario")
    network = SimNetwork(loop, loop.random_for("network"))
    flush_messages = random.choice([None, 1, 1, 7])
    pause_seconds = random.choice([0.01, *[0.1] * 9])
    settings = {"log.flush.offset.checkpoint.interval.ms": "1500", **(more_settings or {})}
    if flush_messages is not None:
        settings["log.flush.interval.messages"] = str(flush_messages)
    run = Run(seed, loop, random, network, SimNode(loop, network, "broker", settings), flush_messages)
    broker = await run.node.start()
    for topic in dict.fromkeys(partition.topic for partition in PARTITIONS):
        count = sum(1 for partition in PARTITIONS if partition.topic == topic)
        await broker.metadata.create_topic(broker.metadata.plan_topic(topic, count, 1, {}, {}))
    for index, partition in enumerate([*PARTITIONS, PARTITIONS[0]]):
        run.producers.append(
            SimProducer(
                f"p{index}",
                partition,
                is_idempotent=index < len(PARTITIONS),
                network=network.host(f"client{index}"),
                host="broker",
                port=PORT,
                loop=loop,
                random=loop.random_for(f"producer {index}"),
                pause_seconds=pause_seconds,
            )
        )
    tasks = [loop.create_task(producer.run()) for producer in run.producers]
    for _ in range(random.randint(2, 5)):
        await asyncio.sleep(random.uniform(0.05, 2.5))
        await interrupt(run)
        await check(run)
    for producer in run.producers:
        producer.is_stopping = True
    for task in tasks:
        await task
    await check(run)
    run.acknowledged = sum(len(producer.acknowledged) for producer in run.producers)
    await run.node.stop()
    return run


async def interrupt(run: Run) -> None:
    """End the broker in a random way, and restart it."""
    how = run.random.choice(["unplug", "unplug", "unplug", "kill", "stop", "network"])
    if how == "network":
        await disturb_network(run)
        return
    if how == "stop":
        await run.node.stop()
    elif how == "kill":
        run.node.kill()
    else:
        run.node.unplug()
        run.power_cuts.append(run.loop.time())
        run.seen.clear()
    run.crashes += 1
    await asyncio.sleep(run.random.uniform(0.01, 0.3))
    await run.node.start()


async def disturb_network(run: Run) -> None:
    """Reset the connections of some clients and cut others off for a while; the broker itself goes on."""
    for index in range(len(run.producers)):
        fate = run.random.choice(["nothing", "reset", "cut", "one way"])
        if fate == "reset":
            run.network.reset(f"client{index}", "broker")
        elif fate != "nothing":
            run.network.cut(f"client{index}", "broker", one_way=fate == "one way")
    await asyncio.sleep(run.random.uniform(0.01, 1.0))
    run.network.heal()


def promised(run: Run, partition: TopicPartition) -> list[Acknowledged]:
    """Everything acknowledged that must have survived every power cut since, by the flush policy at that time."""
    acknowledged = [
        ack for producer in run.producers if producer.partition == partition for ack in producer.acknowledged
    ]
    if run.flush_messages == 1:
        return acknowledged
    for cut in run.power_cuts:
        earlier = [ack for ack in acknowledged if ack.connected_at < cut]
        # Fewer than N records of the log are unsynced at the moment an acknowledgement is given.
        synced = max((ack.offset for ack in earlier), default=0) + 1 - (run.flush_messages or 1 << 62)
        acknowledged = [
            ack
            for ack in acknowledged
            if ack.connected_at >= cut or ack.offset <= synced or ack.at <= cut - BACKGROUND_SECONDS - SYNC_SECONDS
        ]
    return acknowledged


async def check(run: Run) -> None:
    """Check the broker from outside."""
    client = await KafkaClient.connect(run.network.host("checker"), "broker", PORT, "checker")
    for partition in PARTITIONS:
        # What is acknowledged while reading may lie beyond what is read.
        expected = promised(run, partition)
        records = await read_partition(client, partition)
        mine = [producer for producer in run.producers if producer.partition == partition]
        check_offsets_contiguous(records)
        check_only_what_was_sent(records, mine)
        check_promises(records, expected)
        check_is_prefix(run.seen.get(partition, []), records)
        for producer in mine:
            check_order(records, producer, may_have_lost=bool(run.power_cuts) and run.flush_messages != 1)
        run.seen[partition] = records
    client.close()


def run_seed(seed: int) -> Run:
    try:
        return SimLoop(seed, max_virtual_seconds=3600).run(simulate(seed))
    except BaseException as error:
        error.add_note(f"replay with: TAILRACE_SIM_SEED={seed} pytest tests/simulation/test_crash_recovery.py")
        raise


@pytest.mark.parametrize("seeds", chunks_of_seeds(SEEDS_PER_TEST), ids=name_of_chunk)
def test_what_the_flush_policy_promised_survives_every_crash(seeds: list[int]) -> None:
    crashes = acknowledged = 0
    for seed in seeds:
        run = run_seed(seed)
        crashes += run.crashes
        acknowledged += run.acknowledged
    print(f"seeds {seeds[0]} to {seeds[-1]}: {crashes} crashes, {acknowledged} records acknowledged")
    assert crashes > 0
    assert acknowledged > 0


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_seed_that_once_failed_passes(name: str) -> None:
    run_seed(REGRESSIONS[name])


def test_the_same_seed_gives_the_same_trace() -> None:
    def digest(seed: int) -> tuple[int, int, int]:
        run = run_seed(seed)
        return run.node.disk.trace.digest, run.network.trace.digest, run.loop.steps

    assert digest(4242) == digest(4242)
    assert digest(4242) != digest(4243)


def seeds_until_caught(limit: int = 60) -> int:
    """Return how many seeds it takes until a checker fails."""
    for seed in range(limit):
        try:
            run_seed(seed)
        except AssertionError:
            return seed + 1
    raise AssertionError(f"nobody noticed in {limit} seeds")


def test_the_checkers_catch_a_log_that_promises_before_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise_at_once(log: PartitionLog, size: int) -> None:
        account(log, size)
        log.promised_offset = log.end_offset

    account = PartitionLog._account
    monkeypatch.setattr(PartitionLog, "_account", promise_at_once)
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_checkers_catch_a_log_that_forgets_its_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerState, "check", lambda state, header: None)
    print(f"caught after {seeds_until_caught()} seeds")


def test_the_checkers_catch_a_recovery_that_keeps_torn_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.storage.recovery.has_valid_crc", lambda *arguments: True)
    print(f"caught after {seeds_until_caught(300)} seeds")
