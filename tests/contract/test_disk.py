"""What every disk promises, real or simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tailrace.errors import StorageError
from tailrace.runtime.disk import Directory, Disk, RemovedError
from tailrace.runtime.system.disk import SystemDisk
from tailrace.testing.disk import SimDisk
from tests.contract.world import MAX_OPEN_FILES, World


def test_what_was_appended_is_read_back_at_its_position(world: World) -> None:
    file = world.disk.open(f"{world.root}/a", create=True)
    file.append(b"one")
    file.append(bytearray(b"two"))
    file.append(memoryview(b"three")[1:])
    assert file.size == 10
    assert file.read(0, 10) == b"onetwohree"
    assert file.read(3, 3) == b"two"


def test_a_read_beyond_the_end_gives_what_there_is(world: World) -> None:
    file = world.disk.open(f"{world.root}/a", create=True)
    file.append(b"abc")
    assert file.read(1, 100) == b"bc"
    assert file.read(3, 100) == b""
    assert file.read(50, 1) == b""


def test_an_append_after_a_truncation_goes_to_the_new_end(world: World) -> None:
    file = world.disk.open(f"{world.root}/a", create=True)
    file.append(b"abcdef")
    file.truncate(2)
    assert file.size == 2
    file.append(b"X")
    assert file.read(0, 10) == b"abX"
    assert world.disk.read_file(f"{world.root}/a") == b"abX"


def test_opening_to_create_leaves_existing_content(world: World) -> None:
    world.disk.replace_file(f"{world.root}/a", b"kept")
    file = world.disk.open(f"{world.root}/a", create=True)
    assert (file.size, file.path) == (4, f"{world.root}/a")
    file.append(b"!")
    assert world.disk.read_file(f"{world.root}/a") == b"kept!"


def test_a_missing_file_is_refused_by_name(world: World) -> None:
    with pytest.raises(StorageError, match="absent"):
        world.disk.open(f"{world.root}/absent")
    assert world.disk.list(world.root) == []


def test_a_file_cannot_be_created_in_a_missing_directory(world: World) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        world.disk.open(f"{world.root}/nowhere/a", create=True)
    with pytest.raises(StorageError, match="nowhere"):
        world.disk.replace_file(f"{world.root}/nowhere/a", b"")


@pytest.mark.parametrize("sync", [True, False])
def test_a_replaced_file_has_its_new_content_and_leaves_nothing_else_behind(world: World, sync: bool) -> None:
    path = f"{world.root}/checkpoint"
    assert world.disk.read_file(path) is None
    world.disk.replace_file(path, b"a longer first version", sync=sync)
    world.disk.replace_file(path, b"second", sync=sync)
    assert world.disk.read_file(path) == b"second"
    assert world.disk.list(world.root) == ["checkpoint"]


def test_names_are_listed_sorted_and_a_missing_directory_is_empty(world: World) -> None:
    for name in ("b", "a", "c"):
        world.disk.open(f"{world.root}/{name}", create=True)
    world.disk.make_directory(f"{world.root}/ab")
    assert list(world.disk.list(world.root)) == ["a", "ab", "b", "c"]
    assert list(world.disk.list(f"{world.root}/none")) == []


def test_a_directory_is_made_with_its_parents_and_again_without_effect(world: World) -> None:
    path = f"{world.root}/x/y/z"
    world.disk.make_directory(path)
    world.disk.replace_file(f"{path}/f", b"1")
    world.disk.make_directory(path)
    assert world.disk.read_file(f"{path}/f") == b"1"


def test_a_directory_is_not_made_over_a_file(world: World) -> None:
    world.disk.replace_file(f"{world.root}/f", b"1")
    with pytest.raises(StorageError, match="f"):
        world.disk.make_directory(f"{world.root}/f")


def test_removing_takes_a_file_or_a_whole_directory_or_nothing(world: World) -> None:
    world.disk.make_directory(f"{world.root}/d/e")
    world.disk.replace_file(f"{world.root}/d/e/f", b"1")
    world.disk.replace_file(f"{world.root}/g", b"2")
    world.disk.remove(f"{world.root}/d")
    world.disk.remove(f"{world.root}/g")
    world.disk.remove(f"{world.root}/never")
    assert list(world.disk.list(world.root)) == []
    assert not world.disk.exists(f"{world.root}/d/e/f")


def test_a_removed_file_stays_readable_to_those_who_have_it_open(world: World) -> None:
    files = _open_more_than_the_limit(world)
    world.disk.remove(f"{world.root}/d")
    assert [file.read(0, 10) for file in files] == [str(number).encode() for number in range(len(files))]


def test_open_files_follow_when_their_directory_is_renamed(world: World) -> None:
    files = _open_more_than_the_limit(world)
    world.disk.rename(f"{world.root}/d", f"{world.root}/moved")
    for file in files:
        file.append(b"+")
    for number, file in enumerate(files):
        assert file.path == f"{world.root}/moved/{number}"
        assert world.disk.read_file(file.path) == b"%d+" % number


def test_an_open_file_keeps_its_content_when_another_takes_its_name(world: World) -> None:
    files = _open_more_than_the_limit(world)
    for number in range(len(files)):
        world.disk.replace_file(f"{world.root}/new", b"other")
        world.disk.rename(f"{world.root}/new", f"{world.root}/d/{number}")
    assert [file.read(0, 10) for file in files] == [str(number).encode() for number in range(len(files))]
    assert world.disk.read_file(f"{world.root}/d/0") == b"other"


def test_a_directory_is_used_by_itself_whatever_it_is_called(world: World) -> None:
    files = _open_more_than_the_limit(world)
    directory = world.disk.directory(f"{world.root}/d")
    world.disk.rename(f"{world.root}/d", f"{world.root}/moved")
    world.disk.make_directory(f"{world.root}/d")
    assert directory.path == f"{world.root}/moved"
    directory.replace_file("new", b"1")
    directory.remove("0")
    directory.remove("never")
    directory.sync()
    assert list(world.disk.list(f"{world.root}/d")) == []
    assert world.disk.list(f"{world.root}/moved") == directory.list()
    assert "new" in directory.list()
    assert "0" not in directory.list()
    assert files[0].read(0, 10) == b"0"


def test_a_directory_that_was_removed_is_not_mistaken_for_the_next_of_its_name(world: World) -> None:
    world.disk.make_directory(f"{world.root}/d")
    directory = world.disk.directory(f"{world.root}/d")
    world.disk.remove(f"{world.root}/d")
    world.disk.make_directory(f"{world.root}/d")
    for call in (
        directory.list,
        directory.sync,
        lambda: directory.replace_file("a", b""),
        lambda: directory.remove("a"),
    ):
        with pytest.raises(RemovedError):
            call()
    assert list(world.disk.list(f"{world.root}/d")) == []
    with pytest.raises(StorageError, match="none"):
        world.disk.directory(f"{world.root}/none")


def test_files_are_synced_in_threads_while_their_directory_is_renamed(world: World) -> None:
    async def scenario() -> None:
        files = _open_more_than_the_limit(world)
        directory = world.disk.directory(f"{world.root}/d")
        name = f"{world.root}/d"

        def sync_all() -> None:
            for file in files:
                file.sync()
                directory.sync()

        for number in range(5):
            running = asyncio.ensure_future(world.disk.offload(sync_all))
            while not running.done():
                await asyncio.sleep(0.001)
                world.disk.rename(name, f"{world.root}/{number}")
                world.disk.rename(f"{world.root}/{number}", name)
            await running

    world.run(scenario())


def test_a_directory_removed_under_a_thread_is_said_to_be_removed_and_nothing_else(world: World) -> None:
    async def scenario() -> None:
        for _ in range(30):
            world.disk.make_directory(f"{world.root}/d")
            directory = world.disk.directory(f"{world.root}/d")

            def use(directory: Directory = directory) -> None:
                for number in range(5):
                    directory.replace_file(str(number), b"1", sync=False)
                directory.sync()

            running = asyncio.ensure_future(world.disk.offload(use))
            await asyncio.sleep(0.0001)
            world.disk.rename(f"{world.root}/d", f"{world.root}/gone")
            await world.disk.offload(lambda: world.disk.remove(f"{world.root}/gone"))
            try:
                await running
            except RemovedError:
                pass
            assert list(world.disk.list(world.root)) == []

    world.run(scenario())


def test_more_files_than_descriptors_stay_usable(world: World) -> None:
    files = _open_more_than_the_limit(world)
    for _ in range(2):
        for file in files:
            file.append(b"x")
    assert [file.size for file in files] == [3] * len(files)
    assert [file.read(1, 10) for file in files] == [b"xx"] * len(files)


def test_renaming_a_missing_file_is_refused(world: World) -> None:
    with pytest.raises(StorageError, match="absent"):
        world.disk.rename(f"{world.root}/absent", f"{world.root}/b")


def test_a_directory_with_content_is_not_renamed_over(world: World) -> None:
    for name in ("d", "e"):
        world.disk.make_directory(f"{world.root}/{name}")
        world.disk.replace_file(f"{world.root}/{name}/f", name.encode())
    with pytest.raises(StorageError):
        world.disk.rename(f"{world.root}/d", f"{world.root}/e")
    assert world.disk.read_file(f"{world.root}/d/f") == b"d"
    assert world.disk.read_file(f"{world.root}/e/f") == b"e"


def test_syncing_a_missing_directory_is_refused(world: World) -> None:
    with pytest.raises(StorageError, match="none"):
        world.disk.sync_directory(f"{world.root}/none")


def test_a_volume_has_room_for_no_more_than_it_holds(world: World) -> None:
    volume = world.disk.volume(world.root)
    assert 0 < volume.usable_bytes <= volume.total_bytes
    with pytest.raises(StorageError, match="absent"):
        world.disk.volume(f"{world.root}/absent")


def test_slow_calls_run_elsewhere_and_give_their_result_or_their_error(world: World) -> None:
    async def scenario() -> None:
        file = world.disk.open(f"{world.root}/a", create=True)
        file.append(b"abc")
        assert await world.disk.offload(lambda: file.read(0, 3)) == b"abc"
        await world.disk.offload(file.sync)
        await world.disk.offload(lambda: world.disk.sync_directory(world.root))
        with pytest.raises(StorageError, match="absent"):
            await world.disk.offload(lambda: world.disk.open(f"{world.root}/absent"))

    world.run(scenario())


def test_a_file_may_be_replaced_while_it_is_being_replaced(world: World) -> None:
    async def scenario() -> None:
        path = f"{world.root}/a"
        first, second = b"first" * 1000, b"second"
        for _ in range(200):
            running = asyncio.ensure_future(world.disk.offload(lambda: world.disk.replace_file(path, first)))
            await asyncio.sleep(0)
            world.disk.replace_file(path, second, sync=False)
            assert world.disk.read_file(path) in (first, second)
            await running
            assert world.disk.read_file(path) in (first, second)
        world.disk.replace_file(path, b"last")
        assert world.disk.read_file(path) == b"last"
        assert world.disk.list(world.root) == ["a"]

    world.run(scenario())


def test_a_prefetched_range_is_cached(world: World) -> None:
    async def scenario() -> None:
        file = world.disk.open(f"{world.root}/a", create=True)
        file.append(bytes(300_000))
        await world.disk.offload(lambda: file.prefetch(0, 300_000))
        assert file.is_cached(0, 300_000)
        assert file.is_cached(100_000, 5)

    world.run(scenario())


def _open_more_than_the_limit(world: World) -> list:
    """Open files `d/0`, `d/1`… that hold their own number."""
    world.disk.make_directory(f"{world.root}/d")
    files = []
    for number in range(MAX_OPEN_FILES * 3):
        file = world.disk.open(f"{world.root}/d/{number}", create=True)
        file.append(str(number).encode())
        files.append(file)
    return files


@pytest.mark.parametrize("seed", range(25))
def test_the_simulated_disk_answers_as_the_real_one_whatever_is_called(seed: int, tmp_path: Path) -> None:
    simulated, real = SimDisk(Random(seed)), SystemDisk()
    simulated.make_directory(str(tmp_path))
    random = Random(seed)
    for _ in range(300):
        call = _any_call(random, str(tmp_path))
        assert _answer(call, simulated) == _answer(call, real)


def _any_call(random: Random, root: str) -> Callable[[Disk], object]:
    """A random call of the port on one of a few paths."""

    def path() -> str:
        return "/".join([root, *random.choices("abc", k=random.randint(1, 3))])

    one, other = path(), path()
    data = random.randbytes(random.randint(0, 20))
    calls: list[Callable[[Disk], object]] = [
        lambda disk: disk.open(one, create=True).append(data),
        lambda disk: disk.open(one).size,
        lambda disk: disk.open(one).read(2, 9),
        lambda disk: disk.open(one).truncate(disk.open(one).size // 2),
        lambda disk: disk.open(one).sync(),
        lambda disk: disk.read_file(one),
        lambda disk: disk.replace_file(one, data, sync=False),
        lambda disk: disk.replace_file(one, data),
        lambda disk: list(disk.list(one)),
        lambda disk: disk.exists(one),
        lambda disk: disk.make_directory(one),
        lambda disk: disk.remove(one),
        lambda disk: disk.rename(one, other),
        lambda disk: disk.sync_directory(one),
        lambda disk: disk.sync_all(root),
        lambda disk: list(disk.directory(one).list()),
        lambda disk: disk.directory(one).replace_file("a", data),
        lambda disk: disk.directory(one).sync(),
    ]
    return random.choice(calls)


def _answer(call: Callable[[Disk], object], disk: Disk) -> object:
    try:
        return call(disk)
    except StorageError:
        return StorageError
