"""A topic whose archive has quarantined batches: made without Spark, committed through the broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from tailrace.archive.location import Location, open_location
from tailrace.archive.manifest import ArchivedFile, load_snapshot, write_manifest
from tailrace.archive.quarantine import SideFileWriter
from tailrace.client.archive import ArchiveStatus, commit, describe
from tailrace.records.batch import iterate_batches
from tailrace.records.compression import Compression
from tests.support.archives.archived_topics import archived_configs, local_start, some_records
from tests.support.archives.archiver import write_files
from tests.support.archives.data_file import write_file
from tests.support.batches.poison import fetch_batches, poison_batch, produce_batch, sound_batch
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.records import Record
from tests.support.topics import create_topic, eventually

#: At offsets 100 to 102.
POISON = poison_batch([b"x"] * 3)
#: Quarantined at 103 and 104 although it is sound: as if an earlier tailrace had not been able to decode it.
MISJUDGED = sound_batch([b"one", b"two"], Compression.ZSTD)
END = 110


def quarantined_topic(bootstrap: str, port: int, topic: str, place: Path) -> None:
    """Records at 0 to 99 and 105 to 109, and between them two batches that are set aside, in the archive alone."""
    create_topic(bootstrap, topic, partitions=1, **archived_configs(place))
    client = ConfluentClient(bootstrap)
    client.produce(topic, some_records(100))
    assert produce_batch(port, topic, POISON) == 100
    assert produce_batch(port, topic, MISJUDGED) == 103
    client.produce(topic, some_records(5))
    status = describe(bootstrap, topic)
    location = open_location(status.uri)
    location.create()
    files = write_files(bootstrap, status, {0: 100})
    aside = SideFileWriter(topic, status.lineage, 0, 100)
    data = fetch_batches(port, topic, 100)
    for position, header in iterate_batches(data):
        if header.base_offset in (100, 103):
            aside.add(header, data[position : position + header.size], "Cannot decompress records")
    behind = write_files(bootstrap, replace(status, partitions={0: (0, 105)}), {0: END})
    side_file = aside.store(location, END)
    assert side_file is not None
    files.append(_widened(location, status, behind[0]))
    manifest = load_snapshot(location, status.archive).commit(files, quarantined=[side_file])
    commit(bootstrap, status, write_manifest(location, manifest), manifest.partitions)
    # Old enough to go, and of an active segment nothing does.
    client.produce(topic, [Record(b"roll")] * 2)
    assert eventually(lambda: local_start(bootstrap, topic) >= END, timeout_seconds=120)


def _widened(location: Location, status: ArchiveStatus, file: ArchivedFile) -> ArchivedFile:
    """The same rows in a file whose range begins with the batches that are set aside."""
    table = pq.read_table(Path(status.uri) / status.archive.directory / file.name, partitioning=None)
    location.delete(f"{status.archive.directory}/{file.name}")
    return write_file(location, status.topic, status.lineage, 0, (100, file.next_offset), [table])
