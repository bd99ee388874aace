"""One log directory from outside: whether it can be used, what it lies on, whose it is, and how it was left.

Looks and never touches; the lock is only looked at. What is inside the partitions is `logs`' business.
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
#: Options with which a sync no longer means that the data is on disk.
_UNSAFE_OPTIONS = ("nobarrier", "barrier=0", "data=writeback")
_LEAST_FREE_BYTES = 64 << 20
_LOW_FREE_BYTES = 1 << 30
_LOW_FREE_SHARE = 0.05
_LOW_INODES = 1000


@dataclass(frozen=True, slots=True)
class Mount:
    """The file system that a directory lies on."""

    point: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """How a log directory was found."""

    path: str
    exists: bool
    #: The running broker; 0 where its pid cannot be told.
    pid: int | None
    stopped_cleanly: bool

    @property
    def is_running(self) -> bool:
        return self.pid is not None


def read_state(path: str) -> State:
    """Look whether a directory is there and in use, and how the last broker left it."""
    exists = os.path.isdir(path)
    try:
        pid = lock_owner(path) if exists else None
    except OSError:  # not for this user to see, which the next check tells
        pid = None
    return State(path, exists, pid, os.path.exists(f"{path}/{CLEAN_SHUTDOWN}"))


def check_place(state: State) -> list[Finding]:
    """Whether the directory is there, or could be made, and can be written to."""
    path = state.path
    if not state.exists:
        parent = nearest_existing(path)
        if not os.path.isdir(parent):
            return [problem(path, f"{parent} is not a directory", "choose another place with --data-dir")]
        if not os.access(parent, os.W_OK | os.X_OK):
            advice = f"make it and give it to the broker's user, now {user_name(os.geteuid())}, or choose another"
            return [problem(path, f"it does not exist, and cannot be made in {parent}", advice)]
        return [ok(path, f"it does not exist yet and will be made in {parent}")]
    if state.pid is not None:
        by = f"pid {state.pid}" if state.pid else "in another container, perhaps"
        return [ok(path, f"a broker is running on it ({by}); a second one would be refused")]
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        advice = f"give it to the broker's user, now {user_name(os.geteuid())}, or mount it for writing"
        return [problem(path, "it cannot be written to", advice)]
    return [ok(path, "it can be written to, and no broker is running on it")]


def check_stop(state: State, bytes_to_check: int) -> list[Finding]:
    """Whether the last broker was stopped or ended otherwise; only where no broker runs and there are logs."""
    if state.stopped_cleanly:
        return [ok(state.path, "the last stop was clean: the next start reads no logs")]
    return [
        warning(
            state.path,
            f"the last stop was not clean: the next start reads {size_text(bytes_to_check)} of logs to check them",
            "nothing; stop a broker with SIGTERM, and give it the time to end, to start without that",
        )
    ]


def check_space(path: str, found: os.statvfs_result) -> list[Finding]:
    """Whether there are bytes and files left to be written."""
    free = found.f_bavail * found.f_frsize
    total = found.f_blocks * found.f_frsize
    text = f"{size_text(free)} of {size_text(total)} are free"
    advice = "free some, make the disk larger, or keep less: log.retention.hours and log.retention.bytes"
    findings = []
    if free < _LEAST_FREE_BYTES:
        findings.append(problem(path, f"{text}: producers would be refused", advice))
    elif free < _LOW_FREE_BYTES or free < total * _LOW_FREE_SHARE:
        findings.append(warning(path, text, advice))
    else:
        findings.append(ok(path, text))
    # Some file systems have no fixed number of files and say 0.
    if found.f_files and found.f_favail < _LOW_INODES:
        findings.append(
            warning(
                path,
                f"only {found.f_favail} more files can be made (inodes)",
                "remove small files, or make the file system anew with more inodes",
            )
        )
    return findings


def check_mount(path: str, mount: Mount | None) -> list[Finding]:
    """Whether the file system keeps what it is given, and keeps it when it says so."""
    if mount is None:
        return []
    where = f"{mount.kind} on {mount.point}"
    findings: list[Finding] = []
    if "ro" in mount.options:
        findings.append(problem(path, f"{where} is mounted read-only", "mount it for writing, or choose another place"))
    unsafe = [option for option in mount.options if option in _UNSAFE_OPTIONS]
    if unsafe:
        text = f"{where} is mounted with {', '.join(unsafe)}: a power cut can take records that were synced"
        findings.append(warning(path, text, "mount it without"))
    if mount.kind in _VANISHING:
        text = f"{where} is memory: everything is gone when the machine restarts"
        findings.append(warning(path, text, "choose a directory on a disk"))
    elif mount.kind in _NETWORK:
        text = f"{where} is a network file system: locks and syncs may mean less there, and every append waits for it"
        findings.append(warning(path, text, "choose a local disk"))
    elif mount.kind in _LAYERS:
        text = f"{where} is a container's own layer: everything is gone with the container"
        findings.append(warning(path, text, "mount a volume for the data directory"))
    return findings or [ok(path, f"{where} ({','.join(mount.options)})")]


def find_mount(path: str, mountinfo: str) -> Mount | None:
    """The file system of a directory, by the text of /proc/self/mountinfo; a later mount covers an earlier one."""
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
    """Whether the directory is one of this broker and in a format that this version knows."""
    meta = f"{path}/{META_PROPERTIES}"
    try:
        with open(meta, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return [ok(path, "it is nobody's yet")]
    except OSError as error:
        return [problem(path, f"{META_PROPERTIES} cannot be read: {error.strerror}", "run as the broker's user")]
    found = identity_problem(meta, content, broker_id, cluster_id)
    if found is None:
        return [ok(path, f"it belongs to node {broker_id} of cluster {cluster_id}, in a format that is known")]
    text, _, advice = found.rpartition("; ")
    return [problem(path, text, advice)]


def owners_of(path: str) -> Iterator[tuple[str, int]]:
    """The users to whom the directory and what lies directly in it belong."""
    try:
        yield path, os.stat(path).st_uid
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.path, entry.stat(follow_symlinks=False).st_uid
    except OSError:  # what cannot be read is told of elsewhere, and files come and go
        return


def newest_file(path: str) -> tuple[float, str] | None:
    """When something directly in the directory was last written, and what."""
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
    """The directory itself, or the nearest above it that is there."""
    current = os.path.abspath(path)
    while not os.path.exists(current) and current != os.path.dirname(current):
        current = os.path.dirname(current)
    return current


def _unescape(text: str) -> str:
    """Mount points have their blanks and backslashes as octal numbers."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
