"""Queries read files where that is better and possible, and leave everything else to brokers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tailrace.archive.location import open_location
from tailrace.model import TopicPartition
from tailrace.pipeline.connections.brokers import LIST_OFFSETS, Brokers
from tailrace.pipeline.failures import OptionError, SourceError, UnreachableBrokerError
from tailrace.pipeline.source import archives as module
from tailrace.pipeline.source.archives import Archives
from tailrace.pipeline.source.client_settings import parse_client_settings
from tailrace.pipeline.source.offsets import Offsets
from tailrace.pipeline.source.options import ArchiveAccess
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.protocol_client.versions import Versions
from tailrace.wire.messages.archive_describe import (
    ArchiveDescribeRequest,
    ArchiveDescribeResponse,
    DescribedArchive,
    DescribedPartition,
)
from tests.unit.archive.rows import TOPIC, TOPIC_ID, commit, row, store

NAME = TopicPartition(TOPIC, 0)
EVERYTHING = OffsetRange(TOPIC, 0, 0, 1000)
IDS = {TOPIC: TOPIC_ID}


class AnsweringBrokers(Brokers):
    """Brokers whose answers are known; they count what they are asked."""

    def __init__(self, archive: DescribedArchive | None, local_start: int = 500) -> None:
        super().__init__(parse_client_settings({"bootstrap.servers": "127.0.0.1:1"}))
        self.archive = archive
        self.local_start = local_start
        self.settings_asked = 0
        self.described = 0
        self.is_reachable = True

    def topic_setting(self, topic: str, key: str) -> str | None:
        self.settings_asked += 1
        if not self.is_reachable:
            raise UnreachableBrokerError("nobody answers")
        return None if self.archive is None else "true"

    def ask_patiently(self, doing: str, request: Any, usable: Versions, kind: Any) -> Any:
        assert isinstance(request, ArchiveDescribeRequest)
        assert self.archive is not None
        self.described += 1
        return ArchiveDescribeResponse(archives=[self.archive])

    def offsets_at(self, timestamps: Mapping[TopicPartition, int], usable: Versions = LIST_OFFSETS) -> Offsets:
        assert all(time == -4 for time in timestamps.values())
        return dict.fromkeys(timestamps, self.local_start)


@pytest.fixture
def archive(tmp_path: Path) -> DescribedArchive:
    """Offsets 100 to 699 in files of a hundred each."""
    location = open_location(str(tmp_path))
    files = [
        store(location, [row(n) for n in range(first, first + 100)], (first, first + 100))
        for first in range(100, 700, 100)
    ]
    head = commit(location, files)
    return DescribedArchive(
        name=TOPIC,
        lineage=TOPIC_ID,
        is_enabled=True,
        uri=str(tmp_path),
        version=1,
        manifest=head.manifest or "",
        partitions=[DescribedPartition(partition_index=0, start_offset=100, end_offset=700, deleted_below=0)],
    )


def spans(
    archives: Archives, *ranges: OffsetRange, ids: Mapping[str, UUID] = IDS
) -> dict[TopicPartition, tuple[int, int]]:
    return {name: (part.start, part.end) for name, part in archives.parts(list(ranges), ids).items()}


def test_what_is_archived_of_the_ranges_is_read_from_files(archive: DescribedArchive) -> None:
    archives = Archives(AnsweringBrokers(archive), ArchiveAccess())
    assert spans(archives, EVERYTHING) == {NAME: (100, 700)}
    assert spans(archives, OffsetRange(TOPIC, 0, 250, 300)) == {NAME: (250, 300)}
    assert spans(archives, OffsetRange(TOPIC, 0, 700, 900)) == {}
    assert spans(archives, OffsetRange(TOPIC, 1, 0, 900)) == {}
    part = archives.parts([EVERYTHING], IDS)[NAME]
    assert [file.first_offset for file in part.files.files] == list(range(100, 700, 100))


def test_records_that_were_deleted_are_not_read_though_files_have_them(archive: DescribedArchive) -> None:
    archive.partitions[0].deleted_below = 333
    assert spans(Archives(AnsweringBrokers(archive), ArchiveAccess()), EVERYTHING) == {NAME: (333, 700)}


def test_what_is_few_and_still_in_the_log_is_left_there(
    archive: DescribedArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = Archives(AnsweringBrokers(archive, local_start=500), ArchiveAccess())
    assert spans(archives, OffsetRange(TOPIC, 0, 500, 1000)) == {}
    assert spans(archives, OffsetRange(TOPIC, 0, 499, 1000)) == {NAME: (499, 700)}
    monkeypatch.setattr(module, "FEW_OFFSETS", 200)
    assert spans(archives, OffsetRange(TOPIC, 0, 500, 1000)) == {NAME: (500, 700)}


def test_brokers_that_have_never_heard_of_archives_are_asked_once(archive: DescribedArchive) -> None:
    brokers = AnsweringBrokers(None)
    archives = Archives(brokers, ArchiveAccess())
    assert spans(archives, EVERYTHING) == spans(archives, EVERYTHING) == {}
    assert (brokers.settings_asked, brokers.described) == (1, 0)
    # One that does not answer now may know better the next time.
    brokers = AnsweringBrokers(archive)
    brokers.is_reachable = False
    archives = Archives(brokers, ArchiveAccess())
    assert spans(archives, EVERYTHING) == {}
    brokers.is_reachable = True
    assert spans(archives, EVERYTHING) == {NAME: (100, 700)}


def test_nobody_is_asked_where_files_shall_not_be_read(archive: DescribedArchive) -> None:
    brokers = AnsweringBrokers(archive)
    assert spans(Archives(brokers, ArchiveAccess(reads_files=False)), EVERYTHING) == {}
    assert (brokers.settings_asked, brokers.described) == (0, 0)


@pytest.mark.parametrize(
    "change", [{"is_enabled": False}, {"manifest": ""}, {"error_code": 3}, {"lineage": UUID(int=9)}]
)
def test_an_archive_that_is_switched_off_empty_or_of_another_topic_does_not_count(
    archive: DescribedArchive, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(archive, name, value)
    assert spans(Archives(AnsweringBrokers(archive), ArchiveAccess()), EVERYTHING) == {}


def test_a_damaged_manifest_is_said_unless_the_log_has_everything(
    archive: DescribedArchive, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (manifest,) = tmp_path.rglob("*.json")
    manifest.write_bytes(manifest.read_bytes().replace(b"orders", b"others"))
    with pytest.raises(
        SourceError, match=r"damaged, and brokers no longer have offset 100 of orders-0 .*altered or truncated"
    ):
        spans(Archives(AnsweringBrokers(archive, local_start=101), ArchiveAccess()), EVERYTHING)
    monkeypatch.setattr(module, "FEW_OFFSETS", 0)
    assert spans(Archives(AnsweringBrokers(archive, local_start=100), ArchiveAccess()), EVERYTHING) == {}
    assert "asking brokers instead" in caplog.text


def test_a_place_that_cannot_be_reached_is_left_to_the_brokers_and_a_wrong_option_is_not(
    archive: DescribedArchive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = ArchiveAccess(uri=str(tmp_path / "not-mounted"))
    assert spans(Archives(AnsweringBrokers(archive), elsewhere), EVERYTHING) == {}
    assert "not-mounted does not exist" in caplog.text
    wrong = ArchiveAccess(uri="ftp://host/archive")
    with pytest.raises(OptionError, match=r"'tailrace\.archive\.\*': 'ftp://host/archive' starts with 'ftp:'"):
        spans(Archives(AnsweringBrokers(archive), wrong), EVERYTHING)
