"""Divides the test folders into pieces: test files that one pytest process runs.

Packs files by their last recorded duration (`tests/durations.json`). A file without a record only makes a piece longer
or shorter than planned; it still runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DURATIONS = ROOT / "tests/durations.json"
#: The assumed duration of a file without a record.
UNKNOWN_SECONDS = 10.0
#: The mark of tests that need the machine to themselves.
ALONE = "alone"
_ALONE_MARK = re.compile(rf"\bmark\.{ALONE}\b")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of tests, and how its tests behave when they run."""

    name: str
    #: How many cores one of its pieces keeps busy: the last column of the table that a run prints.
    load: float
    #: How long a piece should take. Short pieces fill gaps, but each pays for its session-wide fixtures again.
    piece_seconds: float = 60.0
    #: Print its output, mainly seeds, even if it passes.
    is_talkative: bool = False
    #: Its results depend on other processes, and on when the machine lets them run.
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
    #: It runs only tests that are marked `alone`, with nothing beside it; other pieces run the rest.
    is_alone: bool = False


def read_durations(path: Path = DURATIONS) -> dict[str, float]:
    """Return the last recorded duration of each test file in seconds."""
    return json.loads(path.read_text()) if path.is_file() else {}


def write_durations(measured: Mapping[str, float], path: Path = DURATIONS) -> None:
    """Record how long files took; drop files that no longer exist, keep the records of files that did not run."""
    merged = {**read_durations(path), **{file: round(seconds, 1) for file, seconds in measured.items()}}
    kept = {file: merged[file] for file in sorted(merged) if (ROOT / file).is_file()}
    path.write_text(json.dumps(kept, indent=0) + "\n")


def files_of(folder: str, root: Path = ROOT) -> list[str]:
    """Return the test files of a folder, relative to the root, in order."""
    return sorted(str(path.relative_to(root)) for path in (root / "tests" / folder).rglob("test_*.py"))


def divide(folder: Folder, files: Sequence[str], durations: Mapping[str, float], root: Path = ROOT) -> list[Piece]:
    """Pack a folder's files into pieces; tests that must run alone get a separate piece."""
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
