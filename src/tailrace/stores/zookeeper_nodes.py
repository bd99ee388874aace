"""How keys are held in ZooKeeper's nodes, and which operations a transaction becomes.

A key is the node at its path; a node without data is a directory and no key, so an empty value is held as one byte.
The version of a key is the id of the transaction that wrote it last (mzxid): it grows for ever, while a node's own
version begins again with every node. ZooKeeper checks only the node's own, so a transaction is planned from nodes as
they were just read, and applied only if they still have that version. A key of a session may be gone and made again by
another one meanwhile, with the same version of its node: so each session has a node that is there as long as it is, and
whoever finds a key of a session checks that one, too.

Knows no connection. Operations are in the order in which they are to be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from tailrace.cluster.store import ABSENT, Check, Write

#: Where the nodes of sessions are; no key of the cluster's begins with a dot.
SESSIONS_DIRECTORY = "/.sessions"

_ESCAPE = b"\0"
#: What an operation takes beside its path and its data, with some room: headers, an access control list.
_OPERATION_BYTES = 160


class Stat(Protocol):
    """What ZooKeeper says about a node, by its own names."""

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
    """One step of a transaction of ZooKeeper's."""

    kind: Literal["create", "create ephemeral", "set", "delete", "check"]
    key: str
    data: bytes = b""
    #: The node's own version that it must have; creating needs none.
    version: int = 0

    @property
    def size(self) -> int:
        """About how many bytes it takes on the wire, rather too many."""
        return len(self.key.encode()) + len(self.data) + _OPERATION_BYTES


def encode(value: bytes) -> bytes:
    """A value as a node holds it."""
    return _ESCAPE + value if value[:1] in (b"", _ESCAPE) else value


def decode(data: bytes) -> bytes:
    """The value that a node's data, which is not empty, stands for."""
    return data[1:] if data[:1] == _ESCAPE else data


def version_of(stat: Stat | None) -> int:
    """The version of the key at a node: `ABSENT` where there is none, or a mere directory."""
    return ABSENT if stat is None or stat.dataLength == 0 else stat.mzxid


def session_key(session_id: int) -> str:
    """Where the node of a session is, by ZooKeeper's number of it."""
    return f"{SESSIONS_DIRECTORY}/{session_id & (1 << 64) - 1:016x}"


def plan(
    checks: Sequence[Check], writes: Sequence[Write], nodes: Mapping[str, Stat | None], session_id: int
) -> list[Operation] | None:
    """What to do to the nodes of these keys, as they are, for a transaction; None if a check does not hold.

    `session_id` is ZooKeeper's number of the session of the writes that have one, or 0: that it lasts is checked first.
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
    # There is no check that a node is not there, but only then it can be made.
    return [Operation("create", key), Operation("delete", key)]


def _put(key: str, value: bytes, node: Stat | None, owner: int) -> list[Operation]:
    if node is not None and node.ephemeralOwner == owner:
        return [Operation("set", key, encode(value), node.version)]
    operations: list[Operation] = []
    if node is not None:
        if owner and node.numChildren:
            raise ValueError(f"{key} has keys below it, so it cannot belong to a session in ZooKeeper")
        # To whom a node belongs cannot be changed; nobody sees that it was gone.
        operations.append(Operation("delete", key, version=node.version))
    operations.append(Operation("create ephemeral" if owner else "create", key))
    # Written in a second step, whose answer tells the id of the transaction.
    operations.append(Operation("set", key, encode(value), 0))
    return operations


def _remove(key: str, node: Stat | None) -> Operation:
    assert node is not None
    if node.numChildren:
        return Operation("set", key, b"", node.version)  # it stays as a directory
    return Operation("delete", key, version=node.version)
