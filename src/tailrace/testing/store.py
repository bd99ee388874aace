"""The simulated coordination store: one key space, a client for each broker, and everything between them that can fail.

Owns which host reaches the store, how long requests, responses and watches take, and what happens to them on the way: a
transaction that is applied but never answered, one that is not applied, one that is applied long after its sender gave
up, sessions that expire late, watches that are late or start over. Invariants: whatever happens, every client sees what
the port promises; no session ends before its holder's deadline; the same seed and the same calls give the same run.

Everything here happens outside the brokers: its timers run in their own context, and a paused host neither sends nor
receives anything until it is resumed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from tailrace.cluster.store import Check, Entry, Refused, Session, TooLarge, Unavailable, Write
from tailrace.runtime.clock import Clock
from tailrace.stores.memory import MemorySpace
from tailrace.stores.sessions import RENEWALS_PER_TTL, HeldSession
from tailrace.stores.transactions import refuse_impossible
from tailrace.stores.watching import Changed, DirectoryWatch, directory_of
from tailrace.testing.clock import SimClock
from tailrace.testing.trace import Trace

T = TypeVar("T")
S = TypeVar("S", bound="SimStore")

_ANSWERED = "answered"
REFUSED = "not applied and unavailable"
UNANSWERED = "applied but unavailable"
LATE = "applied after unavailable"
_DENIED = "refused for good"
_TOO_LARGE = "called too large"


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """How long things take, and how often they go wrong: probabilities for each call, or for each watched change."""

    latency_seconds: tuple[float, float] = (0.0005, 0.008)
    slow: float = 0.01
    slow_seconds: tuple[float, float] = (0.1, 2.0)
    #: The call is not applied, and its caller gets Unavailable.
    refused: float = 0.0
    #: The call is applied, but its caller gets Unavailable.
    unanswered: float = 0.0
    #: The caller gets Unavailable, and the call is applied some time later.
    late: float = 0.0
    late_seconds: tuple[float, float] = (0.05, 6.0)
    #: The call is not applied, and its caller gets Refused: the store is full, or does not know the client.
    denied: float = 0.0
    #: A change is not applied, and its caller gets TooLarge.
    too_large: float = 0.0
    #: A notification of a watch is later than usual, and so are those behind it.
    late_watch: float = 0.0
    late_watch_seconds: tuple[float, float] = (0.1, 5.0)
    #: After a cut, a watch starts over with all entries, and does not continue where it was.
    gap: float = 0.5
    #: How much longer than its time to live the store keeps a session.
    late_expiry_seconds: tuple[float, float] = (0.0, 0.5)
    #: How long a client waits for a response.
    timeout_seconds: float = 5.0


#: For tests that look for bugs.
NASTY = StoreFaults(
    slow=0.05,
    refused=0.02,
    unanswered=0.03,
    late=0.02,
    denied=0.01,
    too_large=0.01,
    late_watch=0.05,
    late_expiry_seconds=(0.0, 5.0),
)


class SimCoordination:
    """The store of a simulated cluster, and the connections to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random, faults: StoreFaults | None = None) -> None:
        self.loop = loop
        self.random = random
        self.clock: Clock = SimClock(loop)
        self.space = MemorySpace(self.clock)
        #: May change at any time, for later calls.
        self.faults = faults or StoreFaults()
        self.trace = Trace()
        #: The number of faults of each kind so far.
        self.injected: dict[str, int] = {}
        #: The store's timers run in this context, not in a broker's.
        self.context = contextvars.copy_context()
        self._clients: dict[str, list[SimStore]] = {}
        #: Hosts whose watches are late, and until when.
        self.late_watches: dict[str, float] = {}
        self._cut: dict[str, None] = {}
        self._paused: dict[str, None] = {}

    # --- calls from tests

    def store(self, name: str) -> SimStore:
        """Return a client for a process that starts on a host."""
        return self.adopt(SimStore(self, name))

    def adopt(self, client: S) -> S:
        """Make a client share the fate of its host."""
        living = [other for other in self._clients.get(client.name, []) if not other.is_abandoned]
        self._clients[client.name] = [*living, client]
        return client

    def cut(self, *names: str) -> None:
        """Lose everything between the store and some hosts, or all hosts, until it is healed."""
        for name in names or tuple(self._clients):
            self.note("cut", name)
            self._cut[name] = None

    def heal(self, *names: str) -> None:
        """Let some hosts, or all, reach the store again."""
        for name in names or tuple(self._cut):
            if name in self._cut:
                self.note("heal", name)
                del self._cut[name]
                for client in self._clients.get(name, []):
                    client.reconnect()

    def pause(self, name: str) -> None:
        """Stop a host's process: it renews no session, and notifications wait."""
        self.note("pause", name)
        self._paused[name] = None

    def resume(self, name: str, *, renews_at_once: bool = True) -> None:
        """Continue a paused process; if its timers stood still too, it renews its sessions later."""
        self.note("resume", name)
        self._paused.pop(name, None)
        for client in self._clients.get(name, []):
            client.wake(renews_at_once=renews_at_once)

    def crash(self, name: str, *, seen_at_once: bool | None = None) -> None:
        """End a host's process abruptly: its sessions expire, or end at once if the store notices.

        If `seen_at_once` is None, the seed decides. Requests in flight may still be applied.
        """
        if seen_at_once is None:
            seen_at_once = self.random.random() < 0.3
        self.note("crash", name)
        self._paused.pop(name, None)
        for client in self._clients.get(name, []):
            sessions = client.abandon()
            if seen_at_once and name not in self._cut:
                for session_id in sessions:
                    self.later(self.latency(), self.space.end_session, session_id)

    # --- calls from clients

    def is_cut(self, name: str) -> bool:
        return name in self._cut

    def is_paused(self, name: str) -> bool:
        return name in self._paused

    def latency(self) -> float:
        """Return how long the next message takes."""
        usual = self.random.uniform(*self.faults.latency_seconds)
        if self.random.random() < self.faults.slow:
            self.count("slow")
            return usual + self.random.uniform(*self.faults.slow_seconds)
        return usual

    def fate(self, *, is_change: bool) -> str:
        """Return the fate of the next call."""
        drawn = self.random.random()
        faults = self.faults
        if drawn < faults.refused:
            return REFUSED
        if is_change and drawn < faults.refused + faults.unanswered:
            return UNANSWERED
        if is_change and drawn < faults.refused + faults.unanswered + faults.late:
            return LATE
        # From the other end, so that these outcomes do not change which calls get the other faults.
        if 1 - drawn <= faults.denied:
            return _DENIED
        if is_change and 1 - drawn <= faults.denied + faults.too_large:
            return _TOO_LARGE
        return _ANSWERED

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Set a timer of the store's own."""
        return self.loop.call_later(seconds, callback, *args, context=self.context)

    def count(self, fault: str) -> None:
        self.injected[fault] = self.injected.get(fault, 0) + 1

    def note(self, event: str, name: str, details: object = "") -> None:
        self.trace.add(f"{self.loop.time():.6f} {event} {name} {details}")
        if event in ("cut", "pause", "crash"):
            self.count(event)


class SimSession(HeldSession):
    """A session as its holder sees it; renewals and their responses pass through the simulation."""

    def __init__(self, store: SimStore, session_id: int, ttl_ms: int, sent: float) -> None:
        super().__init__(store.clock, sent + ttl_ms / 1000)
        self.session_id = session_id
        self._store = store
        self._coordination = store.coordination
        self._ttl = ttl_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._renew_later()

    def _renew_later(self) -> None:
        self._timer = self._coordination.later(self._ttl / RENEWALS_PER_TTL, self.renew)

    def renew_soon(self) -> None:
        """Continue with a timer that stood still."""
        self.abandon()
        self._timer = self._coordination.later(
            self._coordination.random.uniform(0.0, self._ttl / RENEWALS_PER_TTL), self.renew
        )

    def renew(self) -> None:
        """Send a renewal; if the process is stopped, it is sent when it continues."""
        self.abandon()
        if self._coordination.is_paused(self._store.name) or self.is_lost:
            return
        self._coordination.later(self._coordination.latency(), self._arrive, self._store.clock.monotonic())
        self._renew_later()

    def _arrive(self, sent: float) -> None:
        if self._coordination.is_cut(self._store.name):
            return
        is_held = self._coordination.space.renew_session(self.session_id)
        self._coordination.later(self._coordination.latency(), self._answered, sent, is_held)

    def _answered(self, sent: float, is_held: bool) -> None:
        if self._coordination.is_cut(self._store.name) or self._store.is_abandoned:
            return
        if is_held:
            # A process that was stopped meanwhile uses the clock to find out whether this came in time.
            self.extend(sent + self._ttl)
        elif not self._coordination.is_paused(self._store.name):
            self.lose()

    def abandon(self) -> None:
        """Stop renewing it."""
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        if self.is_lost:
            return
        self.abandon()
        self.lose()
        await self._store.end_session(self)


class _Subscription:
    """The pending notifications of a watch: in order, and each not before its time."""

    def __init__(self, store: SimStore, watch: DirectoryWatch) -> None:
        self.watch = watch
        self._store = store
        self._coordination = store.coordination
        self._coming: deque[tuple[float, Sequence[Entry] | None, Changed]] = deque()
        self._is_known = False
        self._timer: asyncio.TimerHandle | None = None
        self._coordination.later(self._coordination.latency(), self._ask)

    def _ask(self) -> None:
        """Handle the request at the store, which first sends all entries."""
        if self._is_known or self._coordination.is_cut(self._store.name):
            return
        self._is_known = True
        self._add(self._coordination.space.list(self.watch.directory), {})

    def changed(self, changed: Changed) -> None:
        """Note a change of the store."""
        mine = {key: entry for key, entry in changed.items() if directory_of(key) == self.watch.directory}
        if self._is_known and mine:
            self._add(None, mine)

    def _add(self, everything: Sequence[Entry] | None, changed: Changed) -> None:
        coordination = self._coordination
        due = coordination.loop.time() + coordination.latency()
        is_late = coordination.random.random() < coordination.faults.late_watch
        if is_late or coordination.loop.time() < coordination.late_watches.get(self._store.name, 0.0):
            coordination.count("late watch")
            due += coordination.random.uniform(*coordination.faults.late_watch_seconds)
        self._coming.append((due, everything, changed))
        if len(self._coming) == 1:
            self.deliver()

    def deliver(self) -> None:
        """Deliver what is due, and return later for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        name, loop = self._store.name, self._coordination.loop
        if self._coordination.is_cut(name) or self._coordination.is_paused(name):
            return
        while self._coming and self._coming[0][0] <= loop.time():
            _, everything, changed = self._coming.popleft()
            if everything is not None:
                self.watch.begin(everything)
            self.watch.change(changed)
        if self._coming:
            self._timer = self._coordination.later(self._coming[0][0] - loop.time(), self.deliver)

    def reconnect(self) -> None:
        """Continue after a cut, or start over because something was missed."""
        if not self._is_known:
            self._coordination.later(self._coordination.latency(), self._ask)
        elif self._coordination.random.random() < self._coordination.faults.gap:
            self._coordination.count("watch started over")
            self._coming.clear()
            self._add(self._coordination.space.list(self.watch.directory), {})
        else:
            self.deliver()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._coming.clear()
        self.watch.end()


class SimStore:
    """One process's client of the simulated store."""

    def __init__(self, coordination: SimCoordination, name: str, clock: Clock | None = None) -> None:
        self.coordination = coordination
        self.name = name
        #: The clock with which the process measures its sessions.
        self.clock = clock or coordination.clock
        self.is_abandoned = False
        #: The fate of the next change, if it is not random.
        self.next_fate: str | None = None
        self._is_closed = False
        self._subscriptions: list[_Subscription] = []
        self._sessions: list[SimSession] = []
        #: Notifications for a stopped process.
        self._waiting: list[Callable[[], None]] = []
        self._feed = self._changed
        coordination.space.follow(self._feed)

    # --- the port

    async def get(self, key: str) -> Entry | None:
        return await self._call(f"get {key}", lambda: self.coordination.space.get(key))

    async def list(self, directory: str) -> Sequence[Entry]:
        return await self._call(f"list {directory}", lambda: self.coordination.space.list(directory))

    async def txn(self, checks: Sequence[Check], writes: Sequence[Write]) -> Sequence[int] | None:
        refuse_impossible(checks, writes)
        rows = [(write.key, write.value, _id_of(write.session)) for write in writes]
        about = f"txn {[tuple(check) for check in checks]} {[(key, session) for key, _, session in rows]}"
        return await self._call(about, lambda: self.coordination.space.txn(checks, rows), is_change=True)

    def watch(self, directory: str) -> DirectoryWatch:
        watch = DirectoryWatch(directory)
        if self._is_closed:
            watch.end()
        else:
            self._subscriptions.append(_Subscription(self, watch))
        return watch

    async def open_session(self, ttl_ms: int) -> SimSession:
        coordination = self.coordination
        sent = self.clock.monotonic()
        granted_ms = ttl_ms + int(coordination.random.uniform(*coordination.faults.late_expiry_seconds) * 1000)
        session_id = await self._call(
            f"open session {ttl_ms}", lambda: coordination.space.open_session(granted_ms), is_change=True
        )
        session = SimSession(self, session_id, ttl_ms, sent)
        self._sessions = [held for held in self._sessions if not held.is_lost] + [session]
        return session

    async def end_session(self, session: SimSession) -> None:
        """Tell the store that a session has ended, if it can be reached."""
        try:
            await self._call(
                f"end session {session.session_id}",
                lambda: self.coordination.space.end_session(session.session_id),
                is_change=True,
            )
        except Unavailable:
            self.coordination.note("left to expire", self.name, session.session_id)

    async def close(self) -> None:
        if self._is_closed:
            return
        for session in list(self._sessions):
            await session.close()
        self.abandon()

    # --- calls

    async def _call(self, about: str, work: Callable[[], T], *, is_change: bool = False) -> T:
        if self._is_closed:
            raise Unavailable("the store is closed")
        fate = self.coordination.fate(is_change=is_change)
        if is_change and self.next_fate is not None:
            fate, self.next_fate = self.next_fate, None
        call = _Call(self, about, work, fate)
        outcome: T = await call.outcome
        return outcome

    def receive(self, work: Callable[[], None]) -> None:
        """Run something in the process: now, when it continues, or never if it has died."""
        if self.is_abandoned:
            return
        if self.coordination.is_paused(self.name):
            self._waiting.append(work)
        else:
            work()

    # --- events

    def _changed(self, changed: Changed) -> None:
        for subscription in self._subscriptions:
            subscription.changed(changed)

    def reconnect(self) -> None:
        """Continue: the host reaches the store again."""
        for subscription in self._subscriptions:
            subscription.reconnect()
        for session in self._sessions:
            session.renew()

    def wake(self, *, renews_at_once: bool = True) -> None:
        """Continue after a pause."""
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()
        for subscription in self._subscriptions:
            subscription.deliver()
        for session in self._sessions:
            if renews_at_once:
                session.renew()
            else:
                session.renew_soon()

    def abandon(self) -> Sequence[int]:
        """Drop everything abruptly, as the end of a process does; return the sessions that are left to expire."""
        self._is_closed = self.is_abandoned = True
        self._waiting.clear()
        self.coordination.space.unfollow(self._feed)
        for subscription in self._subscriptions:
            subscription.end()
        self._subscriptions.clear()
        left = [session.session_id for session in self._sessions if not session.is_lost]
        for session in self._sessions:
            session.abandon()
        return left


class _Call:
    """One request on its way to the store and back. It continues without its sender."""

    def __init__(self, store: SimStore, about: str, work: Callable[[], Any], fate: str) -> None:
        coordination = store.coordination
        self.outcome: asyncio.Future[Any] = coordination.loop.create_future()
        self._store = store
        self._coordination = coordination
        self._about = about
        self._work = work
        self._fate = fate
        self._timers: list[asyncio.TimerHandle] = []
        if fate != _ANSWERED:
            coordination.count(fate)
        there = coordination.latency()
        if fate == LATE:
            self._fail_after(there, "no answer")
            there += coordination.random.uniform(*coordination.faults.late_seconds)
        else:
            self._fail_after(coordination.faults.timeout_seconds, "no answer in time")
        coordination.later(there, self._arrive)

    def _arrive(self) -> None:
        coordination = self._coordination
        if coordination.is_cut(self._store.name):
            return
        if self._fate == REFUSED:
            self._fail_after(coordination.latency(), "refused")
            return
        if self._fate in (_DENIED, _TOO_LARGE):
            self._fail_after(coordination.latency(), self._fate, Refused if self._fate == _DENIED else TooLarge)
            return
        try:
            result = self._work()
        except LookupError as error:
            coordination.note(self._about, self._store.name, "session has ended")
            self._fail_after(coordination.latency(), f"write refused: {error}")
            return
        coordination.note(self._about, self._store.name, f"{_short(result)} {self._fate}")
        if self._fate == UNANSWERED:
            self._fail_after(coordination.latency(), "the answer was lost")
        elif self._fate == _ANSWERED:
            coordination.later(coordination.latency(), self._answer, result)

    def _answer(self, result: object) -> None:
        if not self._coordination.is_cut(self._store.name):
            self._store.receive(lambda: self._settle(lambda: self.outcome.set_result(result)))

    def _fail_after(self, seconds: float, why: str, kind: type[Unavailable] = Unavailable) -> None:
        error = kind(f"the simulated store cannot be reached: {why}")

        def fail() -> None:
            self._store.receive(lambda: self._settle(lambda: self.outcome.set_exception(error)))

        self._timers.append(self._coordination.later(seconds, fail))

    def _settle(self, settle: Callable[[], None]) -> None:
        if not self.outcome.done():
            settle()
        for timer in self._timers:
            timer.cancel()


def _short(result: object) -> str:
    if isinstance(result, Entry):
        return f"version {result.version}"
    if isinstance(result, list) and result and isinstance(result[0], Entry):
        return f"{len(result)} entries"
    return repr(result)


def _id_of(session: Session | None) -> int:
    if session is None:
        return 0
    if not isinstance(session, SimSession):
        raise TypeError(f"{session!r} is not a session of this store")
    if session.is_lost:
        raise Unavailable(f"write refused: session {session.session_id} has ended")
    return session.session_id
