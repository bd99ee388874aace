"""Resource usage of this process, from Linux's /proc."""

from __future__ import annotations

import os
import resource

from tailrace.runtime.process import ProcessUsage

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/self/stat, counted after the name of the process, which may contain anything.
_USER_TICKS, _SYSTEM_TICKS, _START_TICKS, _VIRTUAL_BYTES, _RESIDENT_PAGES = 11, 12, 19, 20, 21


def process_usage() -> ProcessUsage:
    """Read it from the kernel. With many descriptors this may take milliseconds: call it outside the event loop."""
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return ProcessUsage(
        cpu_seconds=(int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_PER_SECOND,
        resident_bytes=int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES,
        virtual_bytes=int(fields[_VIRTUAL_BYTES]),
        start_time=_boot_time() + int(fields[_START_TICKS]) / _TICKS_PER_SECOND,
        open_descriptors=len(os.listdir("/proc/self/fd")) - 1,  # without the one that this listing took
        max_descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def _boot_time() -> float:
    with open("/proc/stat", "rb") as stat:
        for line in stat:
            if line.startswith(b"btime "):
                return float(line.split()[1])
    return 0.0
