"""A scrub finds every batch that is not what was written, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.scrub import Scrubbed, scrub_file
from tests.unit.storage.logs import BATCH_BYTES, batch


def whole(path: Path, step: int) -> tuple[list[int], str | None]:
    """Scrub a file in steps; where each ended, and the problem found."""
    positions = [0]
    while positions[-1] < path.stat().st_size:
        found = scrub_file(SystemDisk(), str(path), positions[-1], step)
        if found.problem is not None:
            return [*positions, found.position], found.problem
        assert found.position > positions[-1]
        positions.append(found.position)
    return positions, None


@pytest.mark.parametrize("step", [1, BATCH_BYTES - 1, BATCH_BYTES, 2 * BATCH_BYTES + 10, 1 << 20])
def test_sound_batches_are_passed_whole_whatever_the_step(tmp_path: Path, step: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(batch()) * 5)
    positions, problem = whole(path, step)
    assert problem is None
    assert all(position % BATCH_BYTES == 0 for position in positions)
    assert positions[-1] == 5 * BATCH_BYTES


@pytest.mark.parametrize("step", [BATCH_BYTES, 1 << 20])
def test_every_flipped_bit_is_found_where_it_is_but_those_that_no_crc_covers(tmp_path: Path, step: int) -> None:
    path = tmp_path / "log"
    content = bytes(batch()) * 3
    for at in range(BATCH_BYTES + 8, 2 * BATCH_BYTES):
        if at - BATCH_BYTES in range(12, 16):  # the leader epoch
            continue
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        positions, problem = whole(path, step)
        assert (positions[-1], problem is None) == (BATCH_BYTES, False), at


def test_a_file_that_was_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    content = bytes(batch()) * 2
    for size in (len(content) - 1, BATCH_BYTES + 30):
        path.write_bytes(content[:size])
        found = scrub_file(SystemDisk(), str(path), 0, 1 << 20)
        assert found.position == BATCH_BYTES
        assert found.problem is not None
    path.write_bytes(b"")
    assert scrub_file(SystemDisk(), str(path), 0, 1 << 20) == Scrubbed(0, None)
