"""One client connection: cuts frames out of the bytes, has them answered, keeps the answers in order.

Bytes are parsed where they were received; a request's buffer is only valid until its handler returns, so
handlers that wait keep nothing of it. All answers that one read event produces go out in one send. A client that
does not read its answers, or has too many requests open, is not read from until it catches up.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tailrace.broker.buffers import BufferPool
from tailrace.broker.services import RequestContext
from tailrace.errors import WireError
from tailrace.runtime.clock import Clock
from tailrace.runtime.transport import Part, Transport

logger = logging.getLogger("tailrace.broker")

_unpack_length = struct.Struct(">i").unpack_from
_LENGTH_BYTES = 4
#: Less than API key, version and correlation id cannot be a request.
_MIN_FRAME_BYTES = 8
_MAX_OPEN_REQUESTS = 64
_MAX_UNSENT_BYTES = 8 << 20
#: So many small requests of one read are answered at once; then other connections have their turn.
_MAX_FRAMES_PER_TURN = 256
#: A frame that arrives in pieces gets a buffer of at most this size before its bytes really come.
_FIRST_BUFFER_BYTES = 1 << 20
_SMALL_BUFFER_BYTES = 4096


class Answer(Protocol):
    """What the router makes of a request: parts now, a future of them, or None where none is due."""

    def __call__(self, connection: Connection, frame: memoryview) -> list[Part] | asyncio.Future[list[Part]] | None: ...


class Connection:
    """The server's side of one connection."""

    __slots__ = (
        "_answer",
        "_buffer",
        "_clock",
        "_closed",
        "_filled",
        "_frame_limit",
        "_holds_back",
        "_on_closed",
        "_open",
        "_outgoing",
        "_outgoing_bytes",
        "_pool",
        "_scratch",
        "_stalled",
        "context",
        "last_active",
        "listener",
        "transport",
    )

    def __init__(
        self,
        transport: Transport,
        listener: str,
        answer: Answer,
        scratch: memoryview,
        frame_limit: int,
        on_closed: Callable[[Connection], None],
        clock: Clock,
        pool: BufferPool,
    ) -> None:
        self.transport = transport
        self.listener = listener
        #: Of the last request; most of them come in one version from one client.
        self.context: RequestContext | None = None
        #: When the last whole request came.
        self.last_active = clock.monotonic()
        self._clock = clock
        self._pool = pool
        self._answer = answer
        self._scratch = scratch
        self._frame_limit = frame_limit
        self._on_closed = on_closed
        # The beginning of a frame whose rest has not come, or frames held back while the client catches up.
        self._buffer: bytearray | None = None
        self._filled = 0
        self._open: deque[asyncio.Future[list[Part]] | list[Part]] = deque()
        self._outgoing: list[Part] = []
        self._outgoing_bytes = 0
        self._holds_back = False
        self._stalled = False
        self._closed = False

    # --- receiving

    def lend_buffer(self) -> memoryview:
        if self._buffer is None:
            return self._scratch
        if self._filled == len(self._buffer):
            self._grow()
        return memoryview(self._buffer)[self._filled :]

    def _grow(self) -> None:
        """Double the buffer, so that memory follows what was sent and not what was announced."""
        assert self._buffer is not None
        wanted = self._announced_bytes(self._buffer, self._filled)
        size = min(wanted, max(2 * len(self._buffer), _SMALL_BUFFER_BYTES))
        larger = bytearray(max(size, self._filled + _SMALL_BUFFER_BYTES if wanted <= self._filled else size))
        larger[: self._filled] = memoryview(self._buffer)[: self._filled]
        self._buffer = larger

    def _announced_bytes(self, data: bytearray | memoryview, filled: int) -> int:
        if filled < _LENGTH_BYTES:
            return _SMALL_BUFFER_BYTES
        return _LENGTH_BYTES + max(0, min(int(_unpack_length(data, 0)[0]), self._frame_limit))

    def received(self, size: int) -> None:
        if self._buffer is None:
            data = self._scratch[:size]
        else:
            self._filled += size
            data = memoryview(self._buffer)[: self._filled]
            if self._filled < self._announced_bytes(data, self._filled):
                return
        self._process(data)

    def _process(self, data: memoryview) -> None:
        """Answer every whole frame, keep what is left, and send all answers at once."""
        self.last_active = self._clock.monotonic()
        while True:
            try:
                used = self._answer_frames(data)
            except WireError as error:
                logger.warning("connection from %s closed: %s", self.transport.peer, error)
                self._flush()
                self.transport.close()
                return
            self._keep(data, used)
            self._flush()
            if self._buffer is None or not self._holds_back or self._closed or self._is_overloaded():
                break
            # Sending made room for the frames held back, and no event would come to say so.
            data = memoryview(self._buffer)[: self._filled]
        self._stall_or_resume()

    def _answer_frames(self, data: memoryview) -> int:
        position = 0
        end = len(data)
        answered = 0
        self._holds_back = False
        while end - position >= _LENGTH_BYTES:
            (length,) = _unpack_length(data, position)
            if not _MIN_FRAME_BYTES <= length <= self._frame_limit:
                raise WireError(
                    f"a request of {length} bytes; the least is {_MIN_FRAME_BYTES}, "
                    f"the most is socket.request.max.bytes={self._frame_limit}"
                )
            start = position + _LENGTH_BYTES
            if end - start < length:
                break
            if self._is_overloaded():
                self._holds_back = True
                break
            if answered == _MAX_FRAMES_PER_TURN:
                asyncio.get_running_loop().call_soon(self._take_next_turn)
                break
            answered += 1
            position = start + length
            answer = self._answer(self, data[start:position])
            if answer is None or self._closed:
                continue
            if isinstance(answer, list):
                if self._open:
                    self._open.append(answer)
                else:
                    self._put_out(answer)
            else:
                self._open.append(answer)
                answer.add_done_callback(self._answered)
        return position

    def _take_next_turn(self) -> None:
        """Go on with frames that were left so that others could be served in between."""
        if self._buffer is not None and not self._closed and not self._stalled:
            self._process(memoryview(self._buffer)[: self._filled])

    def _keep(self, data: memoryview, used: int) -> None:
        """Move what is left after the answered frames into a buffer of its own, or into none."""
        rest = len(data) - used
        before = self._buffer
        if rest == 0:
            self._buffer = None
            self._filled = 0
        else:
            announced = max(rest, self._announced_bytes(data[used:], rest))
            if self._pool.takes(announced):
                kept = self._pool.take(announced)
            else:
                kept = bytearray(max(rest, min(announced, max(_FIRST_BUFFER_BYTES, 2 * rest))))
            kept[:rest] = data[used:]
            self._buffer = kept
            self._filled = rest
        if before is not None:
            self._pool.give(before)

    # --- answering

    def _is_overloaded(self) -> bool:
        unsent_bytes = self.transport.unsent_bytes + self._outgoing_bytes
        return len(self._open) >= _MAX_OPEN_REQUESTS or unsent_bytes > _MAX_UNSENT_BYTES

    def _put_out(self, answer: list[Part]) -> None:
        self._outgoing += answer
        for part in answer:
            self._outgoing_bytes += len(part)

    def _answered(self, future: asyncio.Future[list[Part]]) -> None:
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        if future.cancelled() or future.exception() is not None:
            self.transport.abort()
            return
        while self._open:
            first = self._open[0]
            if isinstance(first, list):
                self._put_out(first)
            elif first.done() and not first.cancelled() and first.exception() is None:
                self._put_out(first.result())
            else:
                break
            self._open.popleft()
        self._flush()
        self._stall_or_resume()

    def _flush(self) -> None:
        if self._outgoing:
            outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
            self.transport.send(outgoing)

    def _stall_or_resume(self) -> None:
        if self._closed:
            return
        overloaded = self._is_overloaded()
        if overloaded and not self._stalled:
            self._stalled = True
            self.transport.pause_reading()
        elif not overloaded and self._stalled:
            self._stalled = False
            self.transport.resume_reading()
            if self._buffer is not None:
                self._process(memoryview(self._buffer)[: self._filled])

    def drained(self) -> None:
        self._stall_or_resume()

    # --- the end

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for an answer, so that its silence is no idleness."""
        return bool(self._open)

    def disconnected(self, reason: Exception | None) -> None:
        self._closed = True
        self._buffer = None
        for answer in self._open:
            if not isinstance(answer, list):
                answer.cancel()
        self._open.clear()
        self._outgoing.clear()
        if reason is not None:
            logger.debug("connection from %s lost: %s", self.transport.peer, reason)
        self._on_closed(self)
