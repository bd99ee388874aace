"""Divides the test folders into pieces: test files that one pytest process runs.

Files are packed by how long they took when that was last recorded (`tests/durations.json`). A file that is not in the
record only makes a piece longer or shorter than planned; nothing is left out because of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DURATIONS = ROOT / "tests/durations.json"
#: What a file is taken to last that nobody has recorded yet.
UNKNOWN_SECONDS = 10.0
#: The mark of tests that need the machine to themselves.
ALONE = "alone"
_ALONE_MARK = re.compile(rf"\bmark\.{ALONE}\b")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of tests, and what running it is like."""

    name: str
    #: How many cores one of its pieces keeps busy: the last column of the table that a run prints.
    load: float
    #: How long a piece should take. A short piece fills gaps; each piece pays for its session-wide fixtures again.
    piece_seconds: float = 60.0
    #: Its output, seeds above all, is printed also when it passes.
    is_talkative: bool = False
    #: Other processes, and when the machine lets them run, have a say in its results.
    has_processes: bool = True


FOLDERS = {
    folder.name: folder
    for folder in (
        Folder("unit", load=1.0, has_processes=False),
        Folder("contract", load=0.3),
        Folder("simulation", load=1.0, is_talkative=True, has_processes=False),
        Folder("interop", load=0.5),
        Folder("fault", load=0.5, is_talkative=True),
        # Each piece starts a Spark.
        Folder("spark", load=1.0, piece_seconds=240.0),
        Folder("packaging", load=0.8),
    )
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Test files of one folder that one pytest process runs."""

    folder: Folder
    name: str
    files: tuple[str, ...]
    seconds: float
    #: It holds the tests that are marked `alone`, and nothing runs beside it; any other piece holds the rest.
    is_alone: bool = False


def read_durations(path: Path = DURATIONS) -> dict[str, float]:
    """How many seconds each test file took when that was last recorded."""
    return json.loads(path.read_text()) if path.is_file() else {}


def write_durations(measured: Mapping[str, float], path: Path = DURATIONS) -> None:
    """Record how long files took; files that are gone are dropped, files that were not run keep what they had."""
    merged = {**read_durations(path), **{file: round(seconds, 1) for file, seconds in measured.items()}}
    kept = {file: merged[file] for file in sorted(merged) if (ROOT / file).is_file()}
    path.write_text(json.dumps(kept, indent=0) + "\n")


def files_of(folder: str, root: Path = ROOT) -> list[str]:
    """The test files of a folder, relative to the root, in order."""
    return sorted(str(path.relative_to(root)) for path in (root / "tests" / folder).rglob("test_*.py"))


def divide(folder: Folder, files: Sequence[str], durations: Mapping[str, float], root: Path = ROOT) -> list[Piece]:
    """Pack a folder's files into pieces; tests that must run alone get a piece of their own."""
    packs: list[list[str]] = []
    filled = 0.0
    for file in files:
        seconds = durations.get(file, UNKNOWN_SECONDS)
        if not packs or filled + seconds > folder.piece_seconds:
            packs.append([])
            filled = 0.0
        packs[-1].append(file)
        filled += seconds
    pieces = [_piece(folder, f"{folder.name}-{number}", pack, durations) for number, pack in enumerate(packs, 1)]
    if sensitive := [file for file in files if _ALONE_MARK.search((root / file).read_text())]:
        pieces.append(_piece(folder, f"{folder.name}-alone", sensitive, durations, is_alone=True))
    return pieces


def _piece(
    folder: Folder, name: str, files: Iterable[str], durations: Mapping[str, float], *, is_alone: bool = False
) -> Piece:
    chosen = tuple(files)
    return Piece(folder, name, chosen, sum(durations.get(file, UNKNOWN_SECONDS) for file in chosen), is_alone)
