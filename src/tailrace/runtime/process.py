"""What an operating system tells of a process: how much of the machine it has taken."""

from __future__ import annotations

from typing import NamedTuple


class ProcessUsage(NamedTuple):
    """What this process has used so far, and what it may use."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    #: Seconds since the Unix epoch.
    start_time: float
    open_descriptors: int
    max_descriptors: int
