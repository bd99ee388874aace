"""The versions of the servers, of the client libraries and of their runtimes."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence

from bench.harness.failures import ServerFailedError
from bench.systems import SYSTEMS

_LIBRARIES = {
    "librdkafka": "librdkafka-dev",
    "libhiredis": "libhiredis-dev",
    "libnats": "libnats-dev",
    "librabbitmq": "librabbitmq-dev",
}


def tool_versions() -> dict[str, str]:
    """Return the versions of runtimes and libraries."""
    packages = {name: _package(package) for name, package in _LIBRARIES.items()}
    return {"python": platform.python_version(), "java": _first_line(["java", "-version"]), **packages}


def server_versions(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of systems, and why others cannot take part."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = SYSTEMS[name]().version()
        except (ServerFailedError, OSError, subprocess.CalledProcessError) as error:
            missing[name] = str(error)
    return versions, missing


def versions_of(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of these tools and systems, all of which are installed."""
    known = {**tool_versions(), **server_versions([name for name in names if name in SYSTEMS])[0]}
    return {name: known[name] for name in names}


def _package(name: str) -> str:
    return _first_line(["dpkg-query", "--show", "--showformat=${Version}", name])


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "not found"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines and done.returncode == 0 else "not found"
