"""The state of an archive: what a commit may change, that one of two is refused, and that it goes with its topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tailrace.cluster.archives import ArchiveCommit, ArchivedRange, ArchiveState, with_deleted
from tailrace.cluster.image import PartitionState, TopicImage
from tailrace.cluster.keys import archive_key
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import Entry, Unreadable
from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.tasks import Tasks
from tailrace.stores.memory import MemoryStore
from tests.unit.cluster.test_metadata import SlowStore

TOPIC_ID = UUID(int=7)
TOPIC = TopicImage("orders", TOPIC_ID, (PartitionState((1,), (1,), 1, 0),) * 2, {})
EMPTY = ArchiveState(TOPIC_ID)


def commit(version: int, manifest: str = "m", **ranges: tuple[int, int]) -> ArchiveCommit:
    """A commit of partitions `p0`, `p1`…"""
    spans = {int(name[1:]): ArchivedRange(*span) for name, span in ranges.items()}
    return ArchiveCommit(version, "/archive", manifest, spans)


def refused(state: ArchiveState, change: ArchiveCommit) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        change.applied_to(state)
    return refusal.value.code


def test_what_is_stored_is_read_again() -> None:
    state = with_deleted(commit(0, p0=(5, 10), p1=(0, 3)).applied_to(EMPTY), {0: 7})
    assert ArchiveState.from_bytes(state.to_bytes()) == state
    with pytest.raises(Unreadable, match="format 2"):
        ArchiveState.from_bytes(state.to_bytes().replace(b'"format":1', b'"format":2'))


def test_a_change_keeps_fields_of_a_newer_release() -> None:
    first = commit(0, p0=(5, 10)).applied_to(EMPTY)
    stored = json.dumps({**json.loads(first.to_bytes()), "tables": {"orders": 3}}).encode()
    read = ArchiveState.from_bytes(stored)
    changed = with_deleted(commit(1, p0=(5, 12)).applied_to(read), {0: 7})
    assert json.loads(changed.to_bytes())["tables"] == {"orders": 3}
    assert ArchiveState.from_bytes(changed.to_bytes()) == changed != replace(changed, unknown={})


def test_ranges_grow_at_the_end_and_shrink_at_the_start() -> None:
    state = commit(0, p0=(0, 10)).applied_to(EMPTY)
    grown = commit(1, p0=(4, 12), p1=(3, 3)).applied_to(state)
    assert grown.partitions == {0: (4, 12), 1: (3, 3)}
    assert grown.version == 2
    assert refused(state, commit(1, p0=(0, 9))) is ErrorCode.INVALID_REQUEST
    assert refused(grown, commit(2, p0=(3, 12))) is ErrorCode.INVALID_REQUEST
    assert refused(state, commit(1, p1=(5, 4))) is ErrorCode.INVALID_REQUEST
    assert refused(state, commit(1, p1=(-1, 4))) is ErrorCode.INVALID_REQUEST


def test_a_commit_on_another_version_is_refused_and_one_that_is_repeated_is_not() -> None:
    state = commit(0, "first", p0=(0, 10)).applied_to(EMPTY)
    assert refused(state, commit(0, "second", p0=(0, 11))) is ErrorCode.INVALID_UPDATE_VERSION
    assert refused(state, commit(2, "second", p0=(0, 11))) is ErrorCode.INVALID_UPDATE_VERSION
    assert commit(0, "first", p0=(0, 10)).applied_to(state) is state


def test_what_was_deleted_is_not_readable() -> None:
    state = commit(0, p0=(2, 10)).applied_to(EMPTY)
    assert state.readable(0) == (2, 10)
    assert state.readable(1) is None
    assert with_deleted(state, {0: 1}).readable(0) == (2, 10)
    assert with_deleted(state, {0: 6}).readable(0) == (6, 10)
    assert with_deleted(with_deleted(state, {0: 6}), {0: 5}).readable(0) == (6, 10)
    assert with_deleted(state, {0: 10}).readable(0) is None
    assert with_deleted(state, {0: 10}).archived_end(0) == 10


def run(work: Callable[[MemoryStore, ClusterMetadata, ClusterMetadata], Coroutine[Any, Any, None]]) -> None:
    """With two brokers on one store that have a topic."""

    async def main() -> None:
        failures: list[BaseException] = []
        tasks = Tasks(failures.append)
        store = SlowStore()
        one, other = (ClusterMetadata(store, Random(number), number, tasks) for number in (1, 2))
        await one.load()
        await other.load()
        await one.start()
        await other.start()
        await one.create_topic(TOPIC)
        await work(store, one, other)
        assert not failures
        await store.close()
        await tasks.cancel()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  nobody tells what another broker has learned
            await asyncio.sleep(0)


def test_every_broker_learns_of_a_commit_and_of_the_next_after_a_restart() -> None:
    async def work(store: MemoryStore, one: ClusterMetadata, other: ClusterMetadata) -> None:
        state = await one.commit_archive(TOPIC, commit(0, p0=(0, 10)))
        assert one.image.archives == {TOPIC_ID: state}
        await until(lambda: other.image.archives == {TOPIC_ID: state})
        again = await other.commit_archive(TOPIC, commit(1, p1=(0, 5)))
        assert again.partitions == {0: (0, 10), 1: (0, 5)}
        restarted = ClusterMetadata(store, Random(3), 3, Tasks(lambda _: None))
        await restarted.load()
        assert restarted.image.archives == {TOPIC_ID: again}

    run(work)


def test_of_two_commits_on_one_version_one_is_made() -> None:
    async def work(store: MemoryStore, one: ClusterMetadata, other: ClusterMetadata) -> None:
        await until(lambda: TOPIC_ID in other.image.topics_by_id)
        outcomes = await asyncio.gather(
            one.commit_archive(TOPIC, commit(0, "one", p0=(0, 10))),
            other.commit_archive(TOPIC, commit(0, "other", p0=(0, 9))),
            return_exceptions=True,
        )
        (refusal,) = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
        (made,) = [outcome for outcome in outcomes if isinstance(outcome, ArchiveState)]
        assert refusal.code is ErrorCode.INVALID_UPDATE_VERSION
        stored = await store.get(archive_key(TOPIC_ID))
        assert isinstance(stored, Entry)
        assert ArchiveState.from_bytes(stored.value) == made

    run(work)


def test_a_commit_whose_answer_was_lost_is_found() -> None:
    async def work(store: MemoryStore, one: ClusterMetadata, other: ClusterMetadata) -> None:
        assert isinstance(store, SlowStore)
        store.loses_answers = True
        state = await one.commit_archive(TOPIC, commit(0, p0=(0, 10)))
        assert (state.version, state.partitions) == (1, {0: (0, 10)})

    run(work)


def test_records_are_deleted_without_a_new_version_of_the_archive() -> None:
    async def work(store: MemoryStore, one: ClusterMetadata, other: ClusterMetadata) -> None:
        await one.delete_archived(TOPIC, {1: 4})
        await one.commit_archive(TOPIC, commit(0, p1=(0, 10)))
        assert one.image.archives[TOPIC_ID].readable(1) == (4, 10)

    run(work)


def test_an_archive_is_forgotten_with_its_topic_and_none_is_made_after() -> None:
    async def work(store: MemoryStore, one: ClusterMetadata, other: ClusterMetadata) -> None:
        await one.commit_archive(TOPIC, commit(0, p0=(0, 10)))
        await until(lambda: bool(other.image.archives))
        await one.delete_topic(TOPIC)
        assert not one.image.archives
        assert await store.get(archive_key(TOPIC_ID)) is None
        await until(lambda: not other.image.archives)
        with pytest.raises(KafkaError) as refusal:
            await other.commit_archive(TOPIC, commit(0, p0=(0, 10)))
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await store.get(archive_key(TOPIC_ID)) is None

    run(work)


def test_a_partition_that_the_topic_has_not_is_refused() -> None:
    async def work(store: MemoryStore, one: ClusterMetadata, other: ClusterMetadata) -> None:
        with pytest.raises(KafkaError) as refusal:
            await one.commit_archive(TOPIC, commit(0, p2=(0, 10)))
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(work)
