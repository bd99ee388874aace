"""TCP on our own sockets: readiness comes from the event loop, everything else is our own system calls.

A read event receives into the receiver's buffer. Data is sent at once, gathered into as few calls as possible, and file
ranges with `sendfile`. Only data that the peer is too slow for waits until the socket is writable.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from tailrace.errors import StorageError
from tailrace.runtime.disk import FileRange
from tailrace.runtime.system.disk import SystemFile
from tailrace.runtime.system.memory_file import MemoryFile
from tailrace.runtime.transport import Part, Receiver, ReceiverFactory

logger = logging.getLogger("tailrace.network")

_OS_DEFAULT = -1
_NO_LIMIT = 1 << 31
#: Minimum interval between log lines about connections refused for lack of descriptors.
_REFUSALS_SAID_SECONDS = 10.0
#: How many buffers go into one gathered send; Linux takes 1024.
_GATHER = 512
#: How much one connection may send before others get their turn.
_SEND_TURN_BYTES = 4 << 20


class SocketTransport:
    """One connected, non-blocking socket."""

    __slots__ = (
        "_closing",
        "_descriptor",
        "_loop",
        "_meets_reset",
        "_on_closed",
        "_queue",
        "_reading",
        "_receiver",
        "_socket",
        "_writing",
        "peer",
        "unsent_bytes",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, on_closed: Callable[[], None] | None = None
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._queue: deque[memoryview | bytes | bytearray | FileRange] = deque()
        self._receiver: Receiver | None = None
        self._reading = False
        self._writing = False
        self._closing = False
        self._on_closed = on_closed
        # Whether data was sent since the last read, or soon will be: a send detects that the peer is gone.
        self._meets_reset = False
        self.unsent_bytes = 0
        try:
            host, port = sock.getpeername()[:2]
            self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        except OSError:
            self.peer = "disconnected peer"

    def attach(self, receiver: Receiver) -> None:
        """Set the receiver and start reading."""
        self._receiver = receiver
        self.resume_reading()

    def _on_readable(self) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        try:
            size = self._socket.recv_into(receiver.lend_buffer())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._disconnect(error)
            return
        if size:
            self._meets_reset = False
            receiver.received(size)
            if self._reading and not self._meets_reset:
                self._look_for_reset()
        else:
            self._disconnect(None)

    def _look_for_reset(self) -> None:
        """Detect an error behind the bytes just read: libuv stops polling when it sees one, and no send finds it."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._disconnect(error)

    def expect_send(self) -> None:
        self._meets_reset = True

    def send(self, parts: Sequence[Part]) -> None:
        if self._closing or self._receiver is None:
            return
        self._meets_reset = True
        if len(parts) == 1 and not self._queue and self._send_at_once(parts[0]):
            return
        for part in parts:
            size = len(part)
            if size:
                self._queue.append(part)
                self.unsent_bytes += size
        if not self._writing:
            self._flush()

    def _send_at_once(self, part: Part) -> bool:
        """The common case, one buffer and an empty queue; False if it must be queued after all."""
        if isinstance(part, FileRange):
            return False
        try:
            sent = self._socket.send(part)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._disconnect(error)
            return True
        if sent < len(part):
            self._queue.append(memoryview(part)[sent:])
            self.unsent_bytes += len(part) - sent
            self._flush()
        return True

    def _flush(self) -> None:
        queue = self._queue
        turn = _SEND_TURN_BYTES
        try:
            while queue and turn > 0:
                first = queue[0]
                if isinstance(first, FileRange):
                    sent = self._send_range(first)
                else:
                    sent = self._send_buffers()
                if sent == 0:
                    break
                turn -= sent
                self.unsent_bytes -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, StorageError) as error:
            self._disconnect(error)
            return
        if queue:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._descriptor, self._on_writable)
        elif self._closing:
            self._disconnect(None)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
            if self._receiver is not None:
                self._receiver.drained()

    def _send_range(self, part: FileRange) -> int:
        file = part.file
        assert isinstance(file, SystemFile | MemoryFile)
        sent = os.sendfile(self._descriptor, file.fileno(), part.position, part.size)
        if sent == 0:
            raise StorageError(f"{file.path} became shorter while it was being sent")
        if sent == part.size:
            self._queue.popleft()
        else:
            self._queue[0] = FileRange(file, part.position + sent, part.size - sent)
        return sent

    def _send_buffers(self) -> int:
        queue = self._queue
        buffers = []
        flags = 0
        for part in queue:
            if isinstance(part, FileRange):
                flags = socket.MSG_MORE  # the file's bytes follow: one segment, not two
                break
            buffers.append(part)
            if len(buffers) == _GATHER:
                break
        if len(buffers) == 1:
            sent = self._socket.send(buffers[0], flags)
        else:
            sent = self._socket.sendmsg(buffers, (), flags)
        left = sent
        while left:
            size = len(queue[0])
            if size <= left:
                queue.popleft()
                left -= size
            else:
                first = queue[0]
                assert not isinstance(first, FileRange)
                queue[0] = memoryview(first)[left:]
                left = 0
        return sent

    def _on_writable(self) -> None:
        self._flush()

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if not self._reading and not self._closing and self._receiver is not None:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._on_readable)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.pause_reading()
        if not self._queue:
            self._loop.call_soon(self._disconnect, None)

    def abort(self) -> None:
        self._closing = True
        self.pause_reading()
        self._queue.clear()
        self._loop.call_soon(self._disconnect, None)

    def _disconnect(self, reason: Exception | None) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        self._receiver = None
        self._closing = True
        self.pause_reading()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        self._queue.clear()
        self.unsent_bytes = 0
        self._socket.close()
        if self._on_closed is not None:
            self._on_closed()
        receiver.disconnected(reason)


class _Accepted:
    """The limit of open accepted connections over all listeners, because files need descriptors too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0
        self._refused = 0
        self._said_at = float("-inf")

    def take(self) -> bool:
        """Reserve a slot for a connection; False if there is none."""
        if self._open >= self._limit:
            return False
        self._open += 1
        return True

    def give(self) -> None:
        self._open -= 1

    def refused(self, now: float, peer: str, why: str) -> None:
        """Log refused connections, at most once per interval."""
        self._refused += 1
        if now - self._said_at >= _REFUSALS_SAID_SECONDS:
            logger.warning(
                "Refused %d connections, the last from %s: %s; raise the limit of open files (ulimit -n, LimitNOFILE)",
                self._refused,
                peer,
                why,
            )
            self._said_at, self._refused = now, 0


class SocketListener:
    """One listening socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        factory: ReceiverFactory,
        accepted: _Accepted,
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._factory = factory
        self._accepted = accepted
        # Freed when no descriptor is left, to accept and close a connection instead of leaving it in the backlog.
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.port: int = sock.getsockname()[1]
        loop.add_reader(sock.fileno(), self._on_acceptable)

    def _on_acceptable(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._refuse_one(error):
                    # Leave the connection in the backlog and retry later.
                    self._loop.remove_reader(self._socket.fileno())
                    self._loop.call_later(0.1, self._look_again)
                    return
                continue
            if not self._accepted.take():
                sock.close()
                self._accepted.refused(self._loop.time(), _name(address), "all descriptors for connections are taken")
                continue
            transport = SocketTransport(self._loop, sock, self._accepted.give)
            transport.attach(self._factory(transport))

    def _refuse_one(self, reason: OSError) -> bool:
        """Close one waiting connection with the help of the spare descriptor; False if that fails."""
        if self._spare < 0:
            return False
        os.close(self._spare)
        self._spare = -1
        try:
            sock, address = self._socket.accept()
            sock.close()
            self._accepted.refused(self._loop.time(), _name(address), str(reason.strerror))
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        return True

    def _look_again(self) -> None:
        if self._socket.fileno() >= 0:
            if self._spare < 0:
                try:
                    self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    pass  # the next connection is left in the backlog again
            self._loop.add_reader(self._socket.fileno(), self._on_acceptable)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            if self._spare >= 0:
                os.close(self._spare)
                self._spare = -1


class SystemNetwork:
    """TCP on this machine's interfaces; buffer sizes default to the operating system's."""

    def __init__(
        self,
        backlog: int = 1024,
        send_buffer_bytes: int = _OS_DEFAULT,
        receive_buffer_bytes: int = _OS_DEFAULT,
        max_accepted: int = _NO_LIMIT,
    ) -> None:
        self._backlog = backlog
        self._accepted = _Accepted(max_accepted)
        self._buffers = {socket.SO_SNDBUF: send_buffer_bytes, socket.SO_RCVBUF: receive_buffer_bytes}

    def _new_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        sock = socket.socket(family, kind, protocol)
        for option, size in self._buffers.items():
            if size != _OS_DEFAULT:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        return sock

    async def listen(self, host: str, port: int, factory: ReceiverFactory) -> SocketListener:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        sock = self._new_socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(self._backlog)
        except OSError:
            sock.close()
            raise
        return SocketListener(loop, sock, factory, self._accepted)

    async def connect(self, host: str, port: int, factory: ReceiverFactory) -> SocketTransport:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = addresses[0]
        sock = self._new_socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        transport = SocketTransport(loop, sock)
        transport.attach(factory(transport))
        return transport


def _name(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
