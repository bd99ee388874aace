"""The events of a simulation in order: lines to read after a failure, and a digest to compare runs.

Owns only text. Two runs of one seed must give the same digest, whatever process they ran in.
"""

from __future__ import annotations

import zlib
from collections import deque


class Trace:
    """The last lines of a run, and a checksum over all of them."""

    def __init__(self, keep: int = 100_000) -> None:
        self.lines: deque[str] = deque(maxlen=keep)
        self.count = 0
        self.digest = 0

    def add(self, line: str) -> None:
        """Record one event."""
        self.lines.append(line)
        self.count += 1
        self.digest = zlib.crc32(line.encode(), self.digest)

    def tail(self, count: int = 50) -> str:
        """Return the last lines, for a failure message."""
        return "\n".join(list(self.lines)[-count:])
