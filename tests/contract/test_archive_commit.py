"""Archive commits on every store: of two concurrent commits one is refused, and no caller gets a wrong result.

The broker's own code over real stores, without brokers: what ArchiveCommit does is one change of metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from uuid import UUID

from tailrace.cluster.archives import ArchiveCommit, ArchivedRange, ArchiveState
from tailrace.cluster.image import PartitionState, TopicImage
from tailrace.cluster.keys import archive_key
from tailrace.cluster.metadata import ClusterMetadata
from tailrace.cluster.store import Store, Unavailable
from tailrace.errors import ErrorCode, KafkaError
from tailrace.runtime.tasks import Tasks
from tests.contract.stores import Stores

TOPIC = TopicImage("orders", UUID(int=7), (PartitionState((1,), (1,), 1, 0),), {})
ROUNDS = 10
#: How a commit may end that was not made, or whose outcome is unknown.
REFUSED, UNKNOWN = ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.REQUEST_TIMED_OUT


@asynccontextmanager
async def committing(stores: Stores, count: int) -> AsyncIterator[list[tuple[Store, ClusterMetadata]]]:
    """Brokers that know the topic, as far as metadata goes."""
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)
    clients = [await stores.client() for _ in range(count)]
    brokers = [ClusterMetadata(store, Random(number), number, tasks) for number, store in enumerate(clients)]
    # The last first: it is never one that has only little time for a call because it is to be cut off.
    for broker in reversed(brokers):
        await broker.load()
        await broker.start()
        if broker is brokers[-1]:
            await broker.create_topic(TOPIC)
    try:
        yield list(zip(clients, brokers, strict=True))
        assert not failures
    finally:
        await tasks.cancel()


async def stored(store: Store) -> ArchiveState:
    entry = await store.get(archive_key(TOPIC.lineage))
    return ArchiveState(TOPIC.lineage) if entry is None else ArchiveState.from_bytes(entry.value)


class Archiver:
    """Commits one more offset each time, and remembers which of its manifests were accepted."""

    def __init__(self, name: str, store: Store, broker: ClusterMetadata) -> None:
        self.name = name
        self.made: dict[int, str] = {}
        self.unknown: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self._store = store
        self._broker = broker

    async def commit(self, known: ArchiveState) -> ErrorCode:
        """Commit on top of the known version; return the outcome."""
        version = known.version + 1
        manifest = f"{version}-{self.name}"
        wanted = ArchiveCommit(known.version, "/archive", manifest, {0: ArchivedRange(0, version)})
        try:
            state = await self._broker.commit_archive(TOPIC, wanted)
        except KafkaError as error:
            if error.code not in (REFUSED, UNKNOWN):
                raise
            (self.unknown if error.code is UNKNOWN else self.refused)[manifest] = version
            return error.code
        # By now it may be at a later version.
        assert state.version >= version
        self.made[version] = manifest
        return ErrorCode.NONE

    async def commit_until(self, version: int) -> None:
        """Commit until the archive has reached an offset, by any archiver's commits."""
        while True:
            try:
                known = await stored(self._store)
            except Unavailable:
                await asyncio.sleep(0.01)
                continue
            if known.version >= version:
                return
            await self.commit(known)
            await asyncio.sleep(0)


def check(archivers: list[Archiver], final: ArchiveState) -> None:
    """Each version was made by one, and by one who does not know that it was not."""
    told = [version for archiver in archivers for version in archiver.made]
    assert len(told) == len(set(told)), "two were told that they made one version"
    unknown = {version for archiver in archivers for version in archiver.unknown.values()}
    assert set(range(1, final.version + 1)) <= {*told, *unknown}
    assert max(told) <= final.version
    assert final.partitions == {0: (0, final.version)}
    last = [archiver.made.get(final.version, "") for archiver in archivers]
    assert final.manifest in [*last, *(name for archiver in archivers for name in archiver.unknown)]


def test_of_two_who_commit_on_one_version_one_is_refused(shared_stores: Stores) -> None:
    async def test() -> None:
        async with committing(shared_stores, 2) as brokers:
            archivers = [Archiver(f"a{number}", *broker) for number, broker in enumerate(brokers)]
            for version in range(ROUNDS):
                known = await stored(brokers[0][0])
                assert known.version == version
                ends = await asyncio.gather(*(archiver.commit(known) for archiver in archivers))
                assert sorted(ends) == [ErrorCode.NONE, REFUSED]
            check(archivers, await stored(brokers[0][0]))
            assert sum(len(archiver.refused) for archiver in archivers) == ROUNDS

    shared_stores.run(test())


def test_a_commit_that_cannot_be_known_is_no_success_and_is_made_whole_or_not_at_all(breakable_stores: Stores) -> None:
    async def test() -> None:
        async with committing(breakable_stores, 2) as brokers:
            (cut, broker), (other, _) = brokers
            archiver = Archiver("cut", cut, broker)

            async def commits(known: ArchiveState) -> bool:
                # On the same version: it was made already or is made now, but never twice.
                return await archiver.commit(known) is ErrorCode.NONE

            await breakable_stores.until(partial(commits, await stored(other)), "a commit is made")
            known = await stored(other)
            await breakable_stores.cut(cut)
            assert await archiver.commit(known) is UNKNOWN
            await breakable_stores.mend(cut)
            await breakable_stores.until(partial(commits, known), "a commit that was not answered can be made again")
            final = await stored(other)
            assert (final.version, final.manifest, final.partitions) == (2, "2-cut", {0: (0, 2)})

    breakable_stores.run(test())


def test_nobody_is_told_of_a_commit_that_is_not_there_when_a_server_is_killed_in_the_middle(
    restarting_stores: Stores,
) -> None:
    async def test() -> None:
        async with committing(restarting_stores, 2) as brokers:
            archivers = [Archiver(f"a{number}", *broker) for number, broker in enumerate(brokers)]
            tasks = [asyncio.create_task(archiver.commit_until(4 * ROUNDS)) for archiver in archivers]
            try:

                async def is_half_way() -> bool:
                    for task in tasks:
                        if task.done():
                            task.result()
                    return max(max(archiver.made, default=0) for archiver in archivers) >= 2 * ROUNDS

                await restarting_stores.until(is_half_way, "commits are made")
                await restarting_stores.kill()
                await restarting_stores.restart()
                await asyncio.wait_for(asyncio.gather(*tasks), 2 * restarting_stores.patience_seconds)
            finally:
                for task in tasks:
                    task.cancel()
            check(archivers, await stored(brokers[0][0]))

    restarting_stores.run(test())
