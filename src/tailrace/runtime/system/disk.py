"""Files on the real disk, with a limit on how many are open at once.

A file's descriptor is opened on demand. If there are too many, the least recently used one is closed. A removed file
keeps its descriptor as long as it is referenced. Only the event loop's thread closes descriptors that it does not use
itself; threads pin theirs. Reopening by name and renaming exclude each other, so a reopened name is never another file.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from tailrace.errors import StorageError
from tailrace.runtime.disk import Buffer, DiskFullError, RemovedError, TooManyOpenFilesError, Volume
from tailrace.runtime.system.open_names import OpenName, OpenNames

T = TypeVar("T")

_PROBE_STEP_BYTES = 128 * 1024
_OFFLOAD_THREADS = 4
#: How many idle descriptors are closed when the system has none left.
_CLOSED_IN_NEED = 16
_NO_DESCRIPTOR_LEFT = (errno.EMFILE, errno.ENFILE)
#: Linux only; other threads run during the call.
_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
_HAS_NOWAIT_READS = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
_FILE_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _refuse(error: OSError, doing: str, path: str) -> NoReturn:
    reason = f"cannot {doing} {path}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFullError(reason) from error
    if error.errno in _NO_DESCRIPTOR_LEFT:
        raise TooManyOpenFilesError(f"{reason}; allow the broker more (ulimit -n) or use fewer connections") from error
    raise StorageError(reason) from error


def _remove_tree(path: str) -> None:
    """Remove a directory, even while other threads still change its content."""
    for tries_left in reversed(range(2 * _OFFLOAD_THREADS)):
        try:
            shutil.rmtree(path)
            return
        except OSError as error:
            if not os.path.isdir(path):
                return
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not tries_left:
                raise


class SystemFile:
    """One file on disk; the port documents each call."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "_name", "_pins", "_recently_used", "size")

    def __init__(self, disk: SystemDisk, path: str, *, create: bool) -> None:
        self._disk = disk
        self._descriptor = -1
        self._pins = 0
        self._recently_used = True
        try:
            descriptor = disk._open_descriptor(path, _FILE_FLAGS | (os.O_CREAT if create else 0))
        except OSError as error:
            _refuse(error, "open", path)
        self.size = os.fstat(descriptor).st_size
        with disk._lock:
            self._name = disk._names.make(path)
            self._name.add(self)
            disk._adopt(self, descriptor)

    @property
    def path(self) -> str:
        return self._name.path

    def fileno(self) -> int:
        """The descriptor, reopened if it was closed to save descriptors."""
        self._recently_used = True
        if self._descriptor >= 0:
            return self._descriptor
        with self._disk._lock:
            return self._disk._reopen(self)

    def append(self, data: Buffer) -> None:
        size = self.size
        length = len(data)
        try:
            written = os.write(self.fileno(), data)
            if written != length:
                written += self._write_rest(memoryview(data)[written:])
        except OSError as error:
            self._undo_append(size)
            _refuse(error, "write to", self.path)
        self.size = size + written

    def _write_rest(self, rest: memoryview) -> int:
        """Continue after a short write, which usually means that the disk is full and the next write says so."""
        total = 0
        while total < len(rest):
            total += os.write(self.fileno(), rest[total:])
        return total

    def _undo_append(self, size: int) -> None:
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise StorageError(f"cannot truncate {self.path} after a failed write: {error.strerror}") from error

    def read(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self.fileno(), size, position)
            while len(data) < size:
                more = os.pread(self.fileno(), size - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            _refuse(error, "read", self.path)

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            _refuse(error, "truncate", self.path)
        self.size = size

    def sync(self) -> None:
        descriptor = self._disk._pin(self)
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # Never a PassingStorageError even if the disk is full: what a failed sync covered may be lost for good.
            raise StorageError(f"cannot sync {self.path}: {error.strerror}") from error
        finally:
            self._disk._unpin(self)

    def is_cached(self, position: int, size: int) -> bool:
        if not _HAS_NOWAIT_READS:
            return True
        descriptor = self.fileno()
        probe = [bytearray(1)]
        end = position + size
        while position < end:
            try:
                os.preadv(descriptor, probe, position, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:  # not supported by the file system, so unknown
                return True
            position += _PROBE_STEP_BYTES
        return True

    def prefetch(self, position: int, size: int) -> bytes:
        descriptor = self._disk._pin(self)
        pieces = []
        try:
            end = position + size
            while position < end:
                data = os.pread(descriptor, end - position, position)
                if not data:
                    break
                pieces.append(data)
                position += len(data)
        except OSError as error:
            _refuse(error, "read", self.path)
        finally:
            self._disk._unpin(self)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def __del__(self) -> None:
        descriptor = self._descriptor
        if descriptor >= 0:
            self._descriptor = -1
            # Counted later, because this may run in any thread, even one that holds the lock.
            self._disk._closed.append(descriptor)
            os.close(descriptor)


class SystemDirectory:
    """One directory, whatever its current name; see the port."""

    __slots__ = ("_disk", "_name")

    def __init__(self, disk: SystemDisk, name: OpenName[SystemFile]) -> None:
        self._disk = disk
        self._name = name

    @property
    def path(self) -> str:
        return self._name.path

    @contextmanager
    def _opened(self, doing: str) -> Iterator[int]:
        """A descriptor to access names in it, whatever its own name becomes."""
        try:
            with self._disk._lock:
                if self._name.is_removed:
                    raise RemovedError(f"cannot {doing} {self.path}: it was removed")
                descriptor = os.open(self.path, _DIRECTORY_FLAGS)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            # Names are marked as removed before their files go, so this detects a removal during the call.
            if self._name.is_removed:
                raise RemovedError(f"cannot {doing} {self.path}: it was removed") from error
            _refuse(error, doing, self.path)

    def list(self) -> Sequence[str]:
        with self._opened("list") as descriptor:
            return sorted(os.listdir(descriptor))

    def replace_file(self, name: str, content: bytes, *, sync: bool = True) -> None:
        with self._opened(f"write {name} in") as descriptor:
            temporary = self._disk._claim_temporary(self._name, name)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                with open(os.open(temporary, flags, 0o666, dir_fd=descriptor), "wb") as file:
                    file.write(content)
                    file.flush()
                    if sync:
                        os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            except OSError:
                try:
                    os.unlink(temporary, dir_fd=descriptor)
                except OSError:
                    pass  # it does not exist, or the disk has failed: the first error explains why
                raise
            finally:
                self._disk._release_temporary(self._name, temporary)
            if sync:
                os.fsync(descriptor)

    def remove(self, name: str) -> None:
        with self._opened(f"remove {name} in") as descriptor:
            with self._disk._lock:
                self._disk._give_up_name(self._name.child(name))
            try:
                os.unlink(name, dir_fd=descriptor)
            except FileNotFoundError:
                pass

    def sync(self) -> None:
        with self._opened("sync directory") as descriptor:
            os.fsync(descriptor)


class SystemDisk:
    """The machine's file system."""

    def __init__(self, max_open_files: int = 512) -> None:
        self._max_open_files = max_open_files
        self._open_count = 0
        # Files with an open descriptor, roughly ordered by their last use.
        self._open: deque[weakref.ref[SystemFile]] = deque()
        #: Descriptors of unreferenced files that are closed but still counted.
        self._closed: deque[int] = deque()
        #: The name of every referenced file, with or without a descriptor.
        self._names: OpenNames[SystemFile] = OpenNames()
        self._directories: dict[str, int] = {}
        # Temporary files that are about to replace others, with their directories.
        self._replacements: set[tuple[OpenName[SystemFile], str]] = set()
        #: Held during renames and while reopening a file by name, but never while data is written or synced.
        self._lock = threading.Lock()
        self._loop_thread = threading.get_ident()
        self._threads = ThreadPoolExecutor(_OFFLOAD_THREADS, "tailrace-disk")

    # --- descriptors; callers hold the lock, except for the first

    def _open_descriptor(self, path: str, flags: int) -> int:
        """Open a file; if no descriptor is left, close idle ones first."""
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR_LEFT:
                raise
            with self._lock:
                if not self._close_in_need():
                    raise
        return os.open(path, flags, 0o644)

    def _close_in_need(self) -> bool:
        if threading.get_ident() != self._loop_thread:
            return False
        before = self._open_count
        for _ in range(_CLOSED_IN_NEED):
            self._close_one_idle(None)
        return self._open_count < before

    def _reopen(self, file: SystemFile) -> int:
        if file._descriptor < 0:
            try:
                try:
                    descriptor = os.open(file.path, _FILE_FLAGS)
                except OSError as error:
                    if error.errno not in _NO_DESCRIPTOR_LEFT or not self._close_in_need():
                        raise
                    descriptor = os.open(file.path, _FILE_FLAGS)
            except OSError as error:
                _refuse(error, "open", file.path)
            self._adopt(file, descriptor)
        return file._descriptor

    def _adopt(self, file: SystemFile, descriptor: int) -> None:
        while self._closed:
            self._closed.popleft()
            self._open_count -= 1
        file._descriptor = descriptor
        self._open_count += 1
        self._open.append(weakref.ref(file))
        if self._open_count > self._max_open_files and threading.get_ident() == self._loop_thread:
            self._close_one_idle(file)

    def _close_one_idle(self, newest: SystemFile | None) -> None:
        """Close the least recently used descriptor: the clock algorithm, two rounds at most."""
        for _ in range(2 * len(self._open)):
            reference = self._open.popleft()
            file = reference()
            if file is None or file._descriptor < 0:
                continue
            if file is newest or file._pins or file._name.is_removed or file._recently_used:
                file._recently_used = False
                self._open.append(reference)
                continue
            os.close(file._descriptor)
            file._descriptor = -1
            self._open_count -= 1
            return

    def _pin(self, file: SystemFile) -> int:
        file._recently_used = True
        with self._lock:
            descriptor = self._reopen(file)
            file._pins += 1
            return descriptor

    def _unpin(self, file: SystemFile) -> None:
        with self._lock:
            file._pins -= 1

    @contextmanager
    def _kept_open(self, name: OpenName[SystemFile] | None) -> Iterator[None]:
        """Keep files open whose name is being removed, since they could never be reopened."""
        kept = []
        try:
            for file in name.files_below() if name is not None else ():
                self._reopen(file)
                file._pins += 1
                kept.append(file)
            yield
        finally:
            for file in kept:
                file._pins -= 1

    def _give_up_name(self, name: OpenName[SystemFile] | None) -> None:
        with self._kept_open(name):
            if name is not None:
                name.remove()

    # --- the port

    def directory(self, path: str) -> SystemDirectory:
        if not os.path.isdir(path or "."):
            raise StorageError(f"cannot open directory {path}: no such directory")
        with self._lock:
            return SystemDirectory(self, self._names.make(path))

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        return SystemFile(self, path, create=create)

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            _refuse(error, "read", path)

    def replace_file(self, path: str, content: bytes, *, sync: bool = True) -> None:
        directory, _, name = path.rpartition("/")
        self.directory(directory or ("/" if path.startswith("/") else "")).replace_file(name, content, sync=sync)

    def _claim_temporary(self, directory: OpenName[SystemFile], name: str) -> str:
        """A temporary name that nothing else uses, not even a thread that is replacing the same file."""
        temporary, number = f"{name}.tmp", 1
        with self._lock:
            while (directory, temporary) in self._replacements:
                temporary, number = f"{name}.{number}.tmp", number + 1
            self._replacements.add((directory, temporary))
        return temporary

    def _release_temporary(self, directory: OpenName[SystemFile], temporary: str) -> None:
        with self._lock:
            self._replacements.discard((directory, temporary))

    def list(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            _refuse(error, "list", path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_directory(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            _refuse(error, "create directory", path)

    def remove(self, path: str) -> None:
        with self._lock:
            self._give_up_name(self._names.find(path))
        # Without the lock: freeing the space of a large file may take long.
        try:
            if os.path.isdir(path):
                _remove_tree(path)
            else:
                os.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _refuse(error, "remove", path)

    def rename(self, old: str, new: str) -> None:
        with self._lock, self._kept_open(self._names.find(new)):
            try:
                os.rename(old, new)
            except OSError as error:
                _refuse(error, "rename", old)
            self._names.rename(old, new)

    def sync_directory(self, path: str) -> None:
        self.directory(path).sync()

    def sync_all(self, path: str) -> bool:
        if _syncfs is None:
            return False
        descriptor = self._directories.get(path)
        if descriptor is None:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                _refuse(error, "sync all of", path)
            # Kept open: an open descriptor reports every write that has failed since its last sync.
            self._directories[path] = descriptor
            weakref.finalize(self, os.close, descriptor)
        if _syncfs(descriptor) != 0:
            raise StorageError(f"cannot sync the file system of {path}: {os.strerror(ctypes.get_errno())}")
        return True

    def volume(self, path: str) -> Volume:
        try:
            found = os.statvfs(path or ".")
        except OSError as error:
            _refuse(error, "measure the volume of", path)
        return Volume(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    async def offload(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
