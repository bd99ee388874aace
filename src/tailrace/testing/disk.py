"""The simulated disk of one host: files in memory, power failures, full and failing disks, by a seed.

Owns the handles, the faults and the waiting calls of one host. Invariants: synced data survives every crash; after a
crash no older handle works, and no waiting call takes effect. A call in a thread may pause before each of its
operations, and the loop runs meanwhile. The same seed and the same calls give the same disk.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar, cast

from tailrace.errors import StorageError
from tailrace.runtime.disk import Buffer, DiskFullError, RemovedError, TooManyOpenFilesError, Volume
from tailrace.testing.disk_thread import SimThread
from tailrace.testing.filesystem import DirectoryNode, FileNode, NameTree, Node
from tailrace.testing.trace import Trace
from tailrace.testing.work import charge_bytes, charge_disk, charge_removal

T = TypeVar("T")

ANY_OPERATION = "any"
#: The reported size of a disk without a limit.
_UNLIMITED_BYTES = 1 << 50
#: How often a call in a thread pauses before an operation.
_PAUSE_PROBABILITY = 0.25
#: While descriptors are short: how often an operation that needs a new one, or whose own may have been closed, gets
#: none.
_NO_DESCRIPTOR_PROBABILITY = {
    "open": 0.5,
    "read_file": 0.5,
    "replace_file": 0.5,
    "list": 0.5,
    "sync_directory": 0.5,
    "sync_all": 0.5,
    "remove": 0.5,
    "sync": 0.3,
    "prefetch": 0.3,
}


class Fault:
    """A reason for operations to fail, until it is lifted or used up."""

    def __init__(
        self,
        applies_to: Callable[[str], bool],
        operation: str,
        error: Callable[[str], BaseException],
        times: int | None,
    ) -> None:
        self._applies_to = applies_to
        self._operation = operation
        self._error = error
        self._times_left = times

    def lift(self) -> None:
        """Let operations succeed again."""
        self._times_left = 0

    def check(self, operation: str, path: str) -> None:
        """Raise if an operation on a path must fail."""
        if self._times_left == 0 or self._operation not in (operation, ANY_OPERATION):
            return
        if not self._applies_to(path):
            return
        if self._times_left is not None:
            self._times_left -= 1
        raise self._error(f"cannot {operation} {path}: injected fault")


class SimFile:
    """A handle to a simulated file; a crash of its host makes it useless."""

    __slots__ = ("_disk", "_generation", "_node", "_path")

    def __init__(self, disk: SimDisk, path: str, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._generation = disk.generation

    @property
    def path(self) -> str:
        return self._disk._spelled(self._node, self._path)

    @property
    def size(self) -> int:
        self._disk._check_generation(self._generation, self._path)
        return len(self._node.content)

    def append(self, data: Buffer) -> None:
        self._begin("append", len(data))
        self._disk._handle_bytes(len(data))
        self._disk._claim(self._node, len(data), self._path)
        self._node.append(self._disk._next_number(), bytes(data))

    def read(self, position: int, size: int) -> bytes:
        self._begin("read", position, size)
        self._disk._handle_bytes(size)
        return bytes(self._node.content[position : position + size])

    def truncate(self, size: int) -> None:
        self._begin("truncate", size)
        cut = len(self._node.content) - size
        if size < 0 or cut < 0:
            raise ValueError(f"{self._path} has {len(self._node.content)} bytes, it cannot be truncated to {size}")
        self._disk._release(self._node, cut)
        self._node.truncate(self._disk._next_number(), size)

    def sync(self) -> None:
        self._begin("sync", len(self._node.content))
        self._disk._sync(self._node)

    def is_cached(self, position: int, size: int) -> bool:
        self._disk._check_generation(self._generation, self._path)
        start, end = self._node.prefetched
        # Rotten data is on the disk: to see it, it must be read from there.
        is_cached = self._disk._is_cached() and not self._node.has_rotted(position, size)
        return is_cached or (start <= position and position + size <= end)

    def prefetch(self, position: int, size: int) -> bytes:
        self._begin("prefetch", position, size)
        self._node.prefetched = (position, position + size)
        return self.read(position, size)

    def _begin(self, operation: str, *details: int) -> None:
        self._disk._check_generation(self._generation, self._path)
        self._disk._begin(operation, self.path, *details)


class SimDirectory:
    """A handle to a directory; a crash of its host makes it useless."""

    __slots__ = ("_disk", "_generation", "_node", "_path")

    def __init__(self, disk: SimDisk, path: str, node: DirectoryNode) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._generation = disk.generation

    @property
    def path(self) -> str:
        return self._disk._spelled(self._node, self._path)

    def list(self) -> Sequence[str]:
        self._begin("list")
        return sorted(self._node.names)

    def replace_file(self, name: str, content: bytes, *, sync: bool = True) -> None:
        self._begin("replace_file", name, len(content))
        self._disk._replace(self._node, name, content, f"{self.path}/{name}", sync=sync)

    def remove(self, name: str) -> None:
        self._begin("remove", name)
        if name in self._node.names:
            self._disk._remove(self._node, name)

    def sync(self) -> None:
        self._begin("sync_directory")
        self._disk._sync_directory(self._node)

    def _begin(self, operation: str, name: str | None = None, *details: int) -> None:
        self._disk._check_generation(self._generation, self._path)
        self._disk._begin(operation, self.path if name is None else f"{self.path}/{name}", *details)
        if not self._disk._is_in_place(self._node):
            raise RemovedError(f"cannot {operation} {self._path}: it was removed")


class SimDisk:
    """A disk port in memory. `crash` is a power failure, `kill` only ends the process."""

    def __init__(
        self,
        random: Random,
        *,
        capacity_bytes: int | None = None,
        latency_seconds: tuple[float, float] = (0.0001, 0.02),
        cached_probability: float = 0.9,
        interleaved_probability: float = 0.2,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.latency_seconds = latency_seconds
        self.cached_probability = cached_probability
        #: The share of calls in threads that run in several turns.
        self.interleaved_probability = interleaved_probability
        #: Whether the process has no descriptor left for most operations that need one. The loop reuses idle ones if a
        #: file is already open, so only threads, and operations that open a new file, are refused.
        self.lacks_descriptors = False
        #: Whether the calling loop pays for its work; a helper process works elsewhere.
        self.is_charged_to_loop = True
        self.used_bytes = 0
        self.generation = 0
        self.trace = Trace()
        self._random = random
        # A separate generator, so that one more pause changes nothing else.
        self._turns = Random(repr(random.getstate()[1][:8]))
        self._thread: SimThread | None = None
        self._paused: dict[int, SimThread] = {}
        self._tree = NameTree()
        self._faults: list[Fault] = []
        self._number = 0
        #: While an offloaded call runs: the last operation before it was passed to the thread, and before it began.
        self._offloaded: tuple[int, int] | None = None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._calls_offloaded = 0
        self._parents: dict[int, tuple[Node, DirectoryNode, str]] = {}

    # What a test does to the disk.

    def crash(self) -> None:
        """Cut the power: lose or tear unsynced data, drop every handle and every waiting call."""
        self.trace.add("crash")
        self._tree.crash(self._random)
        self._parents.clear()
        self.used_bytes = self._adopt(self._tree.root)
        self._forget_callers()

    def kill(self) -> None:
        """End the process that uses the disk: only its handles and its waiting calls are lost."""
        self.trace.add("kill")
        self._forget_callers()

    def fail(
        self,
        applies_to: Callable[[str], bool],
        operation: str = ANY_OPERATION,
        error: Callable[[str], BaseException] = StorageError,
        *,
        times: int | None = 1,
    ) -> Fault:
        """Make an operation (a method's name) fail on matching paths: some times, or until lifted if None."""
        fault = Fault(applies_to, operation, error, times)
        self._faults.append(fault)
        return fault

    def rot(self, applies_to: Callable[[str], bool]) -> str | None:
        """Damage one byte of a synced file, as a failing disk does; return its path, if there is one."""
        found = [
            (path, node)
            for path, node in self._files(self._tree.root, "")
            if applies_to(path) and node.durable_bytes and not node.has_rotted(0, node.durable_bytes)
        ]
        if not found:
            return None
        path, node = self._random.choice(found)
        node.rot(self._random.randrange(node.durable_bytes), self._random.randint(1, 255))
        return path

    def _files(self, directory: DirectoryNode, above: str) -> Iterator[tuple[str, FileNode]]:
        for name, node in sorted(directory.names.items()):
            if isinstance(node, FileNode):
                yield f"{above}/{name}", node
            else:
                yield from self._files(node, f"{above}/{name}")

    # The port.

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._begin("open", path)
        node = self._find(path)
        if node is None and create:
            node = FileNode()
            self._put(node, *self._place(path, "open"))
        if not isinstance(node, FileNode):
            raise StorageError(f"cannot open {path}: {'no such file' if node is None else 'it is a directory'}")
        return SimFile(self, path, node)

    def directory(self, path: str) -> SimDirectory:
        node = self._find(path)
        if not isinstance(node, DirectoryNode):
            raise StorageError(f"cannot open directory {path}: no such directory")
        return SimDirectory(self, path, node)

    def read_file(self, path: str) -> bytes | None:
        self._begin("read_file", path)
        node = self._find(path)
        if isinstance(node, DirectoryNode):
            raise StorageError(f"cannot read {path}: it is a directory")
        return None if node is None else bytes(node.content)

    def replace_file(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self._begin("replace_file", path, len(content))
        self._replace(*self._place(path, "write"), content, path, sync=sync)

    def _replace(self, directory: DirectoryNode, name: str, content: bytes, path: str, *, sync: bool) -> None:
        former = directory.names.get(name)
        if isinstance(former, DirectoryNode):
            raise StorageError(f"cannot write {path}: it is a directory")
        # The old content stays until the new one is complete.
        self._check_space(len(content), path)
        if former is not None:
            self._forget(former)
        node = FileNode(content)
        change = self._tree.change(node, None, (directory, name))
        self._parents[id(node)] = (node, directory, name)
        self.used_bytes += len(content)
        if sync:
            if self._is_charged:
                charge_disk("sync")
            self._tree.sync_change(change)

    def list(self, path: str) -> Sequence[str]:
        self._begin("list", path)
        node = self._find(path)
        if isinstance(node, FileNode):
            raise StorageError(f"cannot list {path}: it is a file")
        return [] if node is None else sorted(node.names)

    def exists(self, path: str) -> bool:
        try:
            return self._find(path) is not None
        except StorageError:
            return False

    def make_directory(self, path: str) -> None:
        self._begin("make_directory", path)
        directory = self._tree.root
        for name in _names(path):
            node = directory.names.get(name)
            if node is None:
                node = DirectoryNode()
                self._put(node, directory, name)
            if isinstance(node, FileNode):
                raise StorageError(f"cannot create directory {path}: {name} is a file")
            directory = node

    def remove(self, path: str) -> None:
        self._begin("remove", path)
        if self._find(path) is not None:
            self._remove(*self._place(path, "remove"))

    def rename(self, old: str, new: str) -> None:
        self._begin("rename", old)
        node = self._find(old)
        if node is None:
            raise StorageError(f"cannot rename {old}: no such file")
        source, target = self._place(old, "rename"), self._place(new, "rename")
        if any(above is node for above in self._ancestors(target[0])):
            raise StorageError(f"cannot rename {old}: {new} is inside it")
        replaced = target[0].names.get(target[1])
        if replaced is node:
            return
        if replaced is not None:
            if type(replaced) is not type(node) or (isinstance(replaced, DirectoryNode) and replaced.names):
                raise StorageError(f"cannot rename {old}: {new} is in the way")
            self._forget(replaced)
        self._tree.change(node, source, target)
        self._parents[id(node)] = (node, *target)

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path)
        node = self._find(path)
        if not isinstance(node, DirectoryNode):
            raise StorageError(f"cannot sync directory {path}: no such directory")
        self._sync_directory(node)

    def _sync_directory(self, node: DirectoryNode) -> None:
        self._tree.sync_creation(node)
        self._tree.sync_directory(node)

    def sync_all(self, path: str) -> bool:
        self._begin("sync_all", path)
        node = self._find(path)
        if not isinstance(node, DirectoryNode):
            raise StorageError(f"cannot sync all of {path}: no such directory")
        self._tree.sync_creation(node)
        self._sync_below(node)
        return True

    def _sync_below(self, directory: DirectoryNode) -> None:
        self._tree.sync_directory(directory)
        for node in directory.names.values():
            if isinstance(node, FileNode):
                self._sync(node)
            else:
                self._sync_below(node)

    def volume(self, path: str) -> Volume:
        self._begin("volume", path)
        if not isinstance(self._find(path), DirectoryNode):
            raise StorageError(f"cannot measure the volume of {path}: no such directory")
        total = _UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return Volume(total, max(0, total - self.used_bytes))

    async def offload(self, call: Callable[[], T]) -> T:
        key = self._calls_offloaded = self._calls_offloaded + 1
        generation, handed_over = self.generation, self._number
        loop = asyncio.get_running_loop()
        woken = self._waiting[key] = loop.create_future()
        due = loop.time() + self._random.uniform(*self.latency_seconds)
        timer = loop.call_at(due, _wake, woken)
        try:
            await woken
        except asyncio.CancelledError:
            # A thread that has started runs on even if no one waits for it any more.
            if self.generation == generation and self._random.random() < 0.5:
                loop.call_at(due, self._run_unawaited, call, generation, handed_over)
            raise
        finally:
            timer.cancel()
            self._waiting.pop(key, None)
        if self.generation != generation:
            raise asyncio.CancelledError
        if self._turns.random() >= self.interleaved_probability:
            return self._run_offloaded(call, handed_over)
        thread = SimThread(call)
        began = self._number
        at_close = getattr(loop, "at_close", None)
        if at_close is not None:
            at_close[id(self)] = self._end_threads
        self._go_on(thread, handed_over, began)
        while not thread.is_done:
            await self._until_next_turn(thread, handed_over, began)
        if self.generation != generation:
            raise asyncio.CancelledError
        if thread.error is not None:
            raise thread.error
        return cast(T, thread.result)

    async def _until_next_turn(self, thread: SimThread, handed_over: int, began: int) -> None:
        """Let the loop run for a while, then the thread."""
        key = self._calls_offloaded = self._calls_offloaded + 1
        generation = self.generation
        loop = asyncio.get_running_loop()
        woken = self._waiting[key] = loop.create_future()
        due = loop.time() + self._turns.uniform(0, self.latency_seconds[1] / 4)
        timer = loop.call_at(due, _wake, woken)
        try:
            await woken
        except asyncio.CancelledError:
            if self.generation == generation:
                loop.call_at(due, self._go_on_unawaited, thread, handed_over, began, generation)
            raise
        finally:
            timer.cancel()
            self._waiting.pop(key, None)
        if self.generation != generation:
            raise asyncio.CancelledError
        self._go_on(thread, handed_over, began)

    def _go_on(self, thread: SimThread, handed_over: int, began: int) -> None:
        self._offloaded, self._thread = (handed_over, began), thread
        try:
            thread.go_on()
        finally:
            self._offloaded = self._thread = None
        self._paused.pop(id(thread), None)
        if not thread.is_done:
            self._paused[id(thread)] = thread

    def _go_on_unawaited(self, thread: SimThread, handed_over: int, began: int, generation: int) -> None:
        """Let a thread that has started run to its end although no one waits for it any more."""
        if self.generation != generation:
            return
        while not thread.is_done:
            self._go_on(thread, handed_over, began)
        if thread.error is not None and not isinstance(thread.error, StorageError):
            raise thread.error

    def _end_threads(self) -> None:
        paused, self._paused = self._paused, {}
        for thread in paused.values():
            thread.end()
        if self._thread is not None:
            self._thread.end()  # the power fails during its own operation

    def _run_offloaded(self, call: Callable[[], T], handed_over: int) -> T:
        self._offloaded = (handed_over, self._number)
        try:
            return call()
        finally:
            self._offloaded = None

    def _run_unawaited(self, call: Callable[[], object], generation: int, handed_over: int) -> None:
        if self.generation != generation:
            return
        try:
            self._run_offloaded(call, handed_over)
        except StorageError as error:
            self.trace.add(f"no longer waited for: {error}")

    # What handles and the port above share.

    def _begin(self, operation: str, path: str, *details: int) -> None:
        thread = self._thread
        if thread is not None and (thread.is_ended or self._turns.random() < _PAUSE_PROBABILITY):
            thread.pause()
        if (
            self.lacks_descriptors
            and (self._offloaded is not None or operation == "open")
            and self._turns.random() < _NO_DESCRIPTOR_PROBABILITY.get(operation, 0)
        ):
            raise TooManyOpenFilesError(f"cannot {operation} {path}: too many open files in the simulation")
        self.trace.add(f"{operation} {path} {' '.join(map(str, details))}")
        if self._is_charged:
            charge_disk(operation)
        for fault in self._faults:
            fault.check(operation, path)

    @property
    def _is_charged(self) -> bool:
        """True if the loop does the work, not a thread or another process."""
        return self.is_charged_to_loop and self._offloaded is None

    def _handle_bytes(self, count: int) -> None:
        if self._is_charged:
            charge_bytes(count)

    def _check_generation(self, generation: int, path: str) -> None:
        if generation != self.generation:
            raise StorageError(f"{path} was opened before its host crashed")

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _claim(self, node: FileNode, size: int, path: str) -> None:
        if id(node) in self._parents:
            self._check_space(size, path)
            self.used_bytes += size

    def _release(self, node: FileNode, size: int) -> None:
        if id(node) in self._parents:
            self.used_bytes -= size

    def _check_space(self, size: int, path: str) -> None:
        if self.capacity_bytes is not None and self.used_bytes + size > self.capacity_bytes:
            raise DiskFullError(f"cannot write to {path}: no space left on the simulated disk")

    def _is_cached(self) -> bool:
        return self._random.random() < self.cached_probability

    def _sync(self, node: FileNode) -> None:
        """Make a file and its existence durable."""
        up_to = self._number
        if self._offloaded is not None:
            handed_over, began = self._offloaded
            # Data that was appended while the call waited for its thread may or may not be included.
            if not node.touched_after(began) and self._random.random() < 0.5:
                up_to = handed_over
        node.sync(up_to)
        self._tree.sync_creation(node)

    def _find(self, path: str) -> Node | None:
        node: Node = self._tree.root
        for name in _names(path):
            if isinstance(node, FileNode):
                raise StorageError(f"cannot reach {path}: it leads through a file")
            found = node.names.get(name)
            if found is None:
                return None
            node = found
        return node

    def _place(self, path: str, doing: str) -> tuple[DirectoryNode, str]:
        *parents, name = _names(path)
        directory = self._find("/".join(parents))
        if not isinstance(directory, DirectoryNode):
            raise StorageError(f"cannot {doing} {path}: no such directory")
        return directory, name

    def _put(self, node: Node, directory: DirectoryNode, name: str) -> None:
        self._tree.change(node, None, (directory, name))
        self._parents[id(node)] = (node, directory, name)

    def _remove(self, directory: DirectoryNode, name: str) -> None:
        node = directory.names[name]
        if isinstance(node, DirectoryNode):
            for child in list(node.names):
                self._remove(node, child)
        elif self._is_charged:
            charge_removal(name, len(node.content))
        self._forget(node)
        self._tree.change(node, (directory, name), None)

    def _forget(self, node: Node) -> None:
        """Remove a node that loses its name from the accounting."""
        del self._parents[id(node)]
        if isinstance(node, FileNode):
            self.used_bytes -= len(node.content)

    def _ancestors(self, node: Node) -> Sequence[Node]:
        """Return a node and the directories above it."""
        found: builtins.list[Node] = [node]
        while (known := self._parents.get(id(node))) is not None:
            node = known[1]
            found.append(node)
        return found

    def _is_in_place(self, node: Node) -> bool:
        return self._path_of(node) is not None

    def _spelled(self, node: Node, former: str) -> str:
        """Return a node's present path, with a leading slash if it was opened with one; its old path if it has none."""
        now = self._path_of(node)
        if now is None or now == "/".join(_names(former)):
            return former
        return "/" + now if former.startswith("/") else now

    def _path_of(self, node: Node) -> str | None:
        names: builtins.list[str] = []
        while (known := self._parents.get(id(node))) is not None:
            node = known[1]
            names.append(known[2])
        return "/".join(reversed(names)) if node is self._tree.root else None

    def _adopt(self, directory: DirectoryNode) -> int:
        """Learn the places of all nodes after a crash; return the total bytes."""
        total = 0
        for name, node in directory.names.items():
            self._parents[id(node)] = (node, directory, name)
            total += len(node.content) if isinstance(node, FileNode) else self._adopt(node)
        return total

    def _forget_callers(self) -> None:
        self.generation += 1
        self._end_threads()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.cancel()


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
