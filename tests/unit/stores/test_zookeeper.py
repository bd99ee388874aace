"""Keys as nodes, transactions as operations on nodes, and the sockets that kazoo is given."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.store import ABSENT, Check, Session, Write
from tailrace.stores.zookeeper_client import _Doorbell, _Handler, _Wire
from tailrace.stores.zookeeper_nodes import (
    Operation,
    Stat,
    decode,
    encode,
    plan,
    session_key,
    version_of,
)

# --- values


@given(st.binary(max_size=20))
def test_every_value_comes_back_and_none_is_held_as_nothing(value: bytes) -> None:
    assert encode(value)
    assert decode(encode(value)) == value


def test_text_is_held_as_it_is() -> None:
    assert encode(b'{"version":1}') == b'{"version":1}'


def test_sessions_have_nodes_by_their_number_also_where_it_is_negative() -> None:
    assert session_key(0x1000_0000_0000_0001) == "/.sessions/1000000000000001"
    assert session_key(-1) == "/.sessions/ffffffffffffffff"


# --- transactions: against a model of ZooKeeper's nodes


@dataclass(frozen=True)
class Node:
    """A node as ZooKeeper's own `Stat` shows it."""

    data: bytes
    mzxid: int
    version: int = 0
    ephemeralOwner: int = 0
    numChildren: int = 0

    @property
    def dataLength(self) -> int:
        return len(self.data)


class RefusedError(Exception):
    """ZooKeeper would not do this."""


class Tree:
    """Nodes that take operations by ZooKeeper's rules, all or none of a transaction."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.zxid = 100

    def stat(self, path: str) -> Stat | None:
        node = self.nodes.get(path)
        if node is None:
            return None
        below = [other for other in self.nodes if other.rpartition("/")[0] == path]
        return replace(node, numChildren=len(below))

    def make(self, path: str, data: bytes = b"", owner: int = 0) -> None:
        """A node, and directories above it."""
        self.zxid += 1
        while path:
            self.nodes.setdefault(path, Node(data, self.zxid, ephemeralOwner=owner))
            path, data, owner = path.rpartition("/")[0], b"", 0

    def apply(self, operations: list[Operation], session_id: int) -> None:
        before = dict(self.nodes)
        self.zxid += 1
        try:
            for operation in operations:
                self._apply(operation, session_id)
        except RefusedError:
            self.nodes = before
            raise

    def _apply(self, operation: Operation, session_id: int) -> None:
        path = operation.key
        node = self.stat(path)
        if operation.kind.startswith("create"):
            parent = self.nodes.get(path.rpartition("/")[0])
            if node is not None or (path.count("/") > 1 and (parent is None or parent.ephemeralOwner)):
                raise RefusedError(operation)
            owner = session_id if operation.kind == "create ephemeral" else 0
            self.nodes[path] = Node(operation.data, self.zxid, ephemeralOwner=owner)
            return
        if node is None or node.version != operation.version:
            raise RefusedError(operation)
        if operation.kind == "delete":
            if node.numChildren:
                raise RefusedError(operation)
            del self.nodes[path]
        elif operation.kind == "set":
            self.nodes[path] = replace(self.nodes[path], data=operation.data, mzxid=self.zxid, version=node.version + 1)


MINE, THEIRS = 7, 8
#: A session as far as a write has one; the plan knows it by its number.
SESSION = cast(Session, object())
KEYS = ("/a", "/b", "/d", "/d/x", "/d/y")


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree = Tree()
    for owner in (MINE, THEIRS):
        tree.make(session_key(owner), owner=owner)
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True)):
        is_leaf = key != "/d"
        tree.make(key, draw(st.sampled_from([b"", b"1"])), draw(st.sampled_from([0, MINE, THEIRS])) if is_leaf else 0)
        for _ in range(draw(st.integers(0, 2))):
            version = tree.nodes[key].version
            tree.apply([Operation("set", key, draw(st.sampled_from([b"", b"2", b"3"])), version)], 0)
    return tree


def keys_of(tree: Tree) -> dict[str, tuple[bytes, int]]:
    """The key space that a tree stands for: value and owner of each key."""
    return {
        key: (decode(node.data), node.ephemeralOwner)
        for key, node in tree.nodes.items()
        if node.data and not key.startswith("/.")
    }


@st.composite
def writes_to(draw: st.DrawFn) -> list[Write]:
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=4))
    values = st.one_of(st.none(), st.sampled_from([b"", b"new", b"\0"]))
    return [
        Write(key, value := draw(values), draw(st.sampled_from([None, SESSION])) if value is not None else None)
        for key in keys
    ]


@given(trees(), writes_to(), st.data())
def test_a_plan_does_what_the_transaction_says_and_nothing_else(
    tree: Tree, writes: list[Write], data: st.DataObject
) -> None:
    checks = []
    for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=3)):
        version = version_of(tree.stat(key))
        checks.append(Check(key, data.draw(st.sampled_from([version, version, version, ABSENT, 3]))))
    involved = [check.key for check in checks] + [write.key for write in writes]
    nodes = {key: tree.stat(key) for key in involved}
    before = keys_of(tree)
    holds = all(version_of(nodes[check.key]) == check.version for check in checks)
    session_id = MINE if any(write.session is not None for write in writes) else 0
    directory = tree.stat("/d")
    if any(write.key == "/d" and write.session for write in writes) and directory is not None and directory.numChildren:
        if holds:
            with pytest.raises(ValueError, match="cannot belong to a session"):
                plan(checks, writes, nodes, session_id)
        return
    operations = plan(checks, writes, nodes, session_id)
    assert (operations is not None) == holds
    if operations is None:
        return
    for operation in operations:  # as the store does, before it commits
        if operation.kind.startswith("create") and operation.key.count("/") > 1 and "/d" not in tree.nodes:
            tree.make("/d")
    expected = dict(before)
    for write in writes:
        expected.pop(write.key, None)
        if write.value is not None:
            expected[write.key] = (write.value, MINE if write.session is not None else 0)
    try:
        tree.apply(operations, session_id)
    except RefusedError:
        # Its own directory was made meanwhile, or one of the two becomes the other's parent: planned anew from there.
        assert any(key == "/d" for key in involved)
        assert keys_of(tree) == before
        return
    assert keys_of(tree) == expected
    for write in writes:
        if write.value is not None:
            assert version_of(tree.stat(write.key)) == tree.zxid
    for key in before.keys() - {write.key for write in writes}:
        assert version_of(tree.stat(key)) != tree.zxid


@given(trees(), st.sampled_from(KEYS), st.sampled_from(["set", "delete", "make"]), st.booleans())
def test_a_plan_is_refused_by_nodes_that_have_changed_meanwhile(tree: Tree, key: str, how: str, writes: bool) -> None:
    node = tree.stat(key)
    checks = [Check(key, version_of(node))]
    operations = plan(checks, [Write("/z", b"1")] + ([Write(key, b"2")] if writes else []), {key: node, "/z": None}, 0)
    assert operations is not None
    if node is None:
        tree.make(key, b"other")
    elif how == "set" or node.numChildren:
        tree.apply([Operation("set", key, b"other", node.version)], 0)
    else:
        del tree.nodes[key]
        if how == "make":  # by another session, which has as many writes behind it
            for owner in (MINE, THEIRS):
                if node.ephemeralOwner == owner:
                    del tree.nodes[session_key(owner)]
            if not node.ephemeralOwner:
                return  # keys without a session are never made again
            tree.nodes[key] = Node(b"other", tree.zxid, version=node.version, ephemeralOwner=9)
    with pytest.raises(RefusedError):
        tree.apply(operations, 0)
    assert "/z" not in tree.nodes


def test_nothing_is_done_where_there_is_nothing_to_do() -> None:
    assert plan([], [], {}, 0) == []
    assert plan([], [Write("/a", None)], {"/a": None}, 0) == []


def test_a_session_is_checked_before_everything_else() -> None:
    operations = plan([], [Write("/a", b"1", SESSION)], {"/a": None}, MINE)
    assert operations is not None
    assert operations[0] == Operation("check", session_key(MINE))


# --- sockets for kazoo


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_a_wire_reads_ahead_and_counts_what_it_has(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    wire = _Wire(near, lambda _: None)
    handler = _Handler(1.0)
    far.sendall(b"0123456789")
    assert handler.select([wire], [], [], 30) == ([wire], [], [])
    assert wire.recv(4) == b"0123"
    assert wire.pending() == 6
    # Nothing is left in the socket, and still there is something to read.
    assert handler.select([wire], [], [], 30) == ([wire], [], [])
    assert wire.recv(100) == b"456789"
    assert wire.pending() == 0
    assert handler.select([wire], [], [], 0) == ([], [], [])
    assert handler.select([], [wire], [], 30) == ([], [wire], [])
    assert wire.send(b"answer") == 6
    assert far.recv(100) == b"answer"


def test_a_wire_that_is_cut_ends_under_its_reader(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, _ = sockets
    wire = _Wire(near, lambda _: None)
    wire.cut()
    assert _Handler(1.0).select([wire], [], [], 30) == ([wire], [], [])
    assert wire.recv(4) == b""
    wire.cut()


@pytest.mark.parametrize("piece", [1, 5, 100])
def test_a_wire_tells_the_granted_timeout_from_the_greeting(
    sockets: tuple[socket.socket, socket.socket], piece: int
) -> None:
    near, far = sockets
    greetings: list[int | None] = []
    wire = _Wire(near, greetings.append)
    greeting = struct.pack(">iiiq", 36, 0, 4321, 5) + bytes(20)
    for start in range(0, len(greeting), piece):
        far.sendall(greeting[start : start + piece])
        wire.recv(piece)
    far.sendall(b"and so on")
    wire.recv(100)
    assert greetings == [4321]


def test_a_wire_tells_where_a_server_hangs_up_before_it_greets(sockets: tuple[socket.socket, socket.socket]) -> None:
    near, far = sockets
    greetings: list[int | None] = []
    wire = _Wire(near, greetings.append)
    far.close()
    assert wire.recv(4) == b""
    assert greetings == [None]


def test_a_silent_server_is_waited_for_a_little_at_first_and_longer_each_time() -> None:
    handler = _Handler(0.6)
    waited = []
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, and says nothing
        for _ in range(5):
            wire = handler.create_connection(server.getsockname(), "localhost", 10.0)
            started = time.monotonic()
            assert handler.select([wire], [], [], 10.0) == ([], [], [])
            waited.append(time.monotonic() - started)
            wire.close()
        assert handler.reason == "the server does not answer"
        # One that speaks is waited for as long as kazoo likes, and all begins anew.
        wire = handler.create_connection(server.getsockname(), "localhost", 10.0)
        peers = [server.accept()[0] for _ in range(6)]
        peers[-1].sendall(struct.pack(">iiiq", 36, 0, 4321, 5) + bytes(20))
        assert handler.select([wire], [], [], 10.0) == ([wire], [], [])
        wire.recv(100)
        assert (handler.granted_ms, handler.reason) == (4321, "")
        started = time.monotonic()
        assert handler.select([wire], [], [], 0.7) == ([], [], [])
        assert time.monotonic() - started >= 0.7
        for closing in (wire, *peers):
            closing.close()
    for seconds, least in zip(waited, (0.1, 0.2, 0.4, 0.6, 0.6), strict=True):
        assert least <= seconds < 10


def test_a_doorbell_rings_as_often_as_it_was_rung_and_never_blocks() -> None:
    bell = _Doorbell()
    handler = _Handler(1.0)
    assert handler.select([bell], [], [], 0) == ([], [], [])
    rings = 10_000  # a pair of sockets is full after a few hundred
    for _ in range(rings):
        bell.send(b"\0")
    heard = 0
    while handler.select([bell], [], [], 0)[0]:
        assert bell.recv(1) == b"\0"
        heard += 1
    assert heard == rings
    with pytest.raises(BlockingIOError):
        bell.recv(1)
    bell.close()
    bell.close()
