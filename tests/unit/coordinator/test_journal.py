"""A journal with many concurrent writers: the batches they share, and the order of all writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.coordinator.journal import Journal
from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.outcome import Outcome
from tests.unit.replication.replicas import Replica, Replicas, with_replicas


def batches_of(replica: Replica) -> list[int]:
    """How many records each batch of a log has."""
    return [header.record_count for segment in replica.partition.log.segments for _, header in segment.headers(0)]


class Writers:
    """Operations that share batches, and which of them were taken, in order."""

    def __init__(self, replica: Replica) -> None:
        self.journal = Journal(replica.partition, replica.clock)
        self.taken: list[int] = []

    def write(self, number: int, records: int = 1, value: bytes | None = None) -> Outcome[None]:
        written: Outcome[None] = Outcome()
        content = b"%d" % number if value is None else value
        self.journal.append_shared([(b"key", content)] * records, self._take(number), written)
        return written

    def _take(self, number: int) -> Callable[[], None]:
        return lambda: self.taken.append(number)


def test_what_comes_in_one_turn_shares_a_batch() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        replicas.change(isr=(1,))
        writers = Writers(leader)
        written = [writers.write(number) for number in range(5)]
        assert writers.taken == []
        assert not any(each.done() for each in written)
        await asyncio.sleep(0)
        assert all(each.done() for each in written)
        assert writers.taken == [0, 1, 2, 3, 4]
        assert batches_of(leader) == [5]
        await writers.write(5)
        assert batches_of(leader) == [5, 1]

    with_replicas(test)


def test_who_writes_again_when_told_of_the_end_is_in_the_next_batch() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        replicas.change(isr=(1,))
        writers = Writers(leader)
        again: list[Outcome[None]] = []
        for number in range(3):
            writers.write(number).add_done_callback(lambda _, number=number: again.append(writers.write(number + 10)))
        await asyncio.sleep(0)
        assert batches_of(leader) == [3]
        await asyncio.gather(*again)
        assert batches_of(leader) == [3, 3]
        assert writers.taken == [0, 1, 2, 10, 11, 12]

    with_replicas(test)


def test_what_is_written_alone_comes_after_what_waits() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        writers = Writers(leader)
        for number in range(3):
            writers.write(number)
        writers.journal.append([(b"key", b"alone"), (b"key", b"too")])
        assert writers.taken == [0, 1, 2]
        assert batches_of(leader) == [3, 2]

    with_replicas(test)


def test_what_waits_is_told_when_the_others_have_it() -> None:
    async def test(replicas: Replicas) -> None:
        writers = Writers(replicas.leader)
        written = [writers.write(number) for number in range(3)]
        await asyncio.sleep(1)
        assert writers.taken == [0, 1, 2]
        assert not any(each.done() for each in written)
        await replicas.fetch(rounds=2)
        await asyncio.gather(*written)

    with_replicas(test)


def test_who_does_not_lead_any_more_refuses_all_that_waits_and_takes_none_of_it() -> None:
    async def test(replicas: Replicas) -> None:
        writers = Writers(replicas.leader)
        written = [writers.write(number) for number in range(3)]
        replicas.change(leader=2)
        for each in written:
            error = (await asyncio.gather(each, return_exceptions=True))[0]
            assert isinstance(error, KafkaError)
        assert writers.taken == []
        assert batches_of(replicas.all[0]) == []
        errors = [each.exception() for each in written]
        assert {error.code for error in errors if isinstance(error, KafkaError)} == {ErrorCode.NOT_COORDINATOR}

    with_replicas(test)


def test_no_batch_gets_larger_than_any_limit() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        writers = Writers(leader)
        for number in range(5):
            writers.write(number, records=90)
        writers.write(5, records=500)
        writers.journal.flush()
        assert batches_of(leader) == [180, 180, 90, 500]
        assert writers.taken == [0, 1, 2, 3, 4, 5]

    with_replicas(test)


def test_what_is_too_large_for_the_topic_is_refused_alone() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        replicas.change(isr=(1,))
        most = leader.partition.log.config.max_message_bytes
        writers = Writers(leader)
        written = [writers.write(number) for number in range(3)]
        # Each of these fits, all together do not, and one does not fit at all.
        sizes = (most // 2, most // 2, most + 1, most // 2)
        written += [writers.write(number, value=bytes(size)) for number, size in enumerate(sizes, 3)]
        written += [writers.write(7)]
        await asyncio.sleep(0)
        refused = [number for number, each in enumerate(written) if each.exception() is not None]
        assert refused == [5]
        error = written[5].exception()
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert writers.taken == [0, 1, 2, 3, 4, 6, 7]
        assert sum(batches_of(leader)) == 7

    with_replicas(test)


def test_who_shares_a_batch_is_told_in_the_words_of_coordinators_that_it_cannot_be_committed() -> None:
    async def test(replicas: Replicas) -> None:
        leader = replicas.leader
        leader.partition.min_insync_replicas = 2
        writers = Writers(leader)
        written = [writers.write(number) for number in range(2)]
        await asyncio.sleep(0)
        assert writers.taken == [0, 1]
        replicas.change(isr=(1,))
        errors = await asyncio.gather(*written, return_exceptions=True)
        assert {error.code for error in errors if isinstance(error, KafkaError)} == {
            ErrorCode.COORDINATOR_NOT_AVAILABLE
        }

    with_replicas(test)
