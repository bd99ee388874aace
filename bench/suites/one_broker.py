"""The stage of suites that measure clients and settings: one tailrace broker for the whole run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from bench.clients.server import Handle
from bench.harness.suite import Block, Say, Stage, T
from bench.systems.tailrace import Tailrace


class OneBroker(Stage[T]):
    """Starts and stops it; the suite decides its data and what a block gets."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.broker = Tailrace(settings)
        self.handle = Handle("", 0, 0)

    @contextmanager
    def shared(self, scratch: Path, say: Say) -> Iterator[None]:
        self.handle = self.broker.start(scratch / "broker")
        try:
            self.broker.wait_ready()
            self.fill(scratch, say)
            yield
        finally:
            self.broker.stop()

    def fill(self, scratch: Path, say: Say) -> None:
        """Write the data before anything is measured."""

    @abstractmethod
    def target(self, block: Block[T], directory: Path, say: Say) -> T:
        """Return what the workloads of a block get."""

    def block(self, block: Block[T], directory: Path, say: Say) -> AbstractContextManager[T]:
        return nullcontext(self.target(block, directory, say))

    def check_alive(self, target: T) -> None:
        self.broker.server.check_alive()
