"""What is asked of an archive, as functions for the helper process: only there is imported what reads files.

It must not know the broker; what goes in and out is plain values.
"""

from __future__ import annotations

from tailrace.archive.installation import require_packages
from tailrace.archive.layout import TopicArchive
from tailrace.runtime.disk import Buffer


def check_archive(archive: TopicArchive) -> int:
    """Raise why an archive cannot be read from here: its place, or its head; else, count its quarantined batches."""
    require_packages()
    from tailrace.archive import reader

    return reader.reader_of(archive.uri).check(archive)


def read_batches(archive: TopicArchive, partition: int, offset: int, max_bytes: int) -> Buffer:
    """Record batches from an offset on: at least one, and no more bytes than asked for unless one alone has more."""
    require_packages()
    from tailrace.archive import reader

    return reader.read_batches(archive, partition, offset, max_bytes)


def find_largest_timestamp(archive: TopicArchive, partition: int, start_offset: int) -> tuple[int, int] | None:
    """The first record that has the largest timestamp from an offset on; None where it is before that offset."""
    require_packages()
    from tailrace.archive import reader

    largest = reader.reader_of(archive.uri).snapshot(archive).partition(partition).max_timestamp
    return None if largest is None else find_timestamp(archive, partition, largest, start_offset)


def find_timestamp(archive: TopicArchive, partition: int, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """The first record at or after a time from an offset on, as offset and timestamp; None where there is none."""
    require_packages()
    from tailrace.archive import reader

    found = reader.find_offset(archive, partition, timestamp, start_offset)
    return None if found is None else (found.offset, found.timestamp)
