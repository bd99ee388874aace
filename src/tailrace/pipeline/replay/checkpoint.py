"""The progress of a replay, stored so that it continues when it is started again.

Owns the files of a checkpoint: a new one for each batch, complete or absent, and the newest counts. It names its
replay, and another replay is refused. When a replay is done, its checkpoint is removed. This module must not know
Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.archive.errors import ArchiveError, FileExistsInArchiveError
from tailrace.archive.location import Location, open_location
from tailrace.pipeline.jobs.checkpoints import CheckpointError

_FORMAT = 1
_DIRECTORY = "progress"
_NAME = re.compile(rf"{_DIRECTORY}/([0-9]{{20}})\.json")


@dataclass(frozen=True, slots=True)
class Progress:
    """The offsets to replay of each partition, and the next one."""

    #: Start and end (exclusive) of each partition; the end is where it was when the replay began.
    ranges: Mapping[int, tuple[int, int]]
    next: Mapping[int, int]
    batches: int = 0
    records: int = 0

    @property
    def left(self) -> int:
        """The number of offsets that are still to be read."""
        return sum(max(0, end - self.next[number]) for number, (_, end) in self.ranges.items())


class ReplayCheckpoint:
    """The checkpoint of one replay: `identity` is what must stay the same for it to continue."""

    def __init__(self, uri: str, identity: Mapping[str, Any]) -> None:
        self.uri = uri
        self._location: Location = open_location(uri)
        # In the form in which it comes back from JSON, to be compared with that.
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))

    def load(self) -> Progress | None:
        """Return the replay's progress, None if it has not begun; CheckpointError if another replay's is here."""
        self._location.create()
        for number in sorted(self._numbers(), reverse=True):
            try:
                document = json.loads(self._location.read_all(_name(number)))
                kept, progress = document["replay"], _progress_of(document)
                if document["format"] != _FORMAT:
                    raise CheckpointError(f"a later tailrace wrote the checkpoint at {self.uri}: use that version")
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # torn by a crash of the machine: the one before it counts
            self._check_identity(kept)
            return progress
        return None

    def save(self, progress: Progress) -> None:
        """Store the progress, and remove older files."""
        document = {
            "format": _FORMAT,
            "replay": self._identity,
            "ranges": {str(number): list(span) for number, span in sorted(progress.ranges.items())},
            "next": {str(number): offset for number, offset in sorted(progress.next.items())},
            "batches": progress.batches,
            "records": progress.records,
        }
        try:
            self._location.write_new(_name(progress.batches), json.dumps(document).encode() + b"\n")
        except FileExistsInArchiveError:
            raise CheckpointError(
                f"another replay is running with the checkpoint {self.uri}: wait for it, or give this one its own "
                "with --checkpoint"
            ) from None
        # Keep the one before the newest, in case the newest does not survive a crash of the machine.
        for number in self._numbers():
            if number < progress.batches - 1:
                self._location.delete(_name(number))

    def remove(self) -> None:
        """Remove the checkpoint of a replay that is done."""
        for number in sorted(self._numbers()):
            self._location.delete(_name(number))

    def close(self) -> None:
        self._location.close()

    def _numbers(self) -> list[int]:
        try:
            names = [entry.name for entry in self._location.list(_DIRECTORY)]
        except ArchiveError as error:
            error.add_note("the checkpoint of the replay is there; choose another location with --checkpoint")
            raise
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name)) is not None]

    def _check_identity(self, kept: Mapping[str, Any]) -> None:
        for name, value in self._identity.items():
            if kept.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint at {self.uri} belongs to an unfinished replay with another {name}: it has "
                    f"{_words(kept.get(name))}, this one {_words(value)}. Continue the old replay, give another "
                    "--checkpoint, or start over by deleting the checkpoint"
                )


def _words(value: Any) -> str:
    return "none" if value is None or value == {} else value if isinstance(value, str) else json.dumps(value)


def _name(number: int) -> str:
    return f"{_DIRECTORY}/{number:020d}.json"


def _progress_of(document: Mapping[str, Any]) -> Progress:
    return Progress(
        {int(number): (start, end) for number, (start, end) in document["ranges"].items()},
        {int(number): offset for number, offset in document["next"].items()},
        document["batches"],
        document["records"],
    )
