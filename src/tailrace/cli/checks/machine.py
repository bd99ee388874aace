"""Checks the machine and the interpreter: Python, compiled packages, limits of process and kernel, clock and user.

The limits are those of the running broker, or if there is none, those of a broker started from here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pwd
import resource
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tailrace.cli.checks.finding import Finding, ok, problem, warning
from tailrace.errors import StorageError
from tailrace.runtime.system.process import connections_beside, default_open_files

#: The oldest and newest Python that tailrace is tested with, as pyproject.toml says.
OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)

#: Compiled packages, and how the broker runs without them; None if it does not start.
_PACKAGES = {
    "crc32c": None,
    "lz4": None,
    "zstandard": None,
    "cramjam": None,
    "uvloop": "the broker uses asyncio's own loop, which takes about twice the CPU for small requests",
}
_FEW_DESCRIPTORS = 4096
#: A log, its offset index and its time index.
_FILES_PER_LOG = 3
#: Tailrace did not exist before.
_EARLIEST = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
_CLOCK_TOLERANCE_SECONDS = 60
_UNLIMITED = 2**31 - 1


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Finding:
    """Check that tailrace is tested with this interpreter."""
    text = f"Python {'.'.join(str(part) for part in version)}"
    if OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON:
        return ok("python", text)
    tested = f"{'.'.join(map(str, OLDEST_PYTHON))} to {'.'.join(map(str, NEWEST_PYTHON))}"
    return warning("python", f"tailrace is not tested with {text}", f"use Python {tested}")


def check_packages() -> list[Finding]:
    """Check that the compiled packages are installed and load."""
    findings: list[Finding] = []
    versions: list[str] = []
    for name, without in _PACKAGES.items():
        try:
            importlib.import_module(name)
        except ImportError as error:
            advice = f"reinstall it: {sys.executable} -m pip install --force-reinstall {name}"
            if without is None:
                findings.append(problem("packages", f"{name} does not load: {error}", advice))
            else:
                findings.append(warning("packages", f"{name} does not load ({error}): {without}", advice))
            continue
        versions.append(f"{name} {importlib.metadata.version(name)}")
    return [ok("packages", ", ".join(versions)), *findings] if versions else findings


def descriptor_limit(pid: int | None) -> int:
    """Return how many files a broker may open: the running one's limit, or what a new one could raise its limit to."""
    if pid:
        try:
            for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
                if line.startswith("Max open files"):
                    soft = line.split()[3]
                    return _UNLIMITED if soft == "unlimited" else int(soft)
        except OSError:
            pass  # meanwhile ended, or belongs to another user
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def check_descriptors(limit: int, given: int, partitions: int, max_connections: int) -> Finding:
    """Check that the limit is enough for all logs and connections; `given` is tailrace.open.files.max."""
    advice = "raise it: ulimit -Hn in a shell, LimitNOFILE= in a systemd unit, --ulimit nofile= for a container"
    open_files = given or default_open_files(limit)
    try:
        connections = connections_beside(open_files, limit)
    except StorageError as error:
        return problem("limits", str(error), f"{advice}; or lower tailrace.open.files.max" if given else advice)
    text = f"{limit} descriptors: {open_files} for the files of {partitions} partitions, {connections} for connections"
    if limit < _FEW_DESCRIPTORS:
        return warning("limits", f"{text}: low for a server", advice)
    if open_files < _FILES_PER_LOG * partitions:
        return warning("limits", f"{text}: the broker would close and reopen files all the time", advice)
    if connections < max_connections < _UNLIMITED:
        return warning("limits", f"{text}, fewer than max.connections={max_connections}", advice)
    return ok("limits", text)


def check_backlog(backlog: int, somaxconn: str | None = None) -> list[Finding]:
    """Check that the kernel grants the configured backlog."""
    try:
        allowed = int(Path("/proc/sys/net/core/somaxconn").read_text() if somaxconn is None else somaxconn)
    except (OSError, ValueError):
        return []
    if backlog <= allowed:
        return [ok("limits", f"a backlog of {backlog} connections (the kernel allows {allowed})")]
    return [
        warning(
            "limits",
            f"socket.listen.backlog.size={backlog}, but the kernel allows {allowed}",
            f"raise it: sysctl -w net.core.somaxconn={backlog}",
        )
    ]


def check_clock(now: float, newest: tuple[float, str] | None) -> Finding:
    """Check that the wall clock is plausible: retention and timestamps use it. `newest` is a file's time and name."""
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    advice = "set the clock before the broker starts, and keep it right with NTP or chrony"
    if now < _EARLIEST:
        return problem("clock", f"the clock says {shown}, which is too early to be right", advice)
    if newest is not None and newest[0] > now + _CLOCK_TOLERANCE_SECONDS:
        ahead = newest[0] - now
        return warning("clock", f"the clock says {shown}, but {newest[1]} was written {ahead:.0f} s later", advice)
    return ok("clock", shown)


def check_user(uid: int, owners: Sequence[tuple[str, int]]) -> Finding:
    """Check that the files belong to the user of this process or of the running broker."""
    name = user_name(uid)
    others = [(path, owner) for path, owner in owners if owner != uid]
    if others:
        path, owner = others[0]
        return warning(
            "user",
            f"this is {name}, but {path} belongs to {user_name(owner)}",
            f"start the broker as {user_name(owner)}, or change the owner of all files with chown -R",
        )
    if uid == 0:
        return ok("user", "root; a broker needs no privileges: a user of its own is safer")
    return ok("user", f"{name}, the owner of all files")


def user_name(uid: int) -> str:
    """Return a user's name, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def process_user(pid: int | None) -> int:
    """Return the user of the running broker, or of this process."""
    if pid:
        try:
            return os.stat(f"/proc/{pid}").st_uid
        except OSError:
            pass  # meanwhile ended
    return os.geteuid()
