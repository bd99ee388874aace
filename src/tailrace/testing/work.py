"""The cost of a simulated broker's work: the time that a step of its loop takes for files, bytes and records.

Owns the prices, which are those of a slow machine: a broker that does too much in one step stalls here as it would
there, and its sessions and clients suffer. Only processes that are charged pay. Work in a thread or in the helper
process costs the loop nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tailrace.coordinator import loader
from tailrace.records.record import Record
from tailrace.storage.segment import SNAPSHOT_SUFFIX
from tailrace.testing.process import charge

#: A longer step is a stall that clients notice.
MOST_SECONDS_A_STEP = 0.3

#: Waiting for a disk takes long; work in the page cache does not.
_OPERATION_SECONDS = {
    "append": 0.00002,
    "list": 0.001,
    "make_directory": 0.001,
    "open": 0.0005,
    "prefetch": 0.02,
    "read": 0.00002,
    "read_file": 0.0005,
    "rename": 0.002,
    "replace_file": 0.001,
    "sync": 0.02,
    "sync_all": 0.5,
    "sync_directory": 0.02,
    "truncate": 0.001,
}
_BYTE_SECONDS = 1e-8
#: Files are tiny here: removing one of a non-empty segment costs as much as a large one. Snapshots of producers are
#: small everywhere.
_REMOVAL_SECONDS, _SMALL_REMOVAL_SECONDS = 0.03, 0.001
_RECORD_SECONDS = 0.00005


def charge_disk(operation: str) -> None:
    """Charge for an operation of the loop on a file or directory."""
    charge(_OPERATION_SECONDS.get(operation, 0.0))


def charge_removal(name: str, size: int) -> None:
    """Charge for the removal of a file by the loop."""
    charge(_REMOVAL_SECONDS if size and not name.endswith(SNAPSHOT_SUFFIX) else _SMALL_REMOVAL_SECONDS)


def charge_bytes(count: int) -> None:
    """Charge for bytes that the loop handles, of a socket or a file."""
    charge(count * _BYTE_SECONDS)


@contextmanager
def records_cost_time() -> Iterator[None]:
    """Charge for each record that brokers decode."""
    right = vars(loader)["iterate_records"]

    def charged(*arguments: Any) -> Iterator[Record]:
        for record in right(*arguments):
            charge(_RECORD_SECONDS)
            yield record

    vars(loader)["iterate_records"] = charged
    try:
        yield
    finally:
        vars(loader)["iterate_records"] = right
