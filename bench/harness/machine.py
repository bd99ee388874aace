"""Describes the machine of a benchmark: processor, memory, kernel, disk."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any


def describe_machine(directory: Path) -> dict[str, Any]:
    """Describe the machine, without names that identify its owner."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory[1]) * 1024 / 1e9, 1) if memory else None,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "filesystem": filesystem_of(directory, Path("/proc/mounts").read_text()),
    }


def filesystem_of(directory: Path, mounts: str) -> str:
    """Return the type of the file system that holds a directory, from the text of /proc/mounts."""
    found, longest = "unknown", -1
    for line in mounts.splitlines():
        _, point, kind = line.split()[:3]
        if directory.resolve().is_relative_to(point) and len(point) > longest:
            found, longest = kind, len(point)
    return found
