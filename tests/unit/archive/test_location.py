"""URIs of archives: which are taken, and what is said of those that are not. What the places do is in a contract."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.archive.errors import (
    ArchiveDeniedError,
    ArchiveFullError,
    ArchiveUnreachableError,
    ArchiveUriError,
    LocationMissingError,
)
from tailrace.archive.location import open_location, parse_uri


@pytest.mark.parametrize(
    "uri",
    [
        "/data/archive",
        "file:///data/archive",
        "file:/data/archive",
        "s3://bucket",
        "s3://bucket/a/prefix?region=eu-central-1&endpoint_override=http://127.0.0.1:9000",
        "webhdfs://name-node:9870/archive",
        "webhdfs://somebody@name-node/archive?use_https=true",
        "hdfs://name-node:8020/archive?http_port=9870",
    ],
)
def test_each_kind_of_place_has_a_uri_and_opening_asks_nobody(uri: str) -> None:
    location = open_location(uri)
    assert location.uri == uri
    location.close()


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("", "use an absolute directory"),
        ("archive", "use an absolute directory"),
        ("file:archive", "is not an absolute path"),
        ("file://host/archive", "has the host 'host'"),
        ("file:///archive?region=x", "but a directory has none"),
        ("ftp://host/archive", "starts with 'ftp:'"),
        ("gs://bucket", "must start with file:, s3:, webhdfs: or hdfs:"),
        ("s3:///prefix", "has no bucket"),
        ("s3://-x/prefix", "has no bucket"),
        ("s3://bucket:9000/prefix", "endpoint_override"),
        ("s3://bucket/prefix?endpoint=x", "has the unknown option 'endpoint'"),
        ("s3://bucket?scheme=ftp", "must be http or https"),
        ("s3://bucket?max_attempts=0", "must be a number from 1 to 100"),
        ("s3://bucket?secret_key=x", "contains secret_key"),
        ("s3://key:secret@bucket/prefix", "contains a password"),
        ("webhdfs:///archive", "has no name node"),
        ("webhdfs://host:99999/archive", "not a number up to 65535"),
        ("webhdfs://host/archive?kerberos=perhaps", "must be true or false"),
        ("webhdfs://host/archive?timeout_seconds=soon", "must be a number of seconds"),
        ("hdfs://host/archive?http_port=http", "is not a port"),
    ],
)
def test_a_uri_that_cannot_be_used_is_refused_with_what_is_wrong(uri: str, why: str) -> None:
    with pytest.raises(ArchiveUriError, match=why) as raised:
        open_location(uri)
    assert "secret@" not in str(raised.value)


def test_one_half_of_the_credentials_is_refused() -> None:
    with pytest.raises(ArchiveUriError, match="must be given together"):
        open_location("s3://bucket", {"access_key": "x"})


def test_options_come_before_the_query_and_names_may_be_quoted() -> None:
    parsed = parse_uri("webhdfs://me@host/a%20b?user=you")
    assert (parsed.user, parsed.path, parsed.options) == ("me", "/a b", {"user": "you"})


def test_a_directory_can_be_made_and_one_that_is_a_file_is_not_a_location(tmp_path: Path) -> None:
    location = open_location(str(tmp_path / "a" / "b"))
    location.create()
    location.create()
    location.check()
    (tmp_path / "file").write_bytes(b"")
    occupied = open_location(str(tmp_path / "file"))
    for operation in (occupied.check, occupied.create):
        with pytest.raises(LocationMissingError, match="is not a directory"):
            operation()


@pytest.mark.parametrize(
    ("number", "error"),
    [(13, ArchiveDeniedError), (30, ArchiveDeniedError), (28, ArchiveFullError), (5, ArchiveUnreachableError)],
)
def test_what_a_disk_says_becomes_the_right_error_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    location = open_location(str(tmp_path))
    location.write_new("d/whole", b"content")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error, match=os.strerror(number)):
        location.write_new("d/name", b"content")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["whole"]
