"""A Python that has PySpark loaded already, of which Spark's Python processes are forks.

Spark starts four kinds of worker, one after the other, before a source in Python gives its first row, and each of them
would import PySpark anew. But first its driver asks Python for its version: then one process begins to load what all
of them need, and whichever comes after is a fork of that one. It ends with Spark, or when nobody has come for a while.

A fork has to be what a fresh start would have been. So whoever asks sends its environment, folder, path and standard
files, and is refused where Python itself would have started otherwise or found another PySpark. What starts threads
(numpy, pyarrow) is not loaded: threads do not survive a fork. Whatever goes wrong, the worker is started as ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_DAEMON = "pyspark.daemon"
_IDLE_SECONDS = 60.0
#: For who connects and then says nothing, and for who is not answered.
_REQUEST_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_WAITING_REQUESTS = 64
_LENGTH = struct.Struct(">i")
_STANDARD_FILES = (0, 1, 2)
#: Of the environment, what is looked at only when Python starts or PySpark is imported, beside Python's own variables.
_READ_ONCE = ("LANG", "PYSPARK_ENABLE_NAMEDTUPLE_PATCH", "SPARK_TESTING")
#: What Spark sets for its workers, unless it is set and in any case; the driver asks for the version without.
_SET_IF_ABSENT = {"PYTHONHASHSEED": "0"}
_SET_ALWAYS = {"PYTHONUNBUFFERED": "YES"}
#: What workers import, in the order in which they need it.
_MODULES = (
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark_tailrace",
    "pyspark.sql.worker.create_data_source",
    "tailrace.pipeline.source.options",
    "tailrace.pipeline.source.schema",
    "tailrace.pipeline.source.reader",
    "pyspark.worker",
)


# --- on the side of the command that Spark starts


def prepare() -> None:
    """Begin to load PySpark for the workers that our parent will want, unless somebody does that already."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(_address(parent))
            # From now on whoever asks is heard, if not at once.
            listener.listen(_WAITING_REQUESTS)
            listener.set_inheritable(True)
            program = f"from {__name__} import serve; serve({listener.fileno()}, {parent})"
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", program],
                {**_SET_IF_ABSENT, **os.environ, **_SET_ALWAYS},
                file_actions=[(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in _STANDARD_FILES],
                setsid=True,
            )
        except (OSError, NotImplementedError):
            return


def stand_for_fork(arguments: Sequence[str], path: Sequence[str]) -> bool:
    """Have a worker with these arguments forked, and stay until it ends; False where it has to be started as ever."""
    if list(arguments[:2]) != ["-m", _DAEMON]:
        return False
    asked = {"arguments": arguments[2:], "path": path, "folder": os.getcwd(), "environment": dict(os.environ)}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(_address(os.getppid()))
            if not _is_ours(connection):
                return False
            body = json.dumps(asked).encode()
            socket.send_fds(connection, [_LENGTH.pack(len(body))], _STANDARD_FILES)
            connection.sendall(body)
            (pid,) = _LENGTH.unpack(connection.recv(_LENGTH.size))
            ended = os.pidfd_open(pid)
    except (OSError, struct.error):
        return False
    # Spark ends a worker by ending us, or by closing the standard input, which both of us have.
    signal.signal(signal.SIGTERM, lambda *_: signal.pidfd_send_signal(ended, signal.SIGTERM))
    select.select([ended], [], [])
    return True


def _address(parent: int) -> str:
    """A name that goes with the process, of one Python for one parent."""
    with open(f"/proc/{parent}/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    return f"\0tailrace-spark-python-{os.getuid()}-{parent}-{started}-{zlib.crc32(sys.executable.encode())}"


def _is_ours(connection: socket.socket) -> bool:
    """Whether the other side is a process of the same user: anybody may take such a name."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


# --- on the side of what is forked


class _Request:
    """What somebody asks for who is connected, and the standard files that came with it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.files: list[int] = []
        self.asked: dict[str, Any] = {}

    def receive(self) -> None:
        """Wait until all of it is here; OSError or ValueError where that does not happen."""
        self.connection.settimeout(_REQUEST_SECONDS)
        if not _is_ours(self.connection):
            raise ValueError("somebody else")
        head, self.files, _, _ = socket.recv_fds(self.connection, _LENGTH.size, len(_STANDARD_FILES))
        if len(head) < _LENGTH.size or len(self.files) < len(_STANDARD_FILES):
            raise ValueError("a request without its length or files")
        with self.connection.makefile("rb") as stream:
            self.asked = json.loads(stream.read(*_LENGTH.unpack(head)))

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        self.connection.close()


def serve(listening: int, parent: int) -> None:
    """Load PySpark, and be forked for whoever asks, until the parent has ended or nobody asks any more."""
    from tailrace.pipeline.spark.worker_python import without_zip

    parent_ended = os.pidfd_open(parent)
    with socket.socket(fileno=listening) as listener:
        listener.set_inheritable(False)
        sys.path[:] = without_zip(sys.path)
        request = _forked_for(listener, parent_ended)
    os.close(parent_ended)
    if request is not None:
        _become(request)


def _forked_for(listener: socket.socket, parent_ended: int) -> _Request | None:
    """What this process is a fork for; None in the one that is forked, when it has to end."""
    from importlib import import_module

    settings = _settings_of(os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import_module(_DAEMON)
    # Nobody waits for what the first workers do not need: they are forked in between.
    not_loaded = list(_MODULES)
    while True:
        ready, _, _ = select.select([listener.fileno(), parent_ended], [], [], 0.0 if not_loaded else _IDLE_SECONDS)
        if listener.fileno() in ready:
            request = _Request(listener.accept()[0])
            if _is_forked(request, settings):
                return request
            request.close()
        elif not_loaded and not ready:
            import_module(not_loaded.pop(0))
        else:
            return None


def _is_forked(request: _Request, settings: Mapping[str, str]) -> bool:
    """Fork, if what is asked for can be one; True in the fork. The end of the connection tells who asked otherwise."""
    import gc

    try:
        request.receive()
        fits = _settings_of(request.asked["environment"]) == settings and _finds_the_same(request.asked["path"])
        if not fits or len(os.listdir("/proc/self/task")) > 1:
            return False
        # Pages that forks share are not to be copied because garbage is looked for in them.
        gc.freeze()
        return os.fork() == 0
    except (OSError, ValueError):
        return False


def _settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment cannot be changed once Python runs; variables of Spark's own begin with PYTHON_."""
    return {
        name: value
        for name, value in environment.items()
        if name in _READ_ONCE
        or name.startswith("LC_")
        or (name.startswith("PYTHON") and not name.startswith(("PYTHON_", "PYTHONPATH")))
    }


def _finds_the_same(path: Sequence[str]) -> bool:
    """Whether what is loaded is what would be found on a path of modules."""
    from importlib.machinery import PathFinder

    for name in ("pyspark", "tailrace"):
        found = PathFinder.find_spec(name, path)
        loaded = sys.modules[name].__spec__
        if found is None or loaded is None or found.origin != loaded.origin:
            return False
    return True


def _become(request: _Request) -> None:
    """Be the process that was asked for, from its standard files to its end."""
    import time

    import pyspark.daemon

    for number, file in zip(_STANDARD_FILES, request.files, strict=True):
        os.dup2(file, number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request.asked["environment"])
    time.tzset()
    os.chdir(request.asked["folder"])
    sys.path[:] = request.asked["path"]
    sys.argv = [pyspark.daemon.__file__, *request.asked["arguments"]]
    try:
        request.connection.sendall(_LENGTH.pack(os.getpid()))
    except OSError:
        return  # Whoever asked waited for long, and has started another.
    request.close()
    pyspark.daemon.worker = quiet_when_unread(pyspark.daemon.worker)
    pyspark.daemon.manager()


def quiet_when_unread(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker that ends without a traceback where Spark wants no more rows of it, as after a LIMIT.

    What fails in a task is told to Spark and never raised here; so if the pipe is broken, nobody is there to be told.
    """

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # as the daemon does behind its traceback

    return run
