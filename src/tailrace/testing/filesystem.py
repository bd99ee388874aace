"""The state of a simulated file system: what programs see, what a power failure would leave, and the difference.

Owns nodes and their operations that are not durable yet. Invariant: what survives a crash is the durable state plus
some of those operations, so nothing appears that was never written, except zeros. It must not know ports, event loops
or faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

#: Beyond this number of unsynced operations, the oldest become durable, as a kernel writes back by itself.
_WRITE_BACK_AT = 4096
_PAGE_BYTES = 4096


class FileNode:
    """A file's content, apart from its name."""

    __slots__ = ("_durable", "_rotten", "_unsynced", "content", "prefetched")

    def __init__(self, content: bytes = b"") -> None:
        """Create a file whose content, if any, is durable from the start."""
        self.content = bytearray(content)
        self._durable = bytearray(content)
        #: The operations in order, each with its number: bytes were appended, an int is the length truncated to.
        self._unsynced: list[tuple[int, bytes | int]] = []
        self.prefetched = (0, 0)
        #: Where the disk has lost synced data.
        self._rotten: list[int] = []

    def append(self, number: int, data: bytes) -> None:
        """Write at the end."""
        self.content += data
        self._add(number, data)

    def truncate(self, number: int, size: int) -> None:
        """Truncate to a length."""
        del self.content[size:]
        self._add(number, size)

    def sync(self, up_to: int) -> None:
        """Make the operations up to a number durable."""
        done = 0
        while done < len(self._unsynced) and self._unsynced[done][0] <= up_to:
            self._settle(self._unsynced[done][1])
            done += 1
        del self._unsynced[:done]

    def touched_after(self, number: int) -> bool:
        """True if any unsynced operation is newer than a number."""
        return bool(self._unsynced) and self._unsynced[-1][0] > number

    @property
    def durable_bytes(self) -> int:
        """The number of synced bytes that are still there."""
        return min(len(self._durable), len(self.content)) if not self._unsynced else 0

    def rot(self, position: int, bits: int) -> None:
        """Lose a synced byte."""
        self.content[position] ^= bits
        self._durable[position] ^= bits
        self._rotten.append(position)
        self.prefetched = (0, 0)

    def has_rotted(self, position: int, size: int) -> bool:
        """True if anything in a range was lost."""
        return any(position <= lost < position + size for lost in self._rotten)

    def crash(self, random: Random) -> None:
        """Keep what a power failure might leave of the unsynced operations."""
        outcome = random.random()
        if outcome < 0.2:
            kept = 0
        elif outcome < 0.35:
            kept = len(self._unsynced)
        else:
            kept = random.randint(0, len(self._unsynced))
        untouched = len(self._durable)
        for _, operation in self._unsynced[:kept]:
            self._settle(operation)
            untouched = min(untouched, len(self._durable))
        if outcome >= 0.35 and kept < len(self._unsynced):
            self._tear(self._unsynced[kept:], random)
        if outcome > 0.92:
            self._punch_hole(untouched, random)
        self._unsynced.clear()
        self.content = bytearray(self._durable)
        self.prefetched = (0, 0)

    def _tear(self, lost: list[tuple[int, bytes | int]], random: Random) -> None:
        """Keep a part of the first lost append; the file may have been extended further, with zeros."""
        first = lost[0][1]
        if isinstance(first, int):
            return
        torn = random.randint(0, len(first))
        self._durable += first[:torn]
        if random.random() < 0.3:
            missing = -torn
            for _, operation in lost:
                if isinstance(operation, int):
                    break
                missing += len(operation)
            self._durable += bytes(random.randint(0, missing))

    def _punch_hole(self, start: int, random: Random) -> None:
        """Zero some pages of unsynced data: later ones reached the disk, these did not."""
        pages = range(start - start % _PAGE_BYTES, len(self._durable), _PAGE_BYTES)
        if not pages:
            return
        page = random.choice(pages)
        begin, end = max(start, page), min(len(self._durable), page + _PAGE_BYTES)
        self._durable[begin:end] = bytes(end - begin)

    def _add(self, number: int, operation: bytes | int) -> None:
        self._unsynced.append((number, operation))
        if len(self._unsynced) > _WRITE_BACK_AT:
            self.sync(self._unsynced[_WRITE_BACK_AT // 2][0])

    def _settle(self, operation: bytes | int) -> None:
        if isinstance(operation, int):
            del self._durable[operation:]
        else:
            self._durable += operation


class DirectoryNode:
    """A directory: the names that programs see in it, and those that a power failure would leave."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node: TypeAlias = FileNode | DirectoryNode
Place: TypeAlias = tuple[DirectoryNode, str]


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """A node was removed from a place, put at a place, or both in one step."""

    node: Node
    taken_from: Place | None
    put_at: Place | None

    def settle(self) -> None:
        """Make it durable, unless its starting state never became durable."""
        if self.taken_from is not None:
            directory, name = self.taken_from
            if directory.durable.get(name) is not self.node:
                return
            del directory.durable[name]
        if self.put_at is not None:
            directory, name = self.put_at
            directory.durable[name] = self.node

    def places(self) -> list[tuple[int, str]]:
        """Return its places in comparable form."""
        return [(id(place[0]), place[1]) for place in (self.taken_from, self.put_at) if place is not None]

    def is_in(self, directory: DirectoryNode) -> bool:
        """True if it changed a name in a directory."""
        return any(place is not None and place[0] is directory for place in (self.taken_from, self.put_at))


class NameTree:
    """All directories, and the changes of names that are not durable yet, in order."""

    def __init__(self) -> None:
        self.root = DirectoryNode()
        self._unsynced: list[NameChange] = []

    def change(self, node: Node, taken_from: Place | None, put_at: Place | None) -> NameChange:
        """Create, remove or rename a node, which programs see at once."""
        if taken_from is not None:
            del taken_from[0].names[taken_from[1]]
        if put_at is not None:
            put_at[0].names[put_at[1]] = node
        change = NameChange(node, taken_from, put_at)
        self._unsynced.append(change)
        if len(self._unsynced) > _WRITE_BACK_AT:
            oldest = dict.fromkeys(map(id, self._unsynced[: _WRITE_BACK_AT // 2]))
            self._settle_where(lambda other: id(other) in oldest)
        return change

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Make the changes of names in one directory durable."""
        self._settle_where(lambda change: change.is_in(directory))

    def sync_creation(self, node: Node) -> None:
        """Make it durable that a node exists, under its original name."""
        self._settle_where(lambda change: change.taken_from is None and change.node is node)

    def sync_change(self, wanted: NameChange) -> None:
        """Make one change durable."""
        self._settle_where(lambda change: change is wanted)

    def crash(self, random: Random) -> None:
        """Keep what a power failure might leave: first names, then the content of each file that has one."""
        in_order = random.random() < 0.7
        kept = random.randint(0, len(self._unsynced))
        for index, change in enumerate(self._unsynced):
            # Most file systems keep the order of changes; none promises it.
            if index < kept if in_order else random.random() < 0.5:
                change.settle()
        self._unsynced.clear()
        self._restore(self.root, random)

    def _restore(self, directory: DirectoryNode, random: Random) -> None:
        directory.names = dict(directory.durable)
        for node in directory.names.values():
            if isinstance(node, FileNode):
                node.crash(random)
            else:
                self._restore(node, random)

    def _settle_where(self, wanted: Callable[[NameChange], bool]) -> None:
        """Make changes durable, each with the earlier ones of its node, its places and its directory."""
        nodes: dict[int, None] = {}
        places: dict[tuple[int, str], None] = {}
        chosen: list[NameChange] = []
        left: list[NameChange] = []
        for change in reversed(self._unsynced):
            needed = id(change.node) in nodes or any(place in places for place in change.places())
            if needed or wanted(change):
                nodes[id(change.node)] = None
                if change.put_at is not None:
                    nodes[id(change.put_at[0])] = None
                places.update(dict.fromkeys(change.places()))
                chosen.append(change)
            else:
                left.append(change)
        for change in reversed(chosen):
            change.settle()
        self._unsynced = left[::-1]
