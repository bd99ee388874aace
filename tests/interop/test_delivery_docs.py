"""The programs of docs/delivery.md run as they stand, die in the middle, and lose or repeat what the page says."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tailrace.client import Groups
from tests.interop.conftest import MakeBroker
from tests.support.brokers.broker_process import BrokerProcess
from tests.support.topics import create_topic, eventually

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"
ORDERS = [f"order {number}" for number in range(20)]
DEADLINE_SECONDS = 180

#: Runs a program whose consumer ends the process with SIGKILL at one commit, before it is sent or after its answer.
MORTAL = """\
import os, runpy, signal, sys
import confluent_kafka

program, moment, fatal = sys.argv[1], sys.argv[2], int(sys.argv[3])
commits = 0

class MortalConsumer(confluent_kafka.Consumer):
    def commit(self, *arguments, **options):
        global commits
        commits += 1
        if commits == fatal and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = super().commit(*arguments, **options)
        if commits == fatal and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

confluent_kafka.Consumer = MortalConsumer
runpy.run_path(program, run_name="__main__")
"""


def programs() -> dict[str, str]:
    """The code of the page, by the file names in its first lines."""
    blocks = re.findall(r"```python\n# (\w+\.py).*?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return dict(blocks)


class Shop:
    """A directory with the page's programs, told where the broker is, and the processes that run them."""

    def __init__(self, directory: Path, broker: BrokerProcess) -> None:
        self.directory = directory
        self.broker = broker
        self._processes: list[subprocess.Popen[str]] = []
        for name, code in programs().items():
            assert "127.0.0.1:9092" in code
            (directory / name).write_text(code.replace("127.0.0.1:9092", broker.bootstrap))
        (directory / "mortal.py").write_text(MORTAL)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def run(self, *arguments: str) -> None:
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, errors

    def dies(self, program: str, moment: str, commit: int) -> None:
        """Run a program until it dies at a commit."""
        process = self.start("mortal.py", program, moment, str(commit))
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == -signal.SIGKILL, errors

    def runs_until(self, program: str, condition: Callable[[], bool]) -> None:
        """Run a program until a condition holds, then stop it as Ctrl-C does."""
        process = self.start(program)
        eventually(lambda: condition() or process.poll() is not None, timeout_seconds=DEADLINE_SECONDS)
        self.stop(process)
        assert condition()

    @staticmethod
    def stop(process: subprocess.Popen[str]) -> str:
        """Stop a running program; return its output."""
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert "KeyboardInterrupt" in errors, errors
        return output

    def shipped(self) -> list[str]:
        path = self.directory / "shipped.txt"
        return path.read_text().splitlines() if path.exists() else []

    def query(self, sql: str) -> list[tuple[object, ...]]:
        path = self.directory / "shop.db"
        if not path.exists():
            return []
        with sqlite3.connect(path, timeout=DEADLINE_SECONDS) as database:
            try:
                return database.execute(sql).fetchall()
            except sqlite3.OperationalError:
                return []  # not made yet

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def shop(make_broker: MakeBroker, tmp_path: Path) -> Iterator[Shop]:
    directory = tmp_path / "shop"
    directory.mkdir()
    shop = Shop(directory, make_broker(group_initial_rebalance_delay_ms="0"))
    yield shop
    shop.end()


def test_the_page_has_a_program_for_every_promise() -> None:
    expected = ["reader.py", "send.py", "at_most_once.py", "at_least_once.py", "idempotent.py", "own_offsets.py"]
    assert list(programs()) == expected


def test_at_most_once_loses_what_was_committed_and_not_done(shop: Shop) -> None:
    shop.run("send.py")
    shop.dies("at_most_once.py", "after", 8)
    assert shop.shipped() == ORDERS[:7]
    shop.runs_until("at_most_once.py", lambda: ORDERS[-1] in shop.shipped())
    assert shop.shipped() == ORDERS[:7] + ORDERS[8:]


def test_at_least_once_repeats_what_was_done_and_not_committed(shop: Shop) -> None:
    shop.run("send.py")
    shop.dies("at_least_once.py", "before", 8)
    assert shop.shipped() == ORDERS[:8]
    shop.runs_until("at_least_once.py", lambda: ORDERS[-1] in shop.shipped())
    assert shop.shipped() == ORDERS[:8] + ORDERS[7:]


def test_idempotent_work_is_in_effect_done_once(shop: Shop) -> None:
    shop.run("send.py")
    shop.dies("idempotent.py", "before", 8)
    # The sender also starts over and sends everything again.
    shop.run("send.py")

    def shipped() -> list[object]:
        return [order for (order,) in shop.query("SELECT order_id FROM shipped ORDER BY rowid")]

    assert shipped() == ORDERS[:8]
    shop.runs_until("idempotent.py", lambda: len(shipped()) == len(ORDERS))
    assert shipped() == ORDERS


def test_offsets_in_the_same_transaction_survive_kills_at_any_moment(shop: Shop) -> None:
    create_topic(shop.broker.bootstrap, "orders", partitions=2)
    rounds = 4
    for number in range(rounds):
        shop.run("send.py")
        process = shop.start("own_offsets.py")
        goal = number * len(ORDERS) + 3

        def sold() -> int:
            return int(str((shop.query("SELECT count FROM sales") or [(0,)])[0][0]))

        assert eventually(lambda: sold() >= goal or process.poll() is not None, timeout_seconds=DEADLINE_SECONDS)  # noqa: B023
        # Whatever it does at this moment, within a transaction or between two.
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)
        assert sold() >= goal
    shop.run("send.py")
    total = (rounds + 1) * len(ORDERS)
    shop.runs_until("own_offsets.py", lambda: sold() >= total)
    assert sold() == total
    assert sum(int(str(row[0])) for row in shop.query("SELECT next FROM progress")) == total


def lines_of(outputs: list[str]) -> Counter[str]:
    return Counter(line for output in outputs for line in output.splitlines())


@pytest.mark.parametrize(
    ("groups", "times"), [(("billing", "billing"), 1), (("billing", "search"), 2)], ids=["one group", "two groups"]
)
def test_a_group_shares_records_and_groups_do_not(shop: Shop, groups: tuple[str, str], times: int) -> None:
    create_topic(shop.broker.bootstrap, "orders", partitions=4)
    readers = [shop.start("reader.py", group) for group in groups]
    wait_for_readers(shop, groups)
    producer = Producer({"bootstrap.servers": shop.broker.bootstrap, "log_level": 0})
    for number in range(60):
        producer.produce("orders", f"order {number}", partition=number % 4)
    assert producer.flush(DEADLINE_SECONDS) == 0
    wait_for_lag(shop, set(groups))
    outputs = [shop.stop(reader) for reader in readers]
    counts = lines_of(outputs)
    assert len(counts) == 60
    assert set(counts.values()) == {times}
    assert all(outputs), "one of the readers had nothing to do"


def wait_for_readers(shop: Shop, groups: tuple[str, ...]) -> None:
    """Wait until every reader has its partitions, so that later records are spread over all."""
    expected = Counter(groups)
    admin = Groups(shop.broker.bootstrap)

    def are_there() -> bool:
        described = {group: admin.find(group) for group in expected}
        return all(
            found is not None
            and found.state == "Stable"
            and len(found.members) == expected[group]
            and all(member.partitions for member in found.members)
            for group, found in described.items()
        )

    assert eventually(are_there, timeout_seconds=DEADLINE_SECONDS)


def wait_for_lag(shop: Shop, groups: set[str]) -> None:
    """Wait until everything sent is committed, which these readers do every five seconds."""
    admin = Groups(shop.broker.bootstrap)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        described = [admin.describe(group) for group in sorted(groups)]
        if all(sum(each.committed or 0 for each in found.progress) == 60 for found in described):
            return
        assert time.monotonic() < deadline, described
        time.sleep(0.2)
