"""Checks one log directory from outside: access, file system, owner, and how the last broker stopped.

Only reads, and never takes the lock. `logs` checks what is inside the partitions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.cli.checks.finding import Finding, ok, problem, size_text, warning
from tailrace.cli.checks.machine import user_name
from tailrace.runtime.system.process import lock_owner
from tailrace.storage.directory_identity import CLEAN_SHUTDOWN, META_PROPERTIES, identity_problem

_VANISHING = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs", "fuse.s3fs")
_LAYERS = ("overlay", "aufs")
#: Mount options with which synced data may not be on disk.
_UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "data=writeback")
_LEAST_FREE_BYTES = 64 << 20
_LOW_FREE_BYTES = 1 << 30
_LOW_FREE_SHARE = 0.05
_LOW_INODES = 1000


@dataclass(frozen=True, slots=True)
class Mount:
    """The file system that holds a directory."""

    point: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The state of a log directory."""

    path: str
    exists: bool
    #: The process id of the running broker; 0 if it cannot be found out.
    pid: int | None
    stopped_cleanly: bool

    @property
    def is_running(self) -> bool:
        return self.pid is not None


def read_state(path: str) -> State:
    """Find out whether a directory exists and is in use, and how the last broker stopped."""
    exists = os.path.isdir(path)
    try:
        pid = lock_owner(path) if exists else None
    except OSError:  # this user may not read it; the next check reports that
        pid = None
    return State(path, exists, pid, os.path.exists(f"{path}/{CLEAN_SHUTDOWN}"))


def check_place(state: State) -> list[Finding]:
    """Check that the directory exists or can be created, and is writable."""
    path = state.path
    if not state.exists:
        parent = nearest_existing(path)
        if not os.path.isdir(parent):
            return [problem(path, f"{parent} is not a directory", "choose another directory with --data-dir")]
        if not os.access(parent, os.W_OK | os.X_OK):
            user = user_name(os.geteuid())
            advice = f"create it with the broker's user, now {user}, as owner, or choose another directory"
            return [problem(path, f"it does not exist and cannot be created in {parent}", advice)]
        return [ok(path, f"it does not exist yet; the broker will create it in {parent}")]
    if state.pid is not None:
        by = f"pid {state.pid}" if state.pid else "perhaps in another container"
        return [ok(path, f"a broker is using it ({by}); a second broker would not start")]
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        advice = f"make the broker's user, now {user_name(os.geteuid())}, its owner, or mount it read-write"
        return [problem(path, "it is not writable", advice)]
    return [ok(path, "it is writable, and no broker is using it")]


def check_stop(state: State, bytes_to_check: int) -> list[Finding]:
    """Check that the last broker stopped cleanly; call this only if no broker runs and there are logs."""
    if state.stopped_cleanly:
        return [ok(state.path, "the last stop was clean: the next start does not scan the logs")]
    return [
        warning(
            state.path,
            f"the last stop was not clean: the next start scans {size_text(bytes_to_check)} of logs to check them",
            "nothing; to avoid the scan, stop brokers with SIGTERM and give them time to exit",
        )
    ]


def check_space(path: str, found: os.statvfs_result) -> list[Finding]:
    """Check that enough bytes and files are free."""
    free = found.f_bavail * found.f_frsize
    total = found.f_blocks * found.f_frsize
    text = f"{size_text(free)} of {size_text(total)} free"
    advice = "free space, enlarge the disk, or keep less: lower log.retention.hours or log.retention.bytes"
    findings = []
    if free < _LEAST_FREE_BYTES:
        findings.append(problem(path, f"{text}: the broker would refuse writes", advice))
    elif free < _LOW_FREE_BYTES or free < total * _LOW_FREE_SHARE:
        findings.append(warning(path, text, advice))
    else:
        findings.append(ok(path, text))
    # Some file systems have no fixed number of files and report 0.
    if found.f_files and found.f_favail < _LOW_INODES:
        findings.append(
            warning(
                path,
                f"only {found.f_favail} inodes are free: the broker could create only as many files",
                "remove small files, or recreate the file system with more inodes",
            )
        )
    return findings


def check_mount(path: str, mount: Mount | None) -> list[Finding]:
    """Check that the file system is writable and durable, and that its syncs can be trusted."""
    if mount is None:
        return []
    where = f"{mount.kind} on {mount.point}"
    findings: list[Finding] = []
    if "ro" in mount.options:
        findings.append(
            problem(path, f"{where} is mounted read-only", "mount it read-write, or choose another directory")
        )
    unsafe = [option for option in mount.options if option in _UNSAFE_OPTIONS]
    if unsafe:
        text = f"{where} is mounted with {', '.join(unsafe)}: a power cut can lose synced records"
        findings.append(warning(path, text, "mount it without"))
    if mount.kind in _VANISHING:
        text = f"{where} is in memory: a restart of the machine loses all records"
        findings.append(warning(path, text, "choose a directory on a disk"))
    elif mount.kind in _NETWORK:
        text = f"{where} is a network file system: every append waits for it, and locks and syncs may be unreliable"
        findings.append(warning(path, text, "choose a local disk"))
    elif mount.kind in _LAYERS:
        text = f"{where} is a layer of the container: all records are lost when the container is removed"
        findings.append(warning(path, text, "mount a volume for the data directory"))
    return findings or [ok(path, f"{where} ({','.join(mount.options)})")]


def find_mount(path: str, mountinfo: str) -> Mount | None:
    """Find the file system of a directory in /proc/self/mountinfo; a later mount covers an earlier one."""
    real = os.path.realpath(path)
    found: Mount | None = None
    for line in mountinfo.splitlines():
        first, _, second = line.partition(" - ")
        fields, others = first.split(), second.split()
        if len(fields) < 6 or len(others) < 3:
            continue
        point = _unescape(fields[4])
        covers = real == point or real.startswith(point.rstrip("/") + "/")
        if covers and (found is None or len(point) >= len(found.point)):
            options = dict.fromkeys([*fields[5].split(","), *others[2].split(",")])
            found = Mount(point, others[0], tuple(options))
    return found


def check_identity(path: str, broker_id: int, cluster_id: str) -> list[Finding]:
    """Check that the directory belongs to this broker and has a format that this version knows."""
    meta = f"{path}/{META_PROPERTIES}"
    try:
        with open(meta, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return [ok(path, "it does not belong to a broker yet")]
    except OSError as error:
        return [problem(path, f"{META_PROPERTIES} cannot be read: {error.strerror}", "run as the broker's user")]
    found = identity_problem(meta, content, broker_id, cluster_id)
    if found is None:
        return [ok(path, f"it belongs to node {broker_id} of cluster {cluster_id} and has a known format")]
    text, _, advice = found.rpartition("; ")
    return [problem(path, text, advice)]


def owners_of(path: str) -> Iterator[tuple[str, int]]:
    """Yield the owners of the directory and of what is directly in it."""
    try:
        yield path, os.stat(path).st_uid
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.path, entry.stat(follow_symlinks=False).st_uid
    except OSError:  # other checks report what cannot be read, and files come and go
        return


def newest_file(path: str) -> tuple[float, str] | None:
    """Return when something directly in the directory was last written, and what."""
    newest: tuple[float, str] | None = None
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                written = (entry.stat(follow_symlinks=False).st_mtime, entry.path)
                newest = written if newest is None else max(newest, written)
    except OSError:
        return newest
    return newest


def nearest_existing(path: str) -> str:
    """Return the directory itself, or its nearest parent that exists."""
    current = os.path.abspath(path)
    while not os.path.exists(current) and current != os.path.dirname(current):
        current = os.path.dirname(current)
    return current


def _unescape(text: str) -> str:
    """Decode the octal escapes of blanks and backslashes in a mount point."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
