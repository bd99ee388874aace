"""Files of the real disk, with a bound on how many are open at once.

A file's descriptor is opened when it is needed and may be closed again, least recently used first, when there
are too many; a file that was removed keeps its descriptor as long as somebody holds it. Only the event loop's
thread closes descriptors of others; threads pin the ones they work on.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import errno
import os
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

from tailrace.errors import StorageError
from tailrace.runtime.disk import Buffer, DiskFullError, Volume

T = TypeVar("T")

_PROBE_STEP_BYTES = 128 * 1024
_OFFLOAD_THREADS = 4
#: Linux's; threads run while it does.
_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
_HAS_NOWAIT_READS = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")


def _refuse(error: OSError, doing: str, path: str) -> NoReturn:
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    raise kind(f"cannot {doing} {path}: {error.strerror}") from error


class SystemFile:
    """One file on disk; see the port for what each call promises."""

    __slots__ = ("__weakref__", "_descriptor", "_disk", "_pins", "_recently_used", "_removed", "path", "size")

    def __init__(self, disk: SystemDisk, path: str, *, create: bool) -> None:
        self._disk = disk
        self._descriptor = -1
        self._pins = 0
        self._removed = False
        self._recently_used = True
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        except OSError as error:
            _refuse(error, "open", path)
        self.size = os.fstat(descriptor).st_size
        disk._adopt(self, descriptor)
        with disk._lock:
            disk._files[id(self)] = self

    def fileno(self) -> int:
        """The descriptor, opened again if it was closed to save descriptors."""
        self._recently_used = True
        if self._descriptor >= 0:
            return self._descriptor
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            _refuse(error, "open", self.path)
        self._disk._adopt(self, descriptor)
        return descriptor

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
        """Go on after a short write, which on a disk mostly means that it is full and the next one says so."""
        total = 0
        while total < len(rest):
            total += os.write(self.fileno(), rest[total:])
        return total

    def _undo_append(self, size: int) -> None:
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise StorageError(f"cannot cut a failed write off {self.path}: {error.strerror}") from error

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
            # Never taken for a full disk, which could be tried again: what a failed sync covered may be gone.
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
            except OSError:  # a file system without it: nothing can be learnt
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
            self._disk._open_count -= 1
            os.close(descriptor)


class SystemDisk:
    """The machine's file system."""

    def __init__(self, max_open_files: int = 512) -> None:
        self._max_open_files = max_open_files
        self._open_count = 0
        # Files with an open descriptor, roughly in the order of their last use.
        self._open: deque[weakref.ref[SystemFile]] = deque()
        # Every file that somebody holds, with a descriptor or without.
        self._files: weakref.WeakValueDictionary[int, SystemFile] = weakref.WeakValueDictionary()
        self._directories: dict[str, int] = {}
        # Files that are being replaced, by the temporary files that are to take their places.
        self._replacements: set[str] = set()
        self._lock = threading.Lock()
        self._loop_thread = threading.get_ident()
        self._threads = ThreadPoolExecutor(_OFFLOAD_THREADS, "tailrace-disk")

    def _adopt(self, file: SystemFile, descriptor: int) -> None:
        with self._lock:
            if file._descriptor >= 0:  # another thread was faster
                os.close(descriptor)
                return
            file._descriptor = descriptor
            self._open_count += 1
            self._open.append(weakref.ref(file))
            if self._open_count > self._max_open_files and threading.get_ident() == self._loop_thread:
                self._close_one_idle(file)

    def _close_one_idle(self, newest: SystemFile) -> None:
        """Close the descriptor that was not used for longest: the clock algorithm, two rounds at most."""
        for _ in range(2 * len(self._open)):
            reference = self._open.popleft()
            file = reference()
            if file is None or file._descriptor < 0:
                continue
            if file is newest or file._pins or file._removed or file._recently_used:
                file._recently_used = False
                self._open.append(reference)
                continue
            os.close(file._descriptor)
            file._descriptor = -1
            self._open_count -= 1
            return

    def _pin(self, file: SystemFile) -> int:
        while True:
            file.fileno()
            with self._lock:
                if file._descriptor >= 0:
                    file._pins += 1
                    return file._descriptor

    def _unpin(self, file: SystemFile) -> None:
        with self._lock:
            file._pins -= 1

    def _files_under(self, path: str) -> builtins.list[SystemFile]:
        with self._lock:
            files = self._files.values()
            return [file for file in files if (file.path + "/").startswith(path + "/")]

    def _keep_open_under(self, path: str) -> None:
        """Before names go: a file without its name can never be opened again, so it keeps a descriptor."""
        for file in self._files_under(path):
            if not file._removed:
                file.fileno()
                file._removed = True

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
        temporary = self._claim_temporary(path)
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            try:
                os.unlink(temporary)
            except OSError:
                pass  # it was never made, or the disk is beyond tidying: the first error says why
            _refuse(error, "write", path)
        finally:
            with self._lock:
                self._replacements.discard(temporary)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def _claim_temporary(self, path: str) -> str:
        """A name beside a file that nobody else uses, also not a thread that replaces the same one at this moment."""
        temporary, number = f"{path}.tmp", 1
        with self._lock:
            while temporary in self._replacements:
                temporary, number = f"{path}.{number}.tmp", number + 1
            self._replacements.add(temporary)
        return temporary

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
        self._keep_open_under(path)
        try:
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _refuse(error, "remove", path)

    def rename(self, old: str, new: str) -> None:
        moved = self._files_under(old)
        self._keep_open_under(new)
        try:
            os.rename(old, new)
        except OSError as error:
            _refuse(error, "rename", old)
        for file in moved:
            file.path = new + file.path[len(old) :]

    def sync_directory(self, path: str) -> None:
        try:
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            _refuse(error, "sync directory", path)

    def sync_all(self, path: str) -> bool:
        if _syncfs is None:
            return False
        descriptor = self._directories.get(path)
        if descriptor is None:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                _refuse(error, "sync all of", path)
            # Kept: the system tells an open descriptor of every write that has failed since the last sync through it.
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
