"""A Python process that has already loaded PySpark; Spark's Python processes are forks of it.

Spark starts four kinds of workers, one after the other, before a source in Python returns its first row, and each would
import PySpark again. But first its driver asks Python for its version: then one process starts to load what all of them
need, and every later process is a fork of it. It ends with Spark, or after a while without requests.

A fork must equal a fresh start. So a requester sends its environment, folder, path and standard files, and is refused
if Python itself would have started differently or found another PySpark. Modules that start threads (numpy, pyarrow)
are not loaded: threads do not survive a fork. If anything goes wrong, the worker starts in the usual way.
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
#: The timeouts for a client that connects but sends nothing, and for a client that gets no response.
_REQUEST_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_WAITING_REQUESTS = 64
_LENGTH = struct.Struct(">i")
_STANDARD_FILES = (0, 1, 2)
#: Environment variables that are only read when Python starts or PySpark is imported, beside Python's own.
_READ_ONCE = ("LANG", "PYSPARK_ENABLE_NAMEDTUPLE_PATCH", "SPARK_TESTING")
#: Variables that Spark sets for its workers, if they are unset or always; it asks for the version without them.
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


# --- in the command that Spark starts


def prepare() -> None:
    """Start to load PySpark for the workers that our parent will want, unless another process does already."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(_address(parent))
            # From now on requests are queued, even if they are not handled at once.
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
    """Have a worker with these arguments forked, and wait until it ends; False if it must start in the usual way."""
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
    # Spark ends a worker by ending this process, or by closing the standard input, which both have.
    signal.signal(signal.SIGTERM, lambda *_: signal.pidfd_send_signal(ended, signal.SIGTERM))
    select.select([ended], [], [])
    return True


def _address(parent: int) -> str:
    """Return a socket name that is unique for one Python and one parent process."""
    with open(f"/proc/{parent}/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    return f"\0tailrace-spark-python-{os.getuid()}-{parent}-{started}-{zlib.crc32(sys.executable.encode())}"


def _is_ours(connection: socket.socket) -> bool:
    """True if the other side is a process of the same user: any user may take such a name."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


# --- in the process that is forked


class _Request:
    """A request of a connected client, with its standard files."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.files: list[int] = []
        self.asked: dict[str, Any] = {}

    def receive(self) -> None:
        """Wait until all of it has arrived; OSError or ValueError if it does not."""
        self.connection.settimeout(_REQUEST_SECONDS)
        if not _is_ours(self.connection):
            raise ValueError("a process of another user")
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
    """Load PySpark, and fork for every request, until the parent has ended or requests cease."""
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
    """Return the request for which this process was forked; None in the original process when it must end."""
    from importlib import import_module

    settings = _settings_of(os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import_module(_DAEMON)
    # The first workers do not need these modules: fork for them in between.
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
    """Fork, if the request allows it; return True in the fork. Otherwise the closed connection tells the requester."""
    import gc

    try:
        request.receive()
        fits = _settings_of(request.asked["environment"]) == settings and _finds_the_same(request.asked["path"])
        if not fits or len(os.listdir("/proc/self/task")) > 1:
            return False
        # Garbage collection must not copy pages that forks share.
        gc.freeze()
        return os.fork() == 0
    except (OSError, ValueError):
        return False


def _settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that is fixed once Python runs; Spark's own variables begin with PYTHON_."""
    return {
        name: value
        for name, value in environment.items()
        if name in _READ_ONCE
        or name.startswith("LC_")
        or (name.startswith("PYTHON") and not name.startswith(("PYTHON_", "PYTHONPATH")))
    }


def _finds_the_same(path: Sequence[str]) -> bool:
    """True if the loaded modules are those that would be found on a path of modules."""
    from importlib.machinery import PathFinder

    for name in ("pyspark", "tailrace"):
        found = PathFinder.find_spec(name, path)
        loaded = sys.modules[name].__spec__
        if found is None or loaded is None or found.origin != loaded.origin:
            return False
    return True


def _become(request: _Request) -> None:
    """Become the requested process, from its standard files to its end."""
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
        return  # The requester waited too long, and has started another one.
    request.close()
    pyspark.daemon.worker = quiet_when_unread(pyspark.daemon.worker)
    pyspark.daemon.manager()


def quiet_when_unread(worker: Callable[..., int]) -> Callable[..., int]:
    """Wrap a worker so that it ends without a traceback when Spark wants no more of its rows, as after a LIMIT.

    Failures in a task are sent to Spark and never raised here; so if the pipe is broken, there is no one to send them
    to.
    """

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # as the daemon does after its traceback

    return run
