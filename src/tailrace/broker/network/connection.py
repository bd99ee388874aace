"""One client connection: cuts frames from the received bytes, and sends responses in order.

Frames are parsed in the receive buffer. A request's buffer is only valid until its handler returns, so handlers that
wait keep nothing of it. All responses of one read event go out in one send. A client that does not read its responses,
or has too many open requests, is not read from until it catches up. The bytes that a connection holds count against
memory that all connections share; a request that finds none there waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tailrace.broker.monitoring.counters import VersionCounter
from tailrace.broker.network.buffers import BufferPool
from tailrace.broker.network.request_memory import FREE_BYTES, RequestMemory
from tailrace.broker.services import RequestContext
from tailrace.cluster.broker_proof import Challenge
from tailrace.errors import WireError
from tailrace.runtime.clock import Clock
from tailrace.runtime.disk import FileRange
from tailrace.runtime.outcome import Outcome
from tailrace.runtime.transport import Part, Transport
from tailrace.security.principals import ANONYMOUS, Principal

logger = logging.getLogger("tailrace.broker")

_unpack_length = struct.Struct(">i").unpack_from
_LENGTH_BYTES = 4
#: A request has at least an API key, a version and a correlation id.
_MIN_FRAME_BYTES = 8
_MIN_READ_BYTES = _LENGTH_BYTES + _MIN_FRAME_BYTES
_MAX_OPEN_REQUESTS = 64
_MAX_OPEN_BYTES = 32 << 20
_MAX_UNSENT_BYTES = 8 << 20
#: The number of small requests of one read to answer before other connections run.
_MAX_FRAMES_PER_TURN = 256
#: A frame that arrives in pieces gets a new buffer of at most this size before its bytes arrive.
_FIRST_BUFFER_BYTES = 64 * 1024
#: The responses of one read are sent together, up to this size.
_SEND_BYTES = 256 * 1024
#: The memory that one part of a response uses beside its bytes.
_PART_BYTES = 200
_SMALL_BUFFER_BYTES = 4096


#: A response that is not ready yet.
Pending: TypeAlias = asyncio.Future[list[Part]] | Outcome[list[Part]]


class Answer(Protocol):
    """The router's function for a request: returns parts now or later, or None if no response is due."""

    def __call__(self, connection: Connection, frame: memoryview) -> list[Part] | Pending | None: ...


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
        "_is_starved",
        "_memory",
        "_on_closed",
        "_open",
        "_open_bytes",
        "_outgoing",
        "_outgoing_bytes",
        "_pool",
        "_principal",
        "_scratch",
        "_seen",
        "_seen_at",
        "_stalled",
        "_unsent_bytes",
        "answered",
        "challenge",
        "context",
        "last_active",
        "listener",
        "peer_broker",
        "peer_epoch",
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
        memory: RequestMemory,
    ) -> None:
        self.transport = transport
        self.listener = listener
        #: Of the last request; most requests of a client have the same version.
        self.context: RequestContext | None = None
        self._principal = ANONYMOUS
        #: The broker and epoch that the peer has proved to be, and the challenge that it was sent.
        self.peer_broker: int | None = None
        self.peer_epoch = -1
        self.challenge: Challenge | None = None
        #: When the last complete request arrived.
        self.last_active = clock.monotonic()
        #: The counters of the requests that were answered at once since then, to be updated together.
        self.answered: list[VersionCounter] = []
        self._clock = clock
        self._pool = pool
        self._memory = memory
        self._answer = answer
        self._scratch = scratch
        self._frame_limit = frame_limit
        self._on_closed = on_closed
        # The beginning of an incomplete frame, or frames held back while the client catches up.
        self._buffer: bytearray | None = None
        self._filled = 0
        # Requests without a response, responses that wait for earlier ones, and the bytes that each holds.
        self._open: deque[tuple[Pending | list[Part], int]] = deque()
        self._open_bytes = 0
        # Responses in memory that the client has not read.
        self._unsent_bytes = 0
        # Whether the rest of a request waits for memory.
        self._is_starved = False
        self._seen: tuple[int, int] = (0, 0)
        self._seen_at = self.last_active
        self._outgoing: list[Part] = []
        self._outgoing_bytes = 0
        self._holds_back = False
        self._stalled = False
        self._closed = False

    @property
    def principal(self) -> Principal:
        """The principal of the client."""
        return self._principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        self._principal = principal
        self.context = None  # contains the previous principal

    # --- receiving

    def lend_buffer(self) -> memoryview:
        if self._buffer is not None:
            return memoryview(self._buffer)[self._filled :]
        # The rest of a read must be kept, so read little at once while memory is short.
        return self._scratch[:FREE_BYTES] if self._memory.is_short else self._scratch

    def _make_room(self) -> bool:
        """Enlarge a full buffer; return False if there is no memory for it now.

        It grows by doubling, so that memory follows the bytes that were sent, not those that were announced.
        """
        buffer = self._buffer
        if buffer is None or self._filled < len(buffer):
            return True
        wanted = self._announced_bytes(buffer, self._filled)
        size = min(_rounded(max(wanted, self._filled + 1)), max(2 * len(buffer), _SMALL_BUFFER_BYTES))
        more = size - len(buffer)
        if size > FREE_BYTES and not self._memory.grants(self, more):
            self._is_starved = True
            self._memory.wait(self, more, max(more, wanted - self._filled))
            return False
        larger = bytearray(size)
        larger[: self._filled] = memoryview(buffer)[: self._filled]
        self._buffer = larger
        self._memory.hold(more)
        return True

    def memory_granted(self) -> None:
        """Continue a request: there is memory for more of it."""
        self._is_starved = False
        if not self._closed and self._make_room():
            self._stall_or_resume()

    def _announced_bytes(self, data: bytearray | memoryview, filled: int) -> int:
        if filled < _LENGTH_BYTES:
            return _SMALL_BUFFER_BYTES
        return _LENGTH_BYTES + max(0, min(int(_unpack_length(data, 0)[0]), self._frame_limit))

    def received(self, size: int) -> None:
        if self._buffer is None:
            data = self._scratch[:size]
            if (
                _MIN_READ_BYTES <= size <= self._frame_limit
                and _unpack_length(data)[0] == size - _LENGTH_BYTES
                and not self._open
                and not self._is_overloaded()
            ):
                self._answer_one(data[_LENGTH_BYTES:])
                return
        else:
            self._filled += size
            data = memoryview(self._buffer)[: self._filled]
            if self._filled < self._announced_bytes(data, self._filled):
                if not self._make_room():
                    self._stall_or_resume()
                return
        self._process(data)

    def _answer_one(self, frame: memoryview) -> None:
        """Do what `_process` does, for a read of exactly one whole frame while nothing waits, which most reads are."""
        self.last_active = self._clock.monotonic()
        try:
            answer = self._answer(self, frame)
        except WireError as error:
            self._refuse(error)
            return
        if self.answered:
            self.count_answered()
        if answer is None or self._closed:
            return
        if isinstance(answer, list):
            self._send(answer)
            if not self.transport.unsent_bytes:
                return
        else:
            if isinstance(answer, Outcome):
                self.transport.expect_send()
            self._put_open(answer, len(frame))
            answer.add_done_callback(self._answered)
        self._stall_or_resume()

    def _process(self, data: memoryview) -> None:
        """Answer every whole frame, keep the rest, and send all responses at once."""
        self.last_active = self._clock.monotonic()
        while True:
            try:
                used = self._answer_frames(data)
            except WireError as error:
                self._refuse(error)
                return
            self.count_answered()
            self._keep(data, used)
            self._flush()
            if self._buffer is None or not self._holds_back or self._closed or self._is_overloaded():
                break
            # Sending made room for the frames held back, and no event would follow.
            data = memoryview(self._buffer)[: self._filled]
        self._stall_or_resume()

    def _refuse(self, error: WireError) -> None:
        """Close the connection of a client that sends malformed bytes, after answering its earlier requests."""
        self.count_answered()
        peer = self.transport.peer
        logger.warning("closed the connection from %s: %s", peer, error, extra={"peer": peer, "repeats": "bad request"})
        self._flush()
        self.transport.close()

    def count_answered(self) -> None:
        """Count the requests that were answered at once: mostly all of one kind, and all with the same duration."""
        answered = self.answered
        if answered:
            seconds = self._clock.monotonic() - self.last_active
            first = answered[0]
            count = len(answered)
            if count == 1 or answered.count(first) == count:
                first.answered(count, seconds)
            else:
                for counter in answered:
                    counter.answered(1, seconds)
            answered.clear()

    def _answer_frames(self, data: memoryview) -> int:
        position = 0
        end = len(data)
        answered = 0
        self._holds_back = False
        while end - position >= _LENGTH_BYTES:
            (length,) = _unpack_length(data, position)
            if not _MIN_FRAME_BYTES <= length <= self._frame_limit:
                raise WireError(
                    f"request of {length} bytes; expected {_MIN_FRAME_BYTES} to {self._frame_limit} bytes "
                    "(socket.request.max.bytes). Does the client use TLS, or a protocol other than Kafka's?"
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
                    self._put_open(answer, _bytes_in_memory(answer))
                else:
                    self._put_out(answer)
                    if self._outgoing_bytes > _SEND_BYTES:
                        self._flush()
            else:
                self._put_open(answer, length)
                answer.add_done_callback(self._answered)
        return position

    def _take_next_turn(self) -> None:
        """Process the frames that were left so that other connections could run in between."""
        if self._buffer is not None and not self._closed and not self._stalled:
            self._process(memoryview(self._buffer)[: self._filled])

    def _keep(self, data: memoryview, used: int) -> None:
        """Move the bytes behind the answered frames into their own buffer, or into none."""
        rest = len(data) - used
        before = self._buffer
        if before is not None:
            if used == 0:
                self._make_room()
                return
            self._memory.hold(-len(before))
            self._memory.leave(self)
        if rest == 0:
            self._buffer = None
            self._filled = 0
        else:
            self._buffer = self._new_buffer(rest, self._announced_bytes(data[used:], rest))
            self._buffer[:rest] = data[used:]
            self._filled = rest
            self._memory.hold(len(self._buffer))
            self._make_room()
        if before is not None:
            self._pool.give(before)

    def _new_buffer(self, rest: int, announced: int) -> bytearray:
        """Return a buffer for the received bytes, and for some or all of the announced ones."""
        announced = max(rest, announced)
        size = _rounded(announced)
        if size <= FREE_BYTES:
            return bytearray(size)
        if self._memory.grants(self, size) and (spare := self._pool.take_spare(announced)) is not None:
            return spare
        size = min(size, max(_FIRST_BUFFER_BYTES, _rounded(2 * rest)))
        return bytearray(size if self._memory.grants(self, size) else max(rest, FREE_BYTES))

    # --- responses

    def _is_overloaded(self) -> bool:
        if self._open and (len(self._open) >= _MAX_OPEN_REQUESTS or self._open_bytes > _MAX_OPEN_BYTES):
            return True
        if self.transport.unsent_bytes + self._outgoing_bytes > _MAX_UNSENT_BYTES:
            return True
        return self._memory.is_short and self._open_bytes + self._unsent_bytes > FREE_BYTES

    def _put_open(self, answer: Pending | list[Part], size: int) -> None:
        self._open.append((answer, size))
        self._open_bytes += size
        self._memory.hold(size)

    def _put_out(self, answer: list[Part]) -> None:
        self._outgoing += answer
        for part in answer:
            self._outgoing_bytes += len(part)

    def _answered(self, future: Pending) -> None:
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        if not _ended_well(future):
            self.transport.abort()
            return
        if len(self._open) == 1 and self._open[0][0] is future and not self._outgoing:
            self._take_open(self._open.popleft()[1])
            self._send(future.result())
        else:
            self._answer_open(future)
        if self._stalled or self.transport.unsent_bytes:
            # In its own turn: the caller may be in the middle of another request.
            asyncio.get_running_loop().call_soon(self._stall_or_resume)

    def _answer_open(self, future: Pending) -> None:
        """Send all responses that wait for no earlier one; one of them is new."""
        while self._open:
            first, size = self._open[0]
            if isinstance(first, list):
                self._put_out(first)
            elif first.done() and (first is future or _ended_well(first)):
                self._put_out(first.result())
            else:
                break
            self._open.popleft()
            self._take_open(size)
        self._flush()

    def _take_open(self, size: int) -> None:
        self._open_bytes -= size
        self._memory.hold(-size)

    def _flush(self) -> None:
        if self._outgoing:
            outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
            self._send(outgoing)

    def _send(self, parts: list[Part]) -> None:
        transport = self.transport
        transport.send(parts)
        if transport.unsent_bytes:
            kept = _bytes_in_memory(parts)
            self._unsent_bytes += kept
            self._memory.hold(kept)

    def _stall_or_resume(self) -> None:
        if self._closed:
            return
        overloaded = self._is_starved or self._is_overloaded()
        if overloaded and not self._stalled:
            self._stalled = True
            self.transport.pause_reading()
        elif not overloaded and self._stalled:
            self._stalled = False
            self.transport.resume_reading()
            if self._buffer is not None:
                self._process(memoryview(self._buffer)[: self._filled])

    def drained(self) -> None:
        if self._unsent_bytes:
            self._memory.hold(-self._unsent_bytes)
            self._unsent_bytes = 0
        self._stall_or_resume()

    # --- the peer

    def proved(self, broker_id: int, epoch: int) -> None:
        """Note which broker the peer has proved to be; later requests carry that."""
        self.peer_broker, self.peer_epoch = broker_id, epoch
        self.context = None

    # --- the end

    @property
    def is_waiting(self) -> bool:
        """True if the client waits for a response, so that its silence does not count as idle."""
        return bool(self._open)

    @property
    def held_bytes(self) -> int:
        """The memory that requests and responses of this connection use."""
        return (0 if self._buffer is None else len(self._buffer)) + self._open_bytes + self._unsent_bytes

    def seconds_stuck(self) -> float:
        """Return for how long only the client could make progress but has not, as seen by successive calls."""
        now = self._clock.monotonic()
        seen = (self._filled, self.transport.unsent_bytes)
        is_up_to_client = (self._buffer is not None and not self._stalled) or self._unsent_bytes > 0
        if seen != self._seen or not is_up_to_client:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at

    def disconnected(self, reason: Exception | None) -> None:
        held = self.held_bytes
        self._closed = True
        self.context = None
        self._buffer = None
        self._filled = self._open_bytes = self._unsent_bytes = 0
        for answer, _ in self._open:
            if not isinstance(answer, list):
                answer.cancel()
        self._open.clear()
        self._outgoing.clear()
        self._memory.leave(self)
        if held:
            self._memory.hold(-held)
        if reason is not None:
            peer = self.transport.peer
            logger.debug("lost the connection from %s: %s", peer, reason, extra={"peer": peer})
        self._on_closed(self)


def _ended_well(answer: Pending) -> bool:
    return not answer.cancelled() and answer.exception() is None


def _bytes_in_memory(parts: list[Part]) -> int:
    """Return the memory that parts of a response use until they are sent; ranges of files use little."""
    return _PART_BYTES * len(parts) + sum([len(part) for part in parts if not isinstance(part, FileRange)])


def _rounded(size: int) -> int:
    """Round up to a power of two, so that buffers can be reused."""
    return 1 << (size - 1).bit_length()
