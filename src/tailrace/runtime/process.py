"""An operating system's view of a process: its use of the machine's resources."""

from __future__ import annotations

from typing import NamedTuple


class ProcessUsage(NamedTuple):
    """What this process has used so far, and its limits."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    #: Seconds since the Unix epoch.
    start_time: float
    open_descriptors: int
    max_descriptors: int
