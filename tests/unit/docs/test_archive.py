"""The page on the archive: its programs run as they stand on a real archive, and its tables name what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailrace.archive.location import open_location
from tailrace.archive.manifest import CHECKPOINT_INTERVAL, ArchivedFile, Manifest, Snapshot, write_manifest
from tailrace.archive.parquet import SCHEMA
from tailrace.archive.quarantine import SideFile
from tailrace.broker.config.topic_keys import TOPIC_KEYS
from tests.unit.archive.rows import TOPIC, TOPIC_ID, row, store

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "archive.md").read_text(encoding="utf-8")
HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def programs(heading: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", section(heading), re.DOTALL)


def orders(first: int, count: int) -> list[object]:
    """Orders, each half an hour after the one before."""
    return [
        row(
            number,
            timestamp=START_MS + number * HOUR_MS // 2,
            value=json.dumps({"amount": number / 2}).encode(),
            headers=(("source", b"test"),),
        )
        for number in range(first, first + count)
    ]


def archive_of(root: Path) -> tuple[Path, str]:
    """An archive of ten orders with enough commits for a checkpoint, and unreferenced files."""
    location = open_location(str(root))
    snapshot = Snapshot(TOPIC, TOPIC_ID)

    def commit(added: list[ArchivedFile], removed: list[ArchivedFile]) -> None:
        nonlocal snapshot
        manifest: Manifest = snapshot.commit(added, [file.name for file in removed])
        snapshot = snapshot.following(manifest, write_manifest(location, manifest))

    small = [store(location, orders(first, 2), (first, first + 2)) for first in (0, 2, 4, 6)]
    for file in small:
        commit([file], [])
    while snapshot.version < CHECKPOINT_INTERVAL:
        merged = store(location, orders(0, 4), (0, 4))
        commit([merged], [file for file in snapshot.files if file.next_offset <= 4])
    commit([store(location, orders(8, 2), (8, 10))], [])
    # What a writer that was killed leaves, and what it wrote but never committed.
    store(location, orders(10, 5), (10, 15))
    (root / snapshot.directory / small[0].name).write_bytes(b"PAR1 torn")
    assert snapshot.head is not None
    return root / snapshot.directory, snapshot.head


def test_the_programs_of_the_page_find_the_files_and_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, head = archive_of(tmp_path)
    listing, duckdb, pandas = programs("Any Parquet reader")
    # What the command prints, and the program with it, is tested with a real broker in tests/interop.
    listing, _ = re.subn(r"\nstatus = (.|\n)*", f'\nfiles = archived_files(Path("{directory}"), "{head}")\n', listing)
    names: dict[str, object] = {}
    exec(listing, names)
    files = names["files"]
    assert isinstance(files, list)
    assert [Path(file).name.split("-")[0] for file in files] == [f"{first:020d}" for first in (0, 4, 6, 8)]
    capsys.readouterr()
    exec(duckdb, names)
    shown = capsys.readouterr().out
    hours = re.findall(r"2026-01-01 (\d\d):00:00\S*\s*│\s*(\d+)\s*│\s*([\d.]+)", shown)
    expected = [(f"{hour:02d}", 2, (4 * hour + 1) / 2) for hour in range(5)]
    assert [(hour, int(count), float(amount)) for hour, count, amount in hours] == expected, shown
    exec(pandas, names)
    shown = capsys.readouterr().out
    hours = re.findall(r"2026-01-01 (\d\d):00:00\S*\s+(\d+)\s+([\d.]+)", shown)
    assert [(hour, int(count), float(amount)) for hour, count, amount in hours] == expected, shown


def rows_of(heading: str, number: int) -> list[list[str]]:
    """The cells of a table under a heading, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", section(heading), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables[number].splitlines()[2:]]


def names_in_paragraph(beginning: str) -> set[str]:
    """Every name in backquotes in the paragraph that starts with these words."""
    paragraph = section("Any Parquet reader").split(f"\n{beginning}", 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"`([^`]+)`", paragraph))


def test_columns_and_fields_of_manifests_are_those_that_there_are(tmp_path: Path) -> None:
    columns = [name for names, *_ in rows_of("Any Parquet reader", 0) for name in re.findall(r"`([^`]+)`", names)]
    assert columns == SCHEMA.names
    directory, _ = archive_of(tmp_path)
    manifests = [json.loads(path.read_text()) for path in (directory / "manifest").iterdir()]
    quarantine = Manifest("orders", TOPIC_ID, 64, None, (), (), {}, files=(), has_quarantine=True)
    manifests.append(json.loads(quarantine.encode()))
    fields = [name for names, *_ in rows_of("Any Parquet reader", 1) for name in re.findall(r"`([^`]+)`", names)]
    assert set(fields) == {name for manifest in manifests for name in manifest}
    assert set(ArchivedFile.__slots__) <= names_in_paragraph("A file entry has")
    assert set(SideFile.__slots__) <= names_in_paragraph("A side file entry has")


def test_configuration_of_topics_is_named_with_its_defaults() -> None:
    for name, default, _ in rows_of("Start", 0):
        key = TOPIC_KEYS[name.strip("`")]
        if default != "the broker's":
            told = re.match(r"`([^`]*)`", default)
            assert told is not None
            assert told[1] == str(key.default).lower()
