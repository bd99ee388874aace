"""How keys are stored in ZooKeeper's nodes, and the operations of a transaction.

A key is the node at its path. A node without data is a directory and not a key, so an empty value is stored as one
byte. The version of a key is the id of the transaction that wrote it last (mzxid). It always grows, while a node's own
version starts again with every new node. ZooKeeper can only check a node's own version, so a transaction is planned
from nodes as they were just read, and applied only if they still have that version. A key of a session may be deleted
and recreated by another session in between, with the same node version. So each session has a node for its lifetime,
and a transaction that meets a key of a session checks that node, too.

This module knows no connection. Operations are in the order in which they must be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from tailrace.cluster.store import ABSENT, Check, Write

#: The directory of session nodes; no key of the cluster starts with a dot.
SESSIONS_DIRECTORY = "/.sessions"

_ESCAPE = b"\0"
#: Estimated size of an operation besides its path and data: headers and an access control list.
_OPERATION_BYTES = 160


class Stat(Protocol):
    """ZooKeeper's description of a node, with its field names."""

    @property
    def mzxid(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def ephemeralOwner(self) -> int: ...
    @property
    def dataLength(self) -> int: ...
    @property
    def numChildren(self) -> int: ...


class Operation(NamedTuple):
    """One operation of a ZooKeeper transaction."""

    kind: Literal["create", "create ephemeral", "set", "delete", "check"]
    key: str
    data: bytes = b""
    #: The node version to check; not used to create a node.
    version: int = 0

    @property
    def size(self) -> int:
        """An upper estimate of its size on the wire in bytes."""
        return len(self.key.encode()) + len(self.data) + _OPERATION_BYTES


def encode(value: bytes) -> bytes:
    """A value in a node's format."""
    return _ESCAPE + value if value[:1] in (b"", _ESCAPE) else value


def decode(data: bytes) -> bytes:
    """The value in a node's data, which is not empty."""
    return data[1:] if data[:1] == _ESCAPE else data


def version_of(stat: Stat | None) -> int:
    """The version of the key at a node; `ABSENT` for a missing node or a directory."""
    return ABSENT if stat is None or stat.dataLength == 0 else stat.mzxid


def session_key(session_id: int) -> str:
    """The key of a session's node, by ZooKeeper's number of the session."""
    return f"{SESSIONS_DIRECTORY}/{session_id & (1 << 64) - 1:016x}"


def plan(
    checks: Sequence[Check], writes: Sequence[Write], nodes: Mapping[str, Stat | None], session_id: int
) -> list[Operation] | None:
    """The operations for a transaction on nodes in their current state; None if a check fails.

    `session_id` is ZooKeeper's number of the session in the writes, or 0. The first operation checks that it is alive.
    """
    if any(version_of(nodes[check.key]) != check.version for check in checks):
        return None
    checked = dict.fromkeys(check.key for check in checks)
    written = {write.key for write in writes}
    owners = dict.fromkeys([session_id, *(node.ephemeralOwner for node in nodes.values() if node is not None)])
    operations = [Operation("check", session_key(owner)) for owner in owners if owner]
    for key in checked:
        if key not in written:
            operations += _unchanged(key, nodes[key])
    for write in writes:
        node = nodes[write.key]
        if write.value is not None:
            operations += _put(write.key, write.value, node, session_id if write.session is not None else 0)
        elif version_of(node) != ABSENT:
            operations.append(_remove(write.key, node))
        elif write.key in checked:
            operations += _unchanged(write.key, node)
    return operations


def _unchanged(key: str, node: Stat | None) -> list[Operation]:
    if node is not None:
        return [Operation("check", key, version=node.version)]
    # ZooKeeper cannot check that a node is missing, but creating it succeeds only then.
    return [Operation("create", key), Operation("delete", key)]


def _put(key: str, value: bytes, node: Stat | None, owner: int) -> list[Operation]:
    if node is not None and node.ephemeralOwner == owner:
        return [Operation("set", key, encode(value), node.version)]
    operations: list[Operation] = []
    if node is not None:
        if owner and node.numChildren:
            raise ValueError(f"{key} has keys below it, so it cannot belong to a session in ZooKeeper")
        # A node's owner cannot be changed. The deletion is not visible, because the transaction recreates the node.
        operations.append(Operation("delete", key, version=node.version))
    operations.append(Operation("create ephemeral" if owner else "create", key))
    # Written in a second operation, because its answer has the id of the transaction.
    operations.append(Operation("set", key, encode(value), 0))
    return operations


def _remove(key: str, node: Stat | None) -> Operation:
    assert node is not None
    if node.numChildren:
        return Operation("set", key, b"", node.version)  # the node remains as a directory
    return Operation("delete", key, version=node.version)
