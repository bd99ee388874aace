"""How far a replay came, kept so that it goes on from there when it is started again.

Owns the files of a checkpoint: a new one for each batch, whole or not there at all, and the newest counts. It says
which replay it is of; another one is refused rather than mixed up with it. When a replay is done, its checkpoint is
removed. It must not know Spark.
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
    """What is to be replayed of each partition, and the offset that is next."""

    #: Start and end, exclusive, of each partition; the end is where it was when the replay began.
    ranges: Mapping[int, tuple[int, int]]
    next: Mapping[int, int]
    batches: int = 0
    records: int = 0

    @property
    def left(self) -> int:
        """How many offsets are still to be read."""
        return sum(max(0, end - self.next[number]) for number, (_, end) in self.ranges.items())


class ReplayCheckpoint:
    """The checkpoint of one replay: `identity` is what must be the same for it to go on."""

    def __init__(self, uri: str, identity: Mapping[str, Any]) -> None:
        self.uri = uri
        self._location: Location = open_location(uri)
        # As it comes back from JSON, with which it is compared.
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))

    def load(self) -> Progress | None:
        """How far the replay came, None where it is to begin; CheckpointError where another one is kept here."""
        self._location.create()
        for number in sorted(self._numbers(), reverse=True):
            try:
                document = json.loads(self._location.read_all(_name(number)))
                kept, progress = document["replay"], _progress_of(document)
                if document["format"] != _FORMAT:
                    raise CheckpointError(f"the checkpoint at {self.uri} was written by a later tailrace: use that one")
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # torn by a crash of the machine: the one before it counts
            self._check_identity(kept)
            return progress
        return None

    def save(self, progress: Progress) -> None:
        """Keep how far it came; what was kept before is removed then."""
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
                f"another replay runs with the checkpoint {self.uri}: wait for it, or give this one its own with "
                "--checkpoint"
            ) from None
        # One before the newest stays, for the case that the newest does not survive a crash of the machine.
        for number in self._numbers():
            if number < progress.batches - 1:
                self._location.delete(_name(number))

    def remove(self) -> None:
        """Forget the replay, which is done."""
        for number in sorted(self._numbers()):
            self._location.delete(_name(number))

    def close(self) -> None:
        self._location.close()

    def _numbers(self) -> list[int]:
        try:
            names = [entry.name for entry in self._location.list(_DIRECTORY)]
        except ArchiveError as error:
            error.add_note("the checkpoint of the replay is there; choose another place with --checkpoint")
            raise
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name)) is not None]

    def _check_identity(self, kept: Mapping[str, Any]) -> None:
        for name, value in self._identity.items():
            if kept.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint at {self.uri} is of a replay that is not done, and with another {name}: "
                    f"{_words(kept.get(name))}, and now {_words(value)}. Go on with it as it was, give another "
                    "--checkpoint, or begin anew by deleting it"
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
