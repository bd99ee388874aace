"""A broker with 10,000 partitions creates and deletes topics and applies retention, and still answers a client.

What the loop does at once is counted in two ways that do not depend on how fast the machine is: how often a client that
asks again after each answer is answered meanwhile, and how much CPU time a single step of the loop takes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from tailrace.broker import partitions as broker_partitions
from tailrace.errors import StorageError
from tailrace.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.unit.broker.brokers import TestedBroker, with_broker

TOPICS = 10
PARTITIONS_EACH = 1000
SEGMENTS = 300
#: CPU time of the loop's thread. Most of it is for machines that are slow: a step takes some 20 ms.
MOST_STEP_SECONDS = 0.5


class Steps:
    """The longest step of the event loop since the last call."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.what = ""

    def take(self) -> float:
        found, self.longest_seconds = self.longest_seconds, 0.0
        return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    found = Steps()
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        seconds = time.thread_time() - began
        if seconds > found.longest_seconds:
            found.longest_seconds, found.what = seconds, repr(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    # A collection is of all that the process has, here also of all that the tests have: a broker sets its own pace.
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


async def answered_during(tested: TestedBroker, work: Awaitable[object]) -> int:
    """Count the answered requests of another client while the block runs."""
    answered = 0

    async def ask() -> None:
        nonlocal answered
        while True:
            await tested.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            answered += 1
            await asyncio.sleep(0)

    client = asyncio.ensure_future(ask())
    try:
        await work
    finally:
        client.cancel()
    return answered


def test_others_are_served_while_thousands_of_partitions_are_created_deleted_and_retained(
    tmp_path: Path, steps: Steps
) -> None:
    def require_short_steps(what: str, answered: int, at_least: int) -> None:
        longest = steps.take()
        print(f"{what}: {answered} requests answered meanwhile, the longest step took {longest * 1000:.0f} ms of CPU")
        assert longest < MOST_STEP_SECONDS, steps.what
        assert answered >= at_least

    async def test(tested: TestedBroker) -> None:
        metadata, partitions = tested.broker.metadata, tested.broker.partitions
        steps.take()
        for number in range(TOPICS):
            configs = {"segment_bytes": "1048576"}
            answered = await answered_during(tested, tested.create(f"t{number}", PARTITIONS_EACH, **configs))
            require_short_steps(f"topic {number}", answered, PARTITIONS_EACH // broker_partitions._OPENED_PER_TURN - 1)
        for partition in partitions:
            await tested.produce(partition.partition.topic, partition=partition.partition.partition)
            await asyncio.sleep(0)
        log = partitions.find("t1", 0).log
        for _ in range(SEGMENTS):
            log._roll()
            await tested.produce("t1")
            await asyncio.sleep(0)
        steps.take()

        deletion = metadata.delete_topic(metadata.image.topics["t0"])
        answered = await answered_during(tested, deletion)
        require_short_steps("deletion", answered, PARTITIONS_EACH // broker_partitions._REMOVED_PER_TURN - 1)
        assert "t0" not in metadata.image.topics

        log.advance_start(log.end_offset - 1)
        answered = await answered_during(tested, partitions.remove_expired())
        least = (TOPICS - 1) * PARTITIONS_EACH + SEGMENTS // broker_partitions._EXPIRED_PER_TURN - 10
        require_short_steps("retention", answered, least)
        assert log.segments.count == 1
        for directory in partitions.directories:
            assert directory.failure is None
            # No clean stop: syncing thousands of logs would take longer than the whole test.
            directory.fail(StorageError("the test is over"))

    with_broker(tmp_path, test, tailrace_flush_background_ms="-1")
