"""The files that identify the owner of a log directory, and mark a clean shutdown.

A broker never writes to a directory of another broker or cluster, or of a newer version.
"""

from __future__ import annotations

import json
from random import Random
from uuid import UUID

from tailrace.errors import StorageError
from tailrace.runtime.disk import Disk, DiskFullError
from tailrace.storage.checkpoints import encode_uuid

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_FORMAT_VERSION = 1
_DIRECTORY_ID = "directory.id"


def identity_problem(path: str, content: bytes, broker_id: int, cluster_id: str) -> str | None:
    """Why a directory with this meta.properties does not belong to this broker; None if it does."""
    found = _properties(content)
    expected = {"version": str(_FORMAT_VERSION), "cluster.id": cluster_id, "node.id": str(broker_id)}
    owners = {"version": "a newer version", "cluster.id": "another cluster", "node.id": "another broker"}
    for key, value in expected.items():
        if found.get(key) != value:
            return (
                f"{path} says {key}={found.get(key)} but this broker has {key}={value}: the directory belongs to "
                f"{owners[key]}; give this one its own with --data-dir"
            )
    return None


def epoch_in_marker(marker: bytes | None) -> int:
    """The broker epoch in a clean shutdown marker; -1 if it has none."""
    try:
        epoch = json.loads(marker or b"{}").get("brokerEpoch", -1)
    except (ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def _properties(content: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in content.decode(errors="replace").split("\n") if "=" in line)


def clean_shutdown_marker(broker_epoch: int) -> bytes:
    """The content of the clean shutdown marker."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def identify(disk: Disk, directory: str, random: Random, broker_id: int, cluster_id: str) -> str:
    """The id of this broker's directory, created if it is new; refuses a directory that belongs to others."""
    path = f"{directory}/{META_PROPERTIES}"
    content = disk.read_file(path)
    if content is not None:
        problem = identity_problem(path, content, broker_id, cluster_id)
        if problem is not None:
            raise StorageError(problem)
        if known := _properties(content).get(_DIRECTORY_ID, ""):
            return known
    directory_id = encode_uuid(UUID(int=random.getrandbits(128), version=4))
    lines = [
        f"version={_FORMAT_VERSION}",
        f"cluster.id={cluster_id}",
        f"node.id={broker_id}",
        f"{_DIRECTORY_ID}={directory_id}",
        "",
    ]
    try:
        disk.replace_file(path, "\n".join(lines).encode())
    except DiskFullError:
        if content is None:
            raise  # otherwise it is certainly ours, and gets its id when there is space
    return directory_id
