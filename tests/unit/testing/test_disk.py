from __future__ import annotations

import asyncio
from random import Random

import pytest

from tailrace.errors import StorageError
from tailrace.runtime.disk import DiskFullError
from tailrace.testing import loop as sim
from tailrace.testing.disk import SimDisk

SEEDS = range(400)


def _disk(seed: int, **options: object) -> SimDisk:
    disk = SimDisk(Random(seed), **options)
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def _content(disk: SimDisk, path: str) -> bytes:
    content = disk.read_file(path)
    assert content is not None
    return content


def test_what_was_synced_survives_every_crash() -> None:
    for seed in SEEDS:
        disk = _disk(seed)
        file = disk.open("/d/f", create=True)
        file.append(b"synced")
        file.sync()
        file.append(b"-not")
        disk.crash()
        assert _content(disk, "/d/f").startswith(b"synced")
        disk.crash()
        assert _content(disk, "/d/f").startswith(b"synced")


def test_unsynced_appends_leave_a_prefix_that_may_be_torn_or_followed_by_zeros() -> None:
    seen = dict.fromkeys(["nothing", "all", "whole appends", "torn", "zeros"], 0)
    appends = [b"\x01" * 10, b"\x02" * 20, b"\x03" * 30]
    for seed in SEEDS:
        disk = _disk(seed)
        file = disk.open("/d/f", create=True)
        file.sync()
        for data in appends:
            file.append(data)
        disk.crash()
        left = _content(disk, "/d/f")
        whole = b"".join(appends)
        written = left.rstrip(b"\0")
        assert len(left) <= len(whole)
        assert whole.startswith(written) or b"\0" in written, "what is not a prefix has a hole of zeros"
        seen["nothing"] += left == b""
        seen["all"] += left == whole
        seen["whole appends"] += left in (whole[:10], whole[:30])
        seen["torn"] += len(left) == len(written) and len(left) not in (0, 10, 30, 60)
        seen["zeros"] += len(written) < len(left)
    assert all(count > 3 for count in seen.values()), seen


def test_a_later_page_may_be_there_and_an_earlier_one_not() -> None:
    holes = 0
    for seed in SEEDS:
        disk = _disk(seed)
        file = disk.open("/d/f", create=True)
        file.append(b"\x01" * 5000)
        file.sync()
        file.append(b"\x02" * 20_000)
        disk.crash()
        left = _content(disk, "/d/f")
        assert left[:5000] == b"\x01" * 5000
        holes += b"\0" in left.rstrip(b"\0")
    assert holes > 3


def test_nothing_appears_that_was_never_written_apart_from_zeros() -> None:
    for seed in SEEDS:
        random = Random(f"calls/{seed}")
        disk = _disk(seed)
        file = disk.open("/d/f", create=True)
        file.sync()
        possible = [b""]
        untouched = 0
        for _ in range(random.randint(1, 30)):
            choice = random.random()
            if choice < 0.7:
                file.append(random.randbytes(random.randint(1, 500)))
            elif choice < 0.85:
                file.truncate(random.randint(0, file.size))
            else:
                file.sync()
                possible, untouched = [], file.size
            untouched = min(untouched, file.size)
            possible.append(file.read(0, file.size))
        disk.crash()
        left = _content(disk, "/d/f")
        assert left[:untouched] == possible[0][:untouched]
        assert len(left) <= max(map(len, possible))
        for position in range(untouched, len(left)):
            byte = left[position]
            assert byte == 0 or any(len(state) > position and state[position] == byte for state in possible)


def test_an_unsynced_truncation_may_or_may_not_have_happened() -> None:
    lengths = dict.fromkeys([10, 3], 0)
    for seed in SEEDS:
        disk = _disk(seed)
        file = disk.open("/d/f", create=True)
        file.append(b"0123456789")
        file.sync()
        file.truncate(3)
        disk.crash()
        left = _content(disk, "/d/f")
        assert b"0123456789".startswith(left)
        lengths[len(left)] += 1
    assert all(count > 20 for count in lengths.values()), lengths


def test_a_name_is_durable_once_its_directory_or_the_file_was_synced() -> None:
    survived = dict.fromkeys(["file", "directory", "neither"], 0)
    for seed in SEEDS:
        disk = _disk(seed)
        disk.open("/d/directory", create=True)
        disk.sync_directory("/d")
        disk.open("/d/file", create=True).sync()
        disk.open("/d/neither", create=True)
        disk.crash()
        for name in disk.list("/d"):
            survived[name] += 1
    assert survived["file"] == survived["directory"] == len(SEEDS)
    assert 20 < survived["neither"] < len(SEEDS) - 20


@pytest.mark.parametrize("synced", [True, False])
def test_a_renamed_file_has_one_of_its_names_and_all_its_content(synced: bool) -> None:
    names = dict.fromkeys(["old", "new"], 0)
    for seed in SEEDS:
        disk = _disk(seed)
        disk.replace_file("/d/old", b"content")
        disk.rename("/d/old", "/d/new")
        if synced:
            disk.sync_directory("/d")
        disk.crash()
        (name,) = disk.list("/d")
        assert _content(disk, f"/d/{name}") == b"content"
        names[name] += 1
    assert (names["old"] == 0) if synced else all(count > 20 for count in names.values()), names


def test_a_file_renamed_to_another_directory_is_in_one_of_them() -> None:
    for seed in SEEDS:
        disk = _disk(seed)
        disk.make_directory("/e")
        disk.open("/d/f", create=True)
        disk.rename("/d/f", "/e/f")
        disk.sync_directory(["/d", "/e"][seed % 2])
        disk.crash()
        assert (disk.list("/d"), disk.list("/e")) == ([], ["f"])


def test_a_renamed_directory_keeps_what_is_in_it() -> None:
    for seed in SEEDS:
        disk = _disk(seed)
        disk.make_directory("/d/t-0")
        disk.replace_file("/d/t-0/f", b"1")
        disk.rename("/d/t-0", "/d/t-0.deleted")
        disk.crash()
        (name,) = disk.list("/d")
        assert _content(disk, f"/d/{name}/f") == b"1"


def test_an_unsynced_removal_may_be_undone_and_a_synced_one_is_not() -> None:
    back = 0
    for seed in SEEDS:
        disk = _disk(seed)
        for name in ("a", "b"):
            disk.replace_file(f"/d/{name}", name.encode())
        disk.remove("/d/a")
        disk.sync_directory("/d")
        disk.remove("/d/b")
        disk.crash()
        assert disk.list("/d") in ([], ["b"])
        back += disk.exists("/d/b")
    assert 20 < back < len(SEEDS) - 20


def test_names_may_survive_out_of_order() -> None:
    lists = dict.fromkeys(["", "a", "b", "ab"], 0)
    for seed in SEEDS:
        disk = _disk(seed)
        disk.open("/d/a", create=True)
        disk.open("/d/b", create=True)
        disk.crash()
        lists["".join(disk.list("/d"))] += 1
    assert lists["b"] < lists["a"]
    assert all(lists.values()), lists


@pytest.mark.parametrize("sync", [True, False])
def test_a_replaced_file_is_whole_old_or_new_and_new_where_it_was_synced(sync: bool) -> None:
    contents: dict[bytes, int] = {b"first": 0, b"second and longer": 0}
    for seed in SEEDS:
        disk = _disk(seed)
        disk.replace_file("/d/f", b"first")
        disk.replace_file("/d/f", b"second and longer", sync=sync)
        disk.crash()
        contents[_content(disk, "/d/f")] += 1
    assert (contents[b"first"] == 0) if sync else all(contents.values()), contents


def test_handles_from_before_a_crash_are_useless() -> None:
    for end in (SimDisk.crash, SimDisk.kill):
        disk = _disk(1)
        file = disk.open("/d/f", create=True)
        file.sync()
        end(disk)
        for call in (lambda: file.append(b"x"), lambda: file.read(0, 1), file.sync, lambda: file.size):  # noqa: B023
            with pytest.raises(StorageError, match="/d/f"):
                call()
        assert _content(disk, "/d/f") == b""
        disk.open("/d/f").append(b"again")
        assert _content(disk, "/d/f") == b"again"


def test_killing_the_process_loses_nothing_that_was_written() -> None:
    for seed in range(50):
        disk = _disk(seed)
        disk.open("/d/f", create=True).append(b"in the page cache")
        disk.kill()
        assert _content(disk, "/d/f") == b"in the page cache"


def test_a_call_that_waits_when_the_power_goes_never_takes_effect() -> None:
    async def scenario() -> None:
        disk = SimDisk(sim.current().random_for("disk"), latency_seconds=(1.0, 2.0))
        disk.make_directory("/d")
        disk.sync_directory("/")
        waiting = asyncio.create_task(disk.offload(lambda: disk.replace_file("/d/f", b"")))
        await asyncio.sleep(0.5)
        disk.crash()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert sim.current().time() == 0.5
        await asyncio.sleep(5)
        assert disk.list("/d") == []
        await disk.offload(lambda: disk.replace_file("/d/g", b""))
        assert disk.list("/d") == ["g"]

    for seed in range(10):
        sim.run(scenario(), seed=seed)


def test_a_call_whose_caller_was_cancelled_may_still_take_effect() -> None:
    async def scenario() -> bool:
        disk = SimDisk(sim.current().random_for("disk"), latency_seconds=(1.0, 2.0))
        waiting = asyncio.create_task(disk.offload(lambda: disk.make_directory("/x")))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not disk.exists("/x")
        await asyncio.sleep(5)
        return disk.exists("/x")

    assert sorted(dict.fromkeys(sim.run(scenario(), seed=seed) for seed in range(20))) == [False, True]


def test_a_sync_covers_what_was_written_before_it_was_asked_for_and_perhaps_what_came_later() -> None:
    async def scenario() -> bytes:
        disk = SimDisk(sim.current().random_for("disk"), latency_seconds=(1.0, 2.0))
        file = disk.open("/f", create=True)
        file.append(b"before")
        syncing = asyncio.create_task(disk.offload(file.sync))
        await asyncio.sleep(0.5)
        file.append(b"+later")
        await syncing
        disk.crash()
        return _content(disk, "/f")

    left = [sim.run(scenario(), seed=seed) for seed in range(40)]
    assert all(content.startswith(b"before") for content in left)
    assert b"before" in left
    assert b"before+later" in left


def test_a_full_disk_takes_all_of_a_write_or_nothing() -> None:
    disk = _disk(1, capacity_bytes=10)
    file = disk.open("/d/f", create=True)
    file.append(b"12345678")
    with pytest.raises(DiskFullError, match="/d/f"):
        file.append(b"abc")
    assert file.read(0, 20) == b"12345678"
    file.append(b"90")
    with pytest.raises(DiskFullError):
        disk.replace_file("/d/g", b"x")
    assert disk.list("/d") == ["f"]
    file.truncate(4)
    disk.replace_file("/d/g", b"123456")
    assert disk.used_bytes == 10
    disk.remove("/d/g")
    assert disk.used_bytes == 4
    disk.crash()
    assert disk.used_bytes == sum(len(_content(disk, f"/d/{name}")) for name in disk.list("/d"))


def test_an_injected_fault_hits_its_paths_and_operation_as_often_as_it_was_told() -> None:
    disk = _disk(1)
    good, bad = disk.open("/d/good", create=True), disk.open("/d/bad", create=True)
    disk.fail(lambda path: path.endswith("bad"), "append")
    good.append(b"x")
    bad.sync()
    with pytest.raises(StorageError, match="/d/bad"):
        bad.append(b"x")
    bad.append(b"y")
    assert bad.read(0, 9) == b"y"
    fault = disk.fail(lambda path: path.startswith("/d"), error=DiskFullError, times=None)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            disk.list("/d")
        with pytest.raises(DiskFullError):
            good.read(0, 1)
    fault.lift()
    assert good.read(0, 1) == b"x"


def test_whether_a_range_is_cached_is_chance_until_it_was_prefetched() -> None:
    disk = _disk(1, cached_probability=0.5)
    file = disk.open("/d/f", create=True)
    file.append(bytes(100))
    answers = [file.is_cached(0, 100) for _ in range(100)]
    assert 20 < sum(answers) < 80
    file.prefetch(0, 100)
    assert all(file.is_cached(10, 90) for _ in range(100))


def test_many_unsynced_changes_stay_bounded_and_readable() -> None:
    disk = _disk(1)
    file = disk.open("/d/f", create=True)
    for number in range(10_000):
        file.append(b"%05d" % number)
        disk.replace_file("/d/checkpoint", b"%d" % number, sync=False)
    assert file.read(5 * 9_999, 5) == b"09999"
    disk.crash()
    assert _content(disk, "/d/f").startswith(b"".join(b"%05d" % number for number in range(4_000)))
    assert int(_content(disk, "/d/checkpoint")) > 4_000


def test_the_same_seed_gives_the_same_crash() -> None:
    def remains(seed: int) -> tuple[int, list[bytes]]:
        disk = _disk(seed)
        for number in range(20):
            disk.open(f"/d/{number}", create=True).append(Random(number).randbytes(500))
        disk.crash()
        return disk.trace.digest, [_content(disk, f"/d/{name}") for name in disk.list("/d")]

    assert remains(7) == remains(7)
    assert remains(7)[1] != remains(8)[1]


def test_a_rotten_byte_is_read_from_the_disk_and_then_stays_as_it_is() -> None:
    disk = _disk(1, cached_probability=1.0)
    file = disk.open("/d/f.log", create=True)
    file.append(b"synced")
    file.sync()
    assert disk.rot(lambda path: path.endswith(".txt")) is None
    assert file.is_cached(0, 6)
    assert disk.rot(lambda path: path.endswith(".log")) == "/d/f.log"
    assert not file.is_cached(0, 6)
    damaged = file.prefetch(0, 6)
    assert sum(one != other for one, other in zip(damaged, b"synced", strict=True)) == 1
    assert file.is_cached(0, 6)
    disk.crash()
    assert _content(disk, "/d/f.log") == damaged


def test_what_is_not_synced_does_not_rot() -> None:
    disk = _disk(1)
    disk.open("/d/f.log", create=True).append(b"not synced")
    assert disk.rot(lambda path: True) is None
