"""Generate orders and payments to try the examples with, as lines for `tailrace produce --input json`.

The same seed gives the same shop: payments match the orders of a run with the same `--count` and `--seed`.

    python examples/sample_data.py orders --count 10000 | tailrace produce orders --input json
    python examples/sample_data.py payments --count 10000 | tailrace produce payments --input json
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

OPENING = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)
UNPAID_SHARE = 0.1
LATE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    """One order, and the time at which it is paid, if ever."""

    id: str
    customer: str
    cents: int
    at: datetime
    paid_at: datetime | None


def orders(count: int, seed: int) -> Iterator[Order]:
    """The orders of a shop: about one per second, most of them paid within minutes."""
    chance = random.Random(seed)
    at = OPENING
    for number in range(count):
        at += timedelta(milliseconds=chance.randrange(2000))
        paid_at = None if chance.random() < UNPAID_SHARE else at + timedelta(seconds=chance.randrange(5, 900))
        yield Order(f"o-{number}", f"c-{chance.randrange(100)}", chance.randrange(100, 20_000), at, paid_at)


def order_lines(count: int, seed: int, repeated: int) -> Iterator[str]:
    """Orders as they were placed, except that a few arrive late, and `repeated` percent are sent twice."""
    chance = random.Random(seed + 1)
    held_back: list[str] = []
    for order in orders(count, seed):
        line = _line(
            order.id, {"id": order.id, "customer": order.customer, "amount": order.cents / 100, "at": _iso(order.at)}
        )
        if chance.random() < LATE_SHARE:
            held_back.append(line)
            continue
        yield line
        if chance.randrange(100) < repeated:
            yield line
        if held_back and chance.random() < LATE_SHARE:
            yield held_back.pop(0)
    yield from held_back


def payment_lines(count: int, seed: int) -> Iterator[str]:
    """Payments in the order in which they were made."""
    paid = [(order.paid_at, order) for order in orders(count, seed) if order.paid_at is not None]
    for paid_at, order in sorted(paid, key=lambda each: each[0]):
        yield _line(order.id, {"order": order.id, "amount": order.cents / 100, "at": _iso(paid_at)})


def _line(key: str, value: dict[str, object]) -> str:
    return json.dumps({"key": key, "value": json.dumps(value)})


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["orders", "payments"])
    parser.add_argument("--count", type=int, default=1000, help="number of orders (1000)")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives another shop (1)")
    parser.add_argument("--repeated", type=int, default=0, metavar="PERCENT", help="orders that are sent twice (0)")
    chosen = parser.parse_args()
    if chosen.what == "orders":
        lines = order_lines(chosen.count, chosen.seed, chosen.repeated)
    else:
        lines = payment_lines(chosen.count, chosen.seed)
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
