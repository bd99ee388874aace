"""One simulated connection: two ends, and a stream of bytes in each direction.

Owns the order of bytes, the window of bytes in flight, and how a connection ends. Invariants: bytes arrive in order or
not at all; `disconnected` is called once per end as the last call, or never if the host of that end crashed. It must
not know which hosts can reach each other: it asks its `Wire`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from random import Random
from typing import Protocol

from tailrace.errors import StorageError
from tailrace.runtime.disk import FileRange
from tailrace.runtime.transport import Part, Receiver
from tailrace.testing.loop import SimulationError
from tailrace.testing.trace import Trace
from tailrace.testing.work import charge_bytes

_WINDOWS_BYTES = (2048, 16_384, 65_536, 262_144)
_LARGEST_PIECE_BYTES = 65_536
#: The delay after earlier bytes: with equal times, the heap of timers would decide the order.
_TICK_SECONDS = 1e-6


class Wire(Protocol):
    """What a connection needs from its network."""

    loop: asyncio.AbstractEventLoop
    random: Random
    trace: Trace
    retransmission_timeout_seconds: float
    #: The context of the network's own actions, whichever process caused them.
    context: Context

    def latency(self, source: str, target: str) -> float:
        """Return how long the next piece takes between two hosts."""
        ...

    def passes(self, source: str, target: str, opener: str) -> bool:
        """True if what one host sends now reaches another, on a connection that one of them opened."""
        ...

    def context_of(self, host: str) -> Context:
        """Return the context of a host's process."""
        ...


class _End:
    """What follows the last byte: an orderly end, or a reset."""

    def __init__(self, error: OSError | None) -> None:
        self.error = error


class Stream:
    """One direction of a connection: the bytes in flight from one end to the other."""

    def __init__(self, wire: Wire, source: SimTransport, target: SimTransport, opener: str) -> None:
        self.source = source
        self.target = target
        self._opener = opener
        self._wire = wire
        self._window_bytes = wire.random.choice(_WINDOWS_BYTES)
        self._on_way: deque[tuple[float, bytes | _End]] = deque()
        self._unacknowledged_bytes = 0
        self._unheard_bytes = 0
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._give_up: asyncio.TimerHandle | None = None

    @property
    def room(self) -> int:
        """The bytes that may be sent before the target has read some."""
        return self._window_bytes - self._unacknowledged_bytes

    @property
    def worth_sending_bytes(self) -> int:
        """The room to wait for: continuing after every few bytes would make ever smaller pieces."""
        return self._window_bytes // 2

    def hold_until(self, when: float) -> None:
        """Let nothing arrive before the connection is open."""
        self._not_before = when

    def put(self, payload: bytes | _End) -> None:
        """Send something after everything sent before."""
        if isinstance(payload, bytes):
            self._unacknowledged_bytes += len(payload)
        due = max(self._wire.loop.time() + self._latency(), self._not_before + _TICK_SECONDS)
        self._not_before = due
        self._on_way.append((due, payload))
        if self._timer is None:
            self._arrive_at(due)

    def reset(self, error: OSError) -> None:
        """Send a reset; it is random how much of the data in flight still arrives."""
        kept = self._wire.random.randint(0, len(self._on_way))
        while len(self._on_way) > kept:
            self._on_way.pop()
        self.put(_End(error))

    def stop(self) -> None:
        """Drop all data in flight: the source knows, or is gone."""
        self._on_way.clear()
        for timer in (self._timer, self._give_up):
            if timer is not None:
                timer.cancel()
        self._timer = self._give_up = None

    def acknowledge(self, size: int) -> None:
        """Note bytes that the target has read; the source learns it when the way back is open."""
        self._unheard_bytes += size
        self.retry()

    def retry(self) -> None:
        """Continue a stream that a cut had stopped."""
        if self._unheard_bytes and self._wire.passes(self.target.host, self.source.host, self._opener):
            self._unacknowledged_bytes -= self._unheard_bytes
            self._unheard_bytes = 0
            self._calm()
            self._wire.loop.call_soon(self.source._pump, context=self.source.context)
        elif self._unheard_bytes:
            self._worry()
        if self._on_way and self._timer is None:
            self._arrive_at(max(self._on_way[0][0], self._wire.loop.time() + self._latency()))

    def _latency(self) -> float:
        return self._wire.latency(self.source.host, self.target.host)

    def _arrive_at(self, due: float) -> None:
        self._timer = self._wire.loop.call_at(due, self._arrive, context=self._wire.context)

    def _arrive(self) -> None:
        self._timer = None
        if not self._on_way:
            return
        if not self._wire.passes(self.source.host, self.target.host, self._opener):
            self._worry()
            return
        self._calm()
        _, payload = self._on_way.popleft()
        if isinstance(payload, _End):
            self.target._ended(payload.error)
        else:
            self.target._arrived(payload)
        if self._on_way and self._timer is None:
            self._arrive_at(self._on_way[0][0])

    def _worry(self) -> None:
        """Give up after a while without any answer from the other host."""
        if self._give_up is None:
            self._give_up = self._wire.loop.call_later(
                self._wire.retransmission_timeout_seconds, self._gave_up, context=self._wire.context
            )

    def _calm(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _gave_up(self) -> None:
        self._give_up = None
        self.stop()
        self.source._lost(TimeoutError(f"{self.source.peer} answers no more"))


class SimTransport:
    """One end of a simulated connection; the port says what each call promises."""

    outgoing: Stream
    incoming: Stream

    def __init__(self, wire: Wire, host: str, local: str, peer: str) -> None:
        self.host = host
        self.local = local
        self.peer = peer
        self.unsent_bytes = 0
        self.is_open = True
        #: The process of this end gets all calls here, so a stopped one gets none.
        self.context = wire.context_of(host)
        self._wire = wire
        self._receiver: Receiver | None = None
        self._queue: deque[Part] = deque()
        self._inbox = bytearray()
        self._paused = False
        self._closing = False
        self._at_end = False
        self._reading: asyncio.Handle | None = None
        self._writing_later = False
        self._owes_drained = False

    # The port.

    def send(self, parts: Sequence[Part]) -> None:
        if not self.is_open or self._closing:
            return
        for part in parts:
            if len(part):
                # A buffer is not copied: a change that comes too early shows in what is received.
                self._queue.append(part if isinstance(part, FileRange) else memoryview(part).cast("B"))
                self.unsent_bytes += len(part)
        if not self._writing_later:
            self._pump()
        if self._queue:
            self._owes_drained = True

    def expect_send(self) -> None:
        """Do nothing: a lost peer is noticed anyway."""

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._read_soon()

    def close(self) -> None:
        if not self.is_open or self._closing:
            return
        self._closing = True
        self._drop_inbox()
        if not self._queue:
            self._close_now()

    def abort(self) -> None:
        if self.is_open:
            self.outgoing.reset(ConnectionResetError(f"reset by {self.local}"))
            self._lost(None)

    # Calls from the network.

    def attach(self, receiver: Receiver) -> None:
        """Give the end its receiver."""
        self._receiver = receiver
        self._read_soon()

    def vanish(self) -> None:
        """Drop the end without any calls: the host crashed."""
        self._receiver = None
        self.is_open = False
        self._drop()

    def break_off(self, error: OSError) -> None:
        """End the connection from outside, as a reset seen by this end."""
        self.outgoing.stop()
        self._lost(error)

    # Sending.

    def _pump(self) -> None:
        """Send as much as the window allows, in pieces."""
        random = self._wire.random
        if self.outgoing.room < min(self.outgoing.worth_sending_bytes, self.unsent_bytes):
            return
        while self._queue and self.is_open:
            size = min(self.outgoing.room, _LARGEST_PIECE_BYTES)
            if size <= 0:
                return
            try:
                piece = self._gather(_piece(size, random))
            except StorageError as error:
                self.outgoing.reset(ConnectionResetError(f"reset by {self.local}"))
                self._lost(error)
                # A real socket that fails in `send` may notify the receiver before `send` returns.
                if random.random() < 0.5:
                    self._tell_disconnected(error)
                return
            self.unsent_bytes -= len(piece)
            self.outgoing.put(piece)
            if self._queue and random.random() < 0.1:
                self._writing_later = True
                later = self._wire.latency(self.host, self.outgoing.target.host)
                self._wire.loop.call_later(later, self._write_on, context=self.context)
                return
        if self.is_open and not self._queue:
            if self._closing:
                self._close_now()
            elif self._owes_drained:
                self._wire.loop.call_soon(self._tell_drained, context=self.context)

    def _write_on(self) -> None:
        self._writing_later = False
        self._pump()

    def _gather(self, size: int) -> bytes:
        """Take bytes off the queue, from as many parts as necessary."""
        data = self._take(size)
        while self._queue and len(data) < size:
            data += self._take(size - len(data))
        return data

    def _take(self, size: int) -> bytes:
        """Take bytes off the first part of the queue."""
        part = self._queue[0]
        size = min(size, len(part))
        rest: Part
        if isinstance(part, FileRange):
            data = part.file.read(part.position, size)
            if len(data) < size:
                raise StorageError(f"{part.file.path} became shorter while it was being sent")
            rest = FileRange(part.file, part.position + size, part.size - size)
        else:
            data = bytes(part[:size])
            rest = part[size:]
        if len(rest):
            self._queue[0] = rest
        else:
            self._queue.popleft()
        return data

    def _tell_drained(self) -> None:
        if self._owes_drained and not self._queue and self._receiver is not None and not self._closing:
            self._owes_drained = False
            self._receiver.drained()

    # Receiving.

    def _arrived(self, data: bytes) -> None:
        if not self.is_open:
            # This end is gone: the other side gets a reset.
            self.outgoing.reset(ConnectionResetError(f"reset by {self.local}"))
        elif self._closing:
            self.incoming.acknowledge(len(data))
        else:
            self._inbox += data
            self._read_soon()

    def _ended(self, error: OSError | None) -> None:
        if not self.is_open:
            return
        if error is None:
            self._at_end = True
            self._read_soon()
        else:
            self.outgoing.stop()
            self._lost(error)

    def _read_soon(self) -> None:
        if self._reading is None and self.is_open and not self._paused and (self._inbox or self._at_end):
            self._reading = self._wire.loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        self._reading = None
        receiver = self._receiver
        if receiver is None or not self.is_open or self._paused or self._closing:
            return
        if self._inbox:
            buffer = receiver.lend_buffer()
            if not len(buffer):
                raise SimulationError(f"the receiver of {self.local} lends an empty buffer")
            size = min(len(buffer), _piece(len(self._inbox), self._wire.random))
            buffer[:size] = self._inbox[:size]
            del self._inbox[:size]
            self._wire.trace.add(f"{self._wire.loop.time():.6f} {self.peer} > {self.local} {size}")
            self.incoming.acknowledge(size)
            charge_bytes(size)
            receiver.received(size)
            self._read_soon()
        elif self._at_end:
            self.outgoing.stop()
            self._lost(None)

    def _drop(self) -> None:
        self._queue.clear()
        self.unsent_bytes = 0
        self._drop_inbox()

    def _drop_inbox(self) -> None:
        """Drop received bytes, so that the other side can continue and learns that this end is closed."""
        if self._inbox:
            self.incoming.acknowledge(len(self._inbox))
            self._inbox.clear()

    # Ending.

    def _close_now(self) -> None:
        self.outgoing.put(_End(None))
        self._lost(None)

    def _lost(self, reason: Exception | None) -> None:
        """End the connection for this end; its receiver is notified after the running code."""
        if not self.is_open:
            return
        self.is_open = False
        self._drop()
        self._wire.trace.add(f"{self._wire.loop.time():.6f} {self.local} lost {self.peer}: {reason}")
        self._wire.loop.call_soon(self._tell_disconnected, reason, context=self.context)

    def _tell_disconnected(self, reason: Exception | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.disconnected(reason)


def connect_ends(one: SimTransport, other: SimTransport, wire: Wire) -> None:
    """Connect two ends with two streams; the first end opens the connection."""
    one.outgoing = other.incoming = Stream(wire, one, other, one.host)
    other.outgoing = one.incoming = Stream(wire, other, one, one.host)


def _piece(limit: int, random: Random) -> int:
    """Return how many bytes one call moves: mostly all, sometimes any number, now and then very few."""
    chance = random.random()
    if chance < 0.6:
        return limit
    return random.randint(1, limit if chance < 0.9 else min(limit, 16))
