"""What the benchmark ran on and with: processor, memory, kernel, disk, versions of the software."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from bench.harness.processes import ServerFailedError
from bench.systems import SYSTEMS


def describe_machine(directory: Path) -> dict[str, Any]:
    """The machine, without names that belong to one owner."""
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
    """The type of the file system that holds a directory, from the text of /proc/mounts."""
    found, longest = "unknown", -1
    for line in mounts.splitlines():
        _, point, kind = line.split()[:3]
        if directory.resolve().is_relative_to(point) and len(point) > longest:
            found, longest = kind, len(point)
    return found


def describe_versions(systems: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The versions of everything that takes part, and why those systems that cannot take part do not."""
    versions = {"python": platform.python_version(), "librdkafka": _package("librdkafka-dev")}
    versions["java"] = _first_line(["java", "-version"])
    for package in ("libhiredis-dev", "libnats-dev", "librabbitmq-dev"):
        versions[package.removesuffix("-dev")] = _package(package)
    missing: dict[str, str] = {}
    for name in systems:
        try:
            versions[name] = SYSTEMS[name]().version()
        except (ServerFailedError, OSError, subprocess.CalledProcessError) as error:
            missing[name] = str(error)
    return versions, missing


def _package(name: str) -> str:
    return _first_line(["dpkg-query", "--show", "--showformat=${Version}", name])


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "not found"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines and done.returncode == 0 else "not found"
