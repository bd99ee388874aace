"""An event loop in virtual time: it jumps to the next timer and does not wait.

Owns virtual time and the end of a run. Invariants: one seed gives one order of events; a run that can never continue
ends with `Deadlock`, one that never ends with `Livelock`, and an exception that was never retrieved fails the run; code
of a process runs only while the process runs. It must not know sockets, threads or the wall clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import inspect
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, NoReturn, TypeVar

from tailrace.errors import TailraceError
from tailrace.testing.process import Process, process_of

T = TypeVar("T")

_LONGEST_LIST = 20
#: The resolution of real clocks. In the time of a long run less is lost to rounding: a wait for it would never end.
_SHORTEST_SECONDS = 1e-9


class SimulationError(TailraceError):
    """A simulated run went wrong in a way that the tested code did not report itself."""


class Deadlock(SimulationError):
    """Nothing is ready, no timer is set, and the run has not ended."""


class Livelock(SimulationError):
    """The run used up its steps or its virtual time without ending."""


class _VirtualSelector:
    """Replaces the base loop's wait for sockets: it moves the time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop._step(timeout)
        return []


class _OwnedHandle(asyncio.Handle):
    """A callback that runs only while its process does."""

    __slots__ = ()

    _context: Context

    def _run(self) -> None:
        process = process_of(self._context)
        if process is None or not process.holds_back(self):
            super()._run()
            if process is not None and process.cost_seconds:
                loop: SimLoop = self._loop  # type: ignore[attr-defined]
                loop.step_done(process)


class _OrderedTimer(asyncio.TimerHandle):
    """A timer that fires after those set earlier for the same time, which is common in virtual time."""

    _when: float
    _scheduled: bool
    _context: Context

    def __init__(
        self, when: float, order: int, callback: Any, args: Any, loop: SimLoop, context: Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._order = order

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _OrderedTimer):
            return NotImplemented
        return (self._when, self._order) < (other._when, other._order)

    def _run(self) -> None:
        process = process_of(self._context)
        if process is None or not process.holds_back(self):
            super()._run()
            if process is not None and process.cost_seconds:
                loop: SimLoop = self._loop  # type: ignore[attr-defined]
                loop.step_done(process)


class SimLoop(asyncio.BaseEventLoop):
    """A deterministic event loop in virtual time, which starts at zero."""

    # Attributes of the base class that it does not declare.
    _scheduled: list[asyncio.TimerHandle]
    _ready: deque[asyncio.Handle]
    _selector: _VirtualSelector
    _clock_resolution: float

    def __init__(
        self,
        seed: int | str = 0,
        *,
        max_steps: int = 10_000_000,
        max_steps_at_once: int = 200_000,
        max_virtual_seconds: float = 7 * 24 * 3600.0,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.steps = 0
        self.unhandled: list[BaseException] = []
        self._selector = _VirtualSelector(self)
        self._now = 0.0
        self._steps_at_this_time = 0
        self._max_steps = max_steps
        self._max_steps_at_once = max_steps_at_once
        self._max_virtual_seconds = max_virtual_seconds
        self._tasks_made = 0
        self._timers_made = 0
        # Strong references, in order of creation: the garbage collector must not decide when a task vanishes.
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._contexts: dict[int, Context] = {}
        self._failed_tasks: dict[int, tuple[asyncio.Task[Any], Context]] = {}
        # Tasks of processes that have ended. They are kept, so that the collector does not choose when they are cleaned
        # up.
        self._dead_tasks: list[asyncio.Task[Any]] = []
        self._has_ended_processes = False
        #: Called with each step of a process that cost time, and its cost.
        self.on_costly_step: Callable[[Process, float], None] = _ignore_cost
        #: Called when the loop closes, by owners of things that must end with the run.
        self.at_close: dict[int, Callable[[], None]] = {}
        self._own_context = contextvars.copy_context()
        self._set_now(0.0)

    def random_for(self, purpose: str) -> Random:
        """Return a random generator for one purpose, so that one more draw elsewhere changes nothing here."""
        return Random(f"{self.seed}/{purpose}")

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._now

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end, cancel leftover tasks, oldest first, close, and report what went wrong."""
        try:
            result = self.run_until_complete(coroutine)
        except BaseException as error:
            self._finish()
            for other in self.unhandled:
                error.add_note(f"also, never retrieved: {other!r}")
            raise
        self._finish()
        if self.unhandled:
            raise BaseExceptionGroup("exceptions that were never retrieved", self.unhandled)
        return result

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        """Create a task, named by its number in this loop: the interpreter's own count differs between runs."""
        self._tasks_made += 1
        number = self._tasks_made
        context = contextvars.copy_context() if context is None else context
        task: asyncio.Task[Any] = super().create_task(coro, name=name or f"task-{number}", context=context, **options)
        self._tasks[number] = task
        self._contexts[number] = context
        task.add_done_callback(lambda _: self._task_done(number), context=self._own_context)
        return task

    def _task_done(self, number: int) -> None:
        if number not in self._tasks:
            return  # its process has ended
        task = self._tasks.pop(number)
        context = self._contexts.pop(number)
        if task._log_traceback:
            self._failed_tasks[number] = task, context

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call in the next turn, if its process runs then."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = _OwnedHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def resume(self, process: Process) -> None:
        """Continue a paused process."""
        process.resume(self._ready.extend)

    def step_done(self, process: Process) -> None:
        """End a step of a process: for as long as it cost, nothing else of that process runs."""
        cost_seconds, process.cost_seconds = process.cost_seconds, 0.0
        if process.has_ended:
            return
        self.on_costly_step(process, cost_seconds)
        process.occupy()
        self.call_later(cost_seconds, process.set_free, self._ready.extend, context=self._own_context)

    def wake(self, process: Process, slept_seconds: float) -> None:
        """Continue a process whose machine was suspended since it was paused: timers take that much longer."""
        timers = [timer for timer in self._scheduled if process_of(_context_of(timer)) is process]
        ready: list[asyncio.Handle] = []

        def put_off(held: list[asyncio.Handle]) -> None:
            for handle in held:
                if handle.cancelled():
                    continue
                if isinstance(handle, _OrderedTimer):
                    timers.append(handle)
                    heapq.heappush(self._scheduled, handle)
                    handle._scheduled = True
                else:
                    ready.append(handle)

        process.resume(put_off)
        for timer in timers:
            assert isinstance(timer, _OrderedTimer)
            timer._when += slept_seconds
        heapq.heapify(self._scheduled)
        self._ready.extend(ready)

    def end(self, process: Process) -> None:
        """End a process: its tasks neither continue nor end."""
        process.end()
        self._has_ended_processes = True
        for number in [number for number, context in self._contexts.items() if process_of(context) is process]:
            self._dead_tasks.append(self._tasks.pop(number))
            del self._contexts[number]
        for number, (task, context) in list(self._failed_tasks.items()):
            if process_of(context) is process:
                # The code that would have retrieved its exception ended with it.
                task._log_traceback = False
                del self._failed_tasks[number]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call after some virtual time, which is never so small that no time passes."""
        if 0 < delay < _SHORTEST_SECONDS:
            delay = _SHORTEST_SECONDS
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at a virtual time, after calls that were set for the same time before."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        self._timers_made += 1
        timer = _OrderedTimer(when, self._timers_made, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep exceptions that were never retrieved; `run` reports them."""
        if self._has_ended_processes and "future" in context and not isinstance(context["future"], asyncio.Task):
            return  # most likely of a process that ended before it could retrieve it
        error = context.get("exception")
        if error is None:
            error = SimulationError(str(context.get("message")))
        self.unhandled.append(error)

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Return tasks that have not ended, oldest first."""
        return [task for task in self._tasks.values() if not task.done()]

    def add_reader(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("add_reader: a simulation has no sockets, the code must use its Network")

    def add_writer(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("add_writer: a simulation has no sockets, the code must use its Network")

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise SimulationError("run_in_executor: a simulation has no threads, the code must use Disk.offload")

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Do the same as `call_soon`, but only in the loop's own thread: any other would break determinism."""
        if self.is_running() and asyncio._get_running_loop() is not self:
            raise SimulationError("call_soon_threadsafe: a simulation has no other threads")
        return self.call_soon(callback, *args, context=context)

    def _step(self, timeout: float | None) -> None:
        """Count one turn of the loop, and advance the time if nothing is ready."""
        self.steps += 1
        self._steps_at_this_time += 1
        if self.steps > self._max_steps:
            raise Livelock(f"no end after {self._max_steps} steps, at {self._now:.6f} s\n{self._waiting()}")
        if timeout is None:
            raise Deadlock(f"nothing can happen any more at {self._now:.6f} s\n{self._waiting()}")
        if timeout > 0:
            self._set_now(max(self._now, self._scheduled[0].when()))
        elif self._steps_at_this_time > self._max_steps_at_once:
            raise Livelock(f"no time passed in {self._max_steps_at_once} steps at {self._now:.6f} s\n{self._waiting()}")

    def _set_now(self, now: float) -> None:
        if now > self._max_virtual_seconds:
            raise Livelock(f"no end after {self._max_virtual_seconds:.0f} virtual s\n{self._waiting()}")
        self._now = now
        self._steps_at_this_time = 0
        # The base loop runs timers due before `time() + resolution`: one ulp means exactly those due by now.
        self._clock_resolution = math.ulp(now)

    def _waiting(self) -> str:
        self._collect_failures()
        tasks = self.pending_tasks()
        lines = [f"  {task.get_name()} in {_where(task)}" for task in tasks[:_LONGEST_LIST]]
        if len(tasks) > _LONGEST_LIST:
            lines.append(f"  … and {len(tasks) - _LONGEST_LIST} more")
        lines.extend(f"  failed, never retrieved: {error!r}" for error in self.unhandled[:_LONGEST_LIST])
        return "unfinished tasks:\n" + "\n".join(lines) if lines else "no unfinished tasks"

    def _finish(self) -> None:
        """End every remaining task and close the loop."""
        # A separate allowance: the run may have ended because its limits were used up.
        self._max_steps = self.steps + self._max_steps_at_once
        self._max_virtual_seconds = self._now + 3600.0
        self._steps_at_this_time = 0
        for context in list(self._contexts.values()):
            process = process_of(context)
            if process is not None and not process.has_ended:
                self.end(process)
        try:
            while leftover := self.pending_tasks():
                for task in leftover:
                    task.cancel()
                for task in leftover:
                    self.run_until_complete(asyncio.wait([task]))
            self.run_until_complete(self.shutdown_asyncgens())
            self._bury_dead_tasks()
        except SimulationError as error:
            self.unhandled.append(error)
        finally:
            self._collect_failures()
            # A plain future that failed notifies its loop only when it is freed.
            gc.collect()
            for end in self.at_close.values():
                end()
            self.close()

    def _bury_dead_tasks(self) -> None:
        """Close the tasks of ended processes, in order; their errors do not matter."""
        for task in self._dead_tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close_unbegun(task)
            for _ in range(_LONGEST_LIST):
                try:
                    task.get_coro().close()
                    break
                except BaseException:  # noqa: BLE001, S112  it wanted to wait for something in its end, or failed in it
                    continue
        self._dead_tasks.clear()

    def _collect_failures(self) -> None:
        """Record the tasks that failed without anyone retrieving the exception."""
        for task, _ in self._failed_tasks.values():
            if task._log_traceback and (error := task.exception()) is not None:
                self.unhandled.append(error)
        self._failed_tasks.clear()

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: the selector only moves time."""

    def _write_to_self(self) -> None:
        """Do nothing: there is only one thread."""


def _ignore_cost(process: Process, cost_seconds: float) -> None:
    """Default callback: do nothing."""


def _context_of(timer: asyncio.TimerHandle) -> Context:
    assert isinstance(timer, _OrderedTimer)
    return timer._context


def _close_unbegun(task: asyncio.Task[Any]) -> None:
    """Close coroutines that a task got but never awaited, as the interpreter would warn about them."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    for value in list(frame.f_locals.values()) if frame is not None else ():
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
            value.close()


def _where(task: asyncio.Task[Any]) -> str:
    """Return the innermost line at which a task waits."""
    frames = task.get_stack()
    if not frames:
        return repr(task.get_coro())
    inner = frames[-1]
    return f"{inner.f_code.co_qualname} ({inner.f_code.co_filename}:{inner.f_lineno})"


def run(
    coroutine: Coroutine[Any, Any, T],
    *,
    seed: int | str,
    max_steps: int = 10_000_000,
    max_virtual_seconds: float = 7 * 24 * 3600.0,
) -> T:
    """Run a coroutine in its own loop, in virtual time."""
    return SimLoop(seed, max_steps=max_steps, max_virtual_seconds=max_virtual_seconds).run(coroutine)


def current() -> SimLoop:
    """Return the running simulated loop."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop):
        raise SimulationError("this needs to run inside a SimLoop")
    return loop
