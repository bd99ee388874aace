"""Checkpoint files are Kafka's, and one that cannot be read counts as absent, wherever it was cut."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tailrace.errors import StorageError
from tailrace.model import TopicPartition
from tailrace.runtime.system.disk import SystemDisk
from tailrace.storage.checkpoints import (
    decode_uuid,
    encode_uuid,
    read_offsets,
    write_offsets,
)
from tailrace.storage.partition_metadata import PARTITION_METADATA, read_metadata, read_topic_id, write_metadata

TOPIC_ID = UUID("01234567-89ab-4cde-8f01-23456789abcd")
OFFSETS = {TopicPartition("orders", 0): 1234567, TopicPartition("a.b-c_d", 17): 0}


def test_offsets_are_read_back_and_in_kafkas_format(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    write_offsets(SystemDisk(), str(path), OFFSETS)
    assert path.read_text() == "0\n2\norders 0 1234567\na.b-c_d 17 0\n"
    assert read_offsets(SystemDisk(), str(path)) == OFFSETS


def test_no_file_means_no_offsets(tmp_path: Path) -> None:
    assert read_offsets(SystemDisk(), str(tmp_path / "absent")) == {}


def test_a_file_cut_anywhere_counts_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offsets(SystemDisk(), str(path), OFFSETS)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        assert read_offsets(SystemDisk(), str(path)) == {}, content[:size]


@pytest.mark.parametrize(
    "content", [b"1\n0\n", b"0\n-1\n", b"0\n1\norders 0\n", b"0\n1\norders x 1\n", b"\xff\xfe", bytes(64), b"x"]
)
def test_a_damaged_file_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert read_offsets(SystemDisk(), str(path)) == {}


def test_a_uuid_is_written_as_kafka_does() -> None:
    assert encode_uuid(TOPIC_ID) == "ASNFZ4mrTN6PASNFZ4mrzQ"
    assert decode_uuid("ASNFZ4mrTN6PASNFZ4mrzQ") == TOPIC_ID


def test_a_directory_says_which_topic_it_belongs_to(tmp_path: Path) -> None:
    whole = "version: 0\ntopic_id: ASNFZ4mrTN6PASNFZ4mrzQ\n"
    for first_offset, expected in ((None, whole), (0, f"{whole}first_offset: 0\n"), (71, f"{whole}first_offset: 71\n")):
        write_metadata(SystemDisk().directory(str(tmp_path)), TOPIC_ID, first_offset, sync=True)
        assert (tmp_path / PARTITION_METADATA).read_text() == expected
        assert read_topic_id(SystemDisk(), str(tmp_path)) == TOPIC_ID
        assert read_metadata(SystemDisk(), str(tmp_path)) == (TOPIC_ID, first_offset)


@pytest.mark.parametrize("damage", ["first_offset: 7", "first_offset: -7\n", "first_offset: x\n", "first_offset: \n"])
def test_a_first_offset_that_is_damaged_limits_nothing(tmp_path: Path, damage: str) -> None:
    (tmp_path / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: ASNFZ4mrTN6PASNFZ4mrzQ\n{damage}")
    assert read_metadata(SystemDisk(), str(tmp_path)) == (TOPIC_ID, None)


def test_an_identity_that_a_power_cut_damaged_is_none_and_does_not_keep_the_broker_from_starting(
    tmp_path: Path,
) -> None:
    whole = b"version: 0\ntopic_id: ASNFZ4mrTN6PASNFZ4mrzQ\n"
    assert read_topic_id(SystemDisk(), str(tmp_path)) is None
    for content in [*(whole[:size] for size in range(len(whole) - 1)), bytes(40), b"\xff" * 40]:
        (tmp_path / PARTITION_METADATA).write_bytes(content)
        assert read_topic_id(SystemDisk(), str(tmp_path)) is None, content


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / PARTITION_METADATA).write_text("version: 1\ntopic_id: ASNFZ4mrTN6PASNFZ4mrzQ\n")
    with pytest.raises(StorageError, match="version 1"):
        read_topic_id(SystemDisk(), str(tmp_path))
