"""Archives without their topics: their names, and which version counts as the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.archive.errors import ArchiveCorruptError, LocationMissingError
from tailrace.archive.layout import TopicArchive, manifest_path
from tailrace.archive.location import open_location
from tailrace.archive.manifest import load_snapshot, write_manifest
from tailrace.errors import ConfigError
from tailrace.pipeline.replay.source import ArchiveSource, is_archive_uri, newest_whole, parse_archive_uri
from tailrace.pipeline.source.ranges import OffsetRange
from tailrace.storage.checkpoints import encode_uuid
from tests.unit.archive.rows import TOPIC, TOPIC_ID, commit, row, store

ID = encode_uuid(TOPIC_ID)


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        (f"/data/archive/topic={TOPIC}/id={ID}", "/data/archive"),
        (f"file:///data/archive/topic={TOPIC}/id={ID}/", "file:///data/archive"),
        (f"s3://bucket/a/topic={TOPIC}/id={ID}?region=x", "s3://bucket/a?region=x"),
        (f"webhdfs://host:9870/topic={TOPIC}/id={ID}", "webhdfs://host:9870/"),
    ],
)
def test_an_archive_is_named_by_the_directory_of_its_topic(uri: str, place: str) -> None:
    assert is_archive_uri(uri)
    assert parse_archive_uri(uri) == (place, TopicArchive(place, TOPIC, TOPIC_ID, None))


@pytest.mark.parametrize(
    "uri", ["/data/archive", f"/data/topic={TOPIC}", f"/topic=/id={ID}", f"/topic={TOPIC}/id=xyz", "s3://bucket", "/"]
)
def test_another_place_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="ends in topic=NAME/id=ID"):
        parse_archive_uri(uri)


def test_the_highest_version_that_is_whole_is_the_last(tmp_path: Path) -> None:
    location = open_location(str(tmp_path))
    first = commit(location, [store(location, [row(0)], (0, 5))])
    # Of two attempts at the next version only one was taken; both have the records of the topic.
    short = load_snapshot(location, first).commit([store(location, [row(5)], (5, 7))])
    long = load_snapshot(location, first).commit([store(location, [row(5), row(8)], (5, 9))])
    heads = [write_manifest(location, manifest) for manifest in (short, long)]
    plain = TopicArchive(str(tmp_path), TOPIC, TOPIC_ID, None)

    def chosen() -> tuple[int, dict[int, tuple[int, int]]]:
        found = newest_whole(location, plain)
        return found.version, found.coverage

    assert chosen() == (2, {0: (0, 9)})
    # The archiver that lost may have deleted its files.
    location.delete(f"{plain.directory}/{long.added[0].name}")
    assert chosen() == (2, {0: (0, 7)})
    (tmp_path / manifest_path(plain.directory, heads[0])).write_bytes(b"{}")
    assert chosen() == (1, {0: (0, 5)})
    location.delete(f"{plain.directory}/{short.added[0].name}")
    location.delete(f"{plain.directory}/{load_snapshot(location, first).files[0].name}")
    with pytest.raises(ArchiveCorruptError, match=r"no version of .* is complete"):
        chosen()
    with pytest.raises(ArchiveCorruptError, match="has no manifest"):
        newest_whole(location, TopicArchive(str(tmp_path), "other", TOPIC_ID, None))
    with pytest.raises(LocationMissingError):
        ArchiveSource(f"{tmp_path}/nowhere/topic={TOPIC}/id={ID}")


def test_offsets_and_times_are_found_as_a_broker_finds_them(tmp_path: Path) -> None:
    location = open_location(str(tmp_path))
    rows = [row(each) for each in (2, 3, 7, 8)]
    commit(location, [store(location, rows[:2], (2, 5)), store(location, rows[2:], (5, 9))])
    source = ArchiveSource(f"{tmp_path}/topic={TOPIC}/id={ID}")
    assert source.ends() == {0: (2, 9)}
    assert source.offsets_at(rows[1].timestamp + 1) == {0: 7}
    assert source.offsets_at(rows[3].timestamp + 1) == {0: None}
    (span,) = source.spans([OffsetRange(TOPIC, 0, 4, 9)])
    assert (len(span.files), span.archived_end) == (2, 9)
    source.close()
