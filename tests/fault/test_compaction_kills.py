"""The broker or its helper is killed during compaction: the newest value of every key is there afterwards."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaError, Producer, TopicPartition

from tests.fault.conftest import MakeBroker
from tests.support.brokers.watched_broker import WatchedBroker
from tests.support.clients.confluent_client import ConfluentClient
from tests.support.topics import create_topic, eventually

SEED = int(os.environ.get("TAILRACE_FAULT_SEED", "0")) or random.SystemRandom().getrandbits(32)
KILLS = max(2, int(os.environ.get("TAILRACE_FAULT_KILLS", "20")) // 4)
KEYS = 300
VALUE_BYTES = 1000
_PATIENCE_SECONDS = 180.0
CONFIG = {"log_cleaner_backoff_ms": "20", "log_segment_delete_delay_ms": "100"}
TOPIC = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_bytes": str(1 << 20)}


def helper_pid(broker: WatchedBroker) -> int | None:
    """The broker's helper process, while there is one."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    return int(children[0]) if children else None


def is_gone(pid: int) -> bool:
    """Whether a process has ended; its new parent may take a while to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_cleaning(broker: WatchedBroker) -> bool:
    names = os.listdir(broker.data_dir / "state-0")
    return any(name.endswith((".cleaned", ".swap")) for name in names)


class State:
    """A topic of values by key, and what was acknowledged last for each."""

    def __init__(self, broker: WatchedBroker, choices: random.Random) -> None:
        self.broker = broker
        self.random = choices
        self.acknowledged: dict[bytes, int] = {}
        self.sent = 0
        self.producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 300,
                "log_level": 0,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            key = b"key %d" % self.random.randrange(KEYS)
            number = self.sent
            self.sent += 1

            def delivered(error: object, _: object, key: bytes = key, number: int = number) -> None:
                assert error is None, error
                self.acknowledged[key] = number

            value = (b"%d:" % number).ljust(VALUE_BYTES, b".")
            self.producer.produce("state", value, key, partition=0, on_delivery=delivered)
            self.producer.poll(0)

    def wait_for_cleaning(self) -> None:
        """Send records until compaction runs."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.send(1200)
            self.producer.poll(0)
            until = time.monotonic() + 3
            while time.monotonic() < until:
                if is_cleaning(self.broker):
                    return
                self.producer.poll(0.001)
        raise AssertionError(f"no compaction\n{self.broker.error_output()}")

    def check(self) -> None:
        assert self.producer.flush(_PATIENCE_SECONDS) == 0
        end = ConfluentClient(self.broker.bootstrap).offsets("state", [0])[0][1]
        assert end == self.sent, "offsets were lost or given twice"
        consumer = ConfluentClient(self.broker.bootstrap).consumer(enable_partition_eof=True)
        found: dict[bytes | None, int] = {}
        deadline = time.monotonic() + _PATIENCE_SECONDS
        try:
            consumer.assign([TopicPartition("state", 0, 0)])
            while (message := consumer.poll(_PATIENCE_SECONDS)) is not None and message.error() is None:
                found[message.key()] = int(message.value().partition(b":")[0])
                assert time.monotonic() < deadline
            assert message is not None
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        finally:
            consumer.close()
        assert found == self.acknowledged


def test_the_newest_of_each_key_survives_kills_of_broker_and_helper(make_broker: MakeBroker) -> None:
    print(f"seed {SEED}")
    choices = random.Random(SEED)
    broker = make_broker(**CONFIG)
    create_topic(broker.bootstrap, "state", **TOPIC)
    state = State(broker, choices)
    victims = {"broker": 0, "helper": 0}
    in_a_row = 0
    for _ in range(KILLS):
        state.wait_for_cleaning()
        time.sleep(choices.uniform(0, 0.05))  # at a random moment
        helper = helper_pid(broker)
        # A third death in a row would count as a fault of the log.
        if helper is not None and in_a_row < 2 and choices.random() < 0.6:
            with suppress(ProcessLookupError):  # it may have just ended by itself
                os.kill(helper, signal.SIGKILL)
            victims["helper"] += 1
            in_a_row += 1
        else:
            broker.kill()
            broker.start()
            victims["broker"] += 1
            in_a_row = 0
            if helper is not None:
                assert eventually(lambda pid=helper: is_gone(pid)), "the helper has outlived its broker"
        state.check()
    print(f"killed: {victims}, {state.sent} records sent")
    # After all that, compaction still completes.
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while sum(path.stat().st_size for path in (broker.data_dir / "state-0").glob("*.log")) > 5 << 20:
        assert time.monotonic() < deadline, broker.error_output()
        time.sleep(0.1)
    state.check()
    output = broker.all_error_output()
    assert "Traceback" not in output, output[-4000:]
    assert "stopped compacting" not in output, output[-4000:]


def test_a_broker_without_work_for_it_has_no_helper(make_broker: MakeBroker) -> None:
    broker = make_broker(**CONFIG)
    create_topic(broker.bootstrap, "state", **TOPIC)
    create_topic(broker.bootstrap, "other")
    for _ in range(20):
        broker.serve_once("other")
    assert helper_pid(broker) is None
