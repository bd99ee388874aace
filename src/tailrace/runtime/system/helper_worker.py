"""The program of the helper process: receives calls over a socket, runs each in a thread, and sends back results.

It runs as a script and imports nothing of the package before it receives the module path. Invariant: it never outlives
its broker. It does not know what the functions do.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

#: The number of a call, the length of its content, and the kind of content.
FRAME = ">QQB"
#: Calls, results and errors are pickled. Bytes are sent as they are, or as their length if they are in a memory file.
PICKLED, FAILED, BYTES, IN_FILE = range(4)
#: Means that a call has no memory file for its result.
NO_FILE = -1
SIZE = ">Q"

_FRAME = struct.Struct(FRAME)
_SIZE = struct.Struct(SIZE)
#: Smaller results are sent through the socket, because a memory file would not pay off.
_FILE_BYTES = 1 << 16
_NICENESS = 10
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the broker at the other end of a socket until it closes."""
    descriptor, broker_pid, only_when_idle = map(int, sys.argv[1:])
    _end_with(broker_pid)
    os.nice(_NICENESS)
    if only_when_idle:
        # Any process that wakes up preempts this one at once; a merely nice process would hold on until the next tick.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Ctrl-C and a service manager's stop signal reach the whole process group, but the broker decides when to stop.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    stream = connection.makefile("rb")
    _, path = _receive(stream)
    sys.path[:] = pickle.loads(path)
    answering = threading.Lock()
    while True:
        number, payload = _receive(stream)
        threading.Thread(target=_serve, args=(connection, answering, number, payload), daemon=True).start()


def _end_with(broker_pid: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != broker_pid:  # the broker ended before the request to the kernel
        os._exit(0)


def _receive(stream: BinaryIO) -> tuple[int, bytes]:
    head = stream.read(_FRAME.size)
    if len(head) == _FRAME.size:
        number, size, _ = _FRAME.unpack(head)
        payload = stream.read(size)
        if len(payload) == size:
            return number, payload
    os._exit(0)


def _serve(connection: socket.socket, answering: threading.Lock, number: int, payload: bytes) -> None:
    kind = PICKLED
    try:
        descriptor, *call = pickle.loads(payload)
        answer = _call(*call)
        if not isinstance(answer, bytes):
            answer = pickle.dumps(answer)
        elif descriptor != NO_FILE and len(answer) >= _FILE_BYTES and _write(descriptor, answer):
            kind, answer = IN_FILE, _SIZE.pack(len(answer))
        else:
            kind = BYTES
    except Exception as error:  # noqa: BLE001  every error is passed on to the caller
        kind, answer = FAILED, pickle.dumps(_portable(error))
    with answering:
        try:
            connection.sendall(_FRAME.pack(number, len(answer), kind))
            connection.sendall(answer)
        except OSError:
            os._exit(0)


def _write(descriptor: int, answer: bytes) -> bool:
    """Write a result to a memory file; False if there is not enough memory."""
    try:
        # Truncated, not overwritten: its old content may still be on its way to a client, from the same pages.
        os.ftruncate(descriptor, 0)
        rest, position = memoryview(answer), 0
        while rest:
            written = os.pwrite(descriptor, rest, position)
            rest, position = rest[written:], position + written
    except OSError:
        return False
    return True


def _call(module: str, name: str, arguments: tuple[object, ...], on_disk: bool, rate: float | None) -> Any:
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    wanted: Callable[..., Any] = function
    if not on_disk:
        return wanted(*arguments)
    from tailrace.runtime.system.disk import SystemDisk
    from tailrace.runtime.system.paced_disk import PacedDisk

    return wanted(SystemDisk() if rate is None else PacedDisk(rate), *arguments)


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled, otherwise a HelperError with its message."""
    from tailrace.runtime.helper import HelperError

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  any constructor may fail
        return HelperError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
