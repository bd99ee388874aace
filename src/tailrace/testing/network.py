"""The simulated network: hosts by name, connections between them, and everything that can go wrong, by a seed.

Owns which host reaches which, the listeners, and all open connections in the order of their creation. Invariants: the
same seed and the same calls deliver the same bytes at the same virtual times; data in flight continues whatever happens
to the process that sent it, and waits for a stopped one. It must not know what bytes mean.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable
from contextvars import Context
from random import Random

from tailrace.runtime.transport import ReceiverFactory
from tailrace.testing.connection import SimTransport, connect_ends
from tailrace.testing.process import Process
from tailrace.testing.trace import Trace

_OWN_NAMES = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
_FIRST_FREE_PORT = 49_152
_FIRST_CONNECT_RETRY_SECONDS = 1.0


class SimListener:
    """A bound port of a simulated host."""

    def __init__(self, host: SimHost, port: int, factory: ReceiverFactory) -> None:
        self.port = port
        self.factory = factory
        self._host = host

    def close(self) -> None:
        """Accept no more connections."""
        if self._host.listeners.get(self.port) is self:
            del self._host.listeners[self.port]


class SimHost:
    """The network port of one host."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.name = name
        self.listeners: dict[int, SimListener] = {}
        self.is_up = True
        #: The process that owns these connections, if any.
        self.process: Process | None = None
        self.connecting: dict[int, asyncio.Future[SimTransport]] = {}
        self._network = network
        self._next_port = _FIRST_FREE_PORT

    async def listen(self, host: str, port: int, factory: ReceiverFactory) -> SimListener:
        if host not in _OWN_NAMES and host != self.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self.name}")
        if not self.is_up:
            raise OSError(errno.ENETDOWN, f"{self.name} is down")
        port = port or self.free_port()
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self.name} is in use")
        listener = self.listeners[port] = SimListener(self, port, factory)
        return listener

    async def connect(self, host: str, port: int, factory: ReceiverFactory) -> SimTransport:
        target = self if host in _OWN_NAMES else self._network.hosts.get(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"there is no host {host}")
        if not self.is_up:
            raise OSError(errno.ENETDOWN, f"{self.name} is down")
        attempt = _Attempt(self._network, self, target, port, factory)
        self.connecting[id(attempt)] = attempt.outcome
        try:
            return await attempt.outcome
        finally:
            del self.connecting[id(attempt)]
            attempt.abandon()

    def free_port(self) -> int:
        """Return an unused port of this host."""
        self._next_port += 1
        return self._next_port


class _Attempt:
    """One attempt to open a connection."""

    def __init__(
        self, network: SimNetwork, source: SimHost, target: SimHost, port: int, factory: ReceiverFactory
    ) -> None:
        self.outcome: asyncio.Future[SimTransport] = network.loop.create_future()
        self._network = network
        self._source = source
        self._target = target
        self._port = port
        self._factory = factory
        self._retry_seconds = _FIRST_CONNECT_RETRY_SECONDS
        self._half_open: SimTransport | None = None
        loop = network.loop
        self._give_up = loop.call_later(
            network.connect_timeout_seconds, self._fail, self._timeout(), context=network.context
        )
        self._later(self._latency(), self._knock)

    def _later(self, seconds: float, step: Callable[[], None]) -> None:
        self._network.loop.call_later(seconds, step, context=self._network.context)

    def _latency(self) -> float:
        return self._network.latency(self._source.name, self._target.name)

    def _timeout(self) -> OSError:
        return TimeoutError(errno.ETIMEDOUT, f"{self._target.name}:{self._port} does not answer")

    def _knock(self) -> None:
        """Deliver the request to connect; if it is lost, send it again later."""
        network, source, target = self._network, self._source, self._target
        if self.outcome.done():
            return
        reaches = network.passes(source.name, target.name, source.name)
        if not (reaches and network.passes(target.name, source.name, source.name)):
            self._later(self._retry_seconds, self._knock)
            self._retry_seconds *= 2
            return
        answered = network.loop.time() + self._latency()
        listener = target.listeners.get(self._port)
        if listener is None:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"{target.name}:{self._port} refuses")
            network.loop.call_at(answered, self._fail, refused, context=network.context)
            return
        here, there = f"{source.name}:{source.free_port()}", f"{target.name}:{self._port}"
        near = SimTransport(network, source.name, here, there)
        far = SimTransport(network, target.name, there, here)
        connect_ends(near, far, network)
        far.outgoing.hold_until(answered)
        network.open(near, far)
        self._half_open = near
        network.loop.call_at(answered, self._open, context=network.context)
        if target.process is None:
            far.attach(listener.factory(far))
        else:
            # The kernel has accepted it; the process learns of it when it runs.
            network.loop.call_soon(_accept, listener, far, context=far.context)

    def _open(self) -> None:
        """Deliver the answer; if it is lost, send it again later."""
        near = self._half_open
        if self.outcome.done() or near is None:
            return
        if not near.is_open:
            self._fail(ConnectionResetError(errno.ECONNRESET, f"reset by {near.peer}"))
            return
        if not self._network.passes(self._target.name, self._source.name, self._source.name):
            self._later(self._retry_seconds, self._open)
            self._retry_seconds *= 2
            return
        self._half_open = None
        near.attach(self._factory(near))
        self.outcome.set_result(near)

    def _fail(self, error: OSError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def abandon(self) -> None:
        """End the attempt, whose caller is gone or served: reset what is half open."""
        self._give_up.cancel()
        if self._half_open is not None:
            self._half_open.abort()


def _accept(listener: SimListener, end: SimTransport) -> None:
    if end.is_open:
        end.attach(listener.factory(end))


class SimNetwork:
    """All hosts and the connections between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        *,
        latency_seconds: tuple[float, float] = (0.0001, 0.003),
        connect_timeout_seconds: float = 30.0,
        retransmission_timeout_seconds: float = 120.0,
    ) -> None:
        self.loop = loop
        self.random = random
        self.trace = Trace()
        self.hosts: dict[str, SimHost] = {}
        self.latency_seconds = latency_seconds
        self.connect_timeout_seconds = connect_timeout_seconds
        self.retransmission_timeout_seconds = retransmission_timeout_seconds
        #: The factor by which connections of some hosts are slower.
        self.slowness: dict[str, float] = {}
        self.context = contextvars.copy_context()
        self._cuts: dict[tuple[str, str], None] = {}
        self._stalled: dict[str, None] = {}
        self._ends: dict[int, SimTransport] = {}

    def host(self, name: str) -> SimHost:
        """Return the network port of a host, creating it if necessary."""
        if name not in self.hosts:
            self.hosts[name] = SimHost(self, name)
        return self.hosts[name]

    def connections(self, name: str) -> list[SimTransport]:
        """Return the open ends of a host, oldest first."""
        return [end for end in self._ends.values() if end.is_open and end.host == name]

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Lose everything that one host sends to another, and back unless the cut is one way."""
        self.trace.add(f"{self.loop.time():.6f} cut {one} {'>' if one_way else '-'} {other}")
        self._cuts[one, other] = None
        if not one_way:
            self._cuts[other, one] = None

    def isolate(self, name: str) -> None:
        """Cut a host off from all others."""
        for other in self.hosts:
            if other != name:
                self.cut(name, other)

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Heal the cuts between two hosts, all those of one, or all."""
        self.trace.add(f"{self.loop.time():.6f} heal {one} {other}")
        wanted = [name for name in (one, other) if name is not None]
        self._cuts = {pair: None for pair in self._cuts if not all(name in pair for name in wanted)}
        self._retry_streams()

    def stall(self, name: str) -> None:
        """Let nothing pass on connections that a host has opened, as if the code that uses them hung."""
        self.trace.add(f"{self.loop.time():.6f} stall {name}")
        self._stalled[name] = None

    def unstall(self, name: str) -> None:
        """Let a host's own connections continue."""
        self.trace.add(f"{self.loop.time():.6f} unstall {name}")
        self._stalled.pop(name, None)
        self._retry_streams()

    def reset(self, one: str, other: str) -> int:
        """Reset every connection between two hosts, on both sides; return how many ends were reset."""
        self.trace.add(f"{self.loop.time():.6f} reset {one} {other}")
        broken = 0
        for end in self._all_ends():
            far = end.outgoing.target
            if end.is_open and (end.host, far.host) in ((one, other), (other, one)):
                end.break_off(ConnectionResetError(errno.ECONNRESET, f"reset between {one} and {other}"))
                broken += 1
        return broken

    def crash(self, name: str, *, silently: bool | None = None) -> None:
        """End everything that a host has open, without notifying it; with `silently`, the machine itself is gone too.

        Otherwise its kernel is still there: peers see a reset and new connections are refused. If it is None, the seed
        decides. A silent host answers nothing until `restart`.
        """
        host = self.host(name)
        if silently is None:
            silently = self.random.random() < 0.5
        self.trace.add(f"{self.loop.time():.6f} crash {name} {'silently' if silently else ''}")
        host.is_up = not silently
        host.listeners.clear()
        for outcome in list(host.connecting.values()):
            outcome.cancel()
        for end in self._all_ends():
            if end.host != name:
                continue
            if silently or not end.is_open:
                end.outgoing.stop()
            else:
                end.outgoing.reset(ConnectionResetError(errno.ECONNRESET, f"reset by {end.local}"))
            end.vanish()

    def restart(self, name: str) -> None:
        """Bring a crashed host back; it answers data on old connections with a reset."""
        self.trace.add(f"{self.loop.time():.6f} restart {name}")
        self.host(name).is_up = True
        self._retry_streams()

    # Calls from connections.

    def latency(self, source: str, target: str) -> float:
        """Return how long the next piece takes; now and then much longer than usual."""
        usual = self.random.uniform(*self.latency_seconds)
        if self.slowness:
            usual *= max(self.slowness.get(source, 1.0), self.slowness.get(target, 1.0))
        return usual * 20 if self.random.random() < 0.01 else usual

    def passes(self, source: str, target: str, opener: str) -> bool:
        """True if what one host sends now reaches another, on a connection that one of them opened."""
        if (source, target) in self._cuts or opener in self._stalled:
            return False
        return self.hosts[source].is_up and self.hosts[target].is_up

    def context_of(self, host: str) -> Context:
        """Return the context of a host's process; that of the network itself if it has none."""
        process = self.hosts[host].process
        return self.context if process is None else process.context

    def open(self, near: SimTransport, far: SimTransport) -> None:
        """Register a new connection."""
        self.trace.add(f"{self.loop.time():.6f} {near.local} connects to {near.peer}")
        self._ends = {key: end for key, end in self._ends.items() if end.is_open or end.outgoing.target.is_open}
        for end in (near, far):
            self._ends[id(end)] = end

    def _all_ends(self) -> list[SimTransport]:
        return list(self._ends.values())

    def _retry_streams(self) -> None:
        for end in self._all_ends():
            end.outgoing.retry()
