"""Without a broker nothing can be acknowledged: every way out of a producer says so."""

from __future__ import annotations

import socket
import threading

import pytest

from tailrace.client import DeliveryError, Producer, UnreachableError


@pytest.fixture
def nowhere() -> str:
    """An address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_leaving_the_block_raises_for_records_that_were_not_acknowledged(nowhere: str) -> None:
    producer = Producer(nowhere, connect_timeout=None, message_timeout_ms=400)

    def send_two() -> None:
        with producer:
            producer.send("orders", "one")
            producer.send("orders", "two", key="k", headers={"a": "b"}, timestamp_ms=1)

    with pytest.raises(DeliveryError) as caught:
        send_two()
    assert caught.value.count == 2
    assert "Message timed out" in caught.value.reason
    assert "Connection refused" in caught.value.reason
    assert str(caught.value).startswith("2 records were not acknowledged: ")
    assert producer.acknowledged == 0


def test_flush_raises_when_its_time_is_up_and_keeps_what_still_waits(nowhere: str) -> None:
    producer = Producer(nowhere, connect_timeout=None)
    producer.send("orders", "one")
    with pytest.raises(DeliveryError, match=r"1 record was not acknowledged: no response within 0\.1 s"):
        producer.flush(0.1)
    assert producer.unacknowledged == 1
    with pytest.raises(DeliveryError):
        producer.close(0.0)
    assert producer.unacknowledged == 0


def test_a_failure_is_reported_once(nowhere: str) -> None:
    producer = Producer(nowhere, connect_timeout=None, message_timeout_ms=300)
    producer.send("orders", "one")
    with pytest.raises(DeliveryError):
        producer.flush()
    producer.flush()


def test_an_error_in_the_block_stays_the_error_and_carries_what_was_not_delivered(nowhere: str) -> None:
    def send_and_fail() -> None:
        with Producer(nowhere, connect_timeout=None, message_timeout_ms=300) as producer:
            producer.send("orders", "one")
            raise LookupError("mine")

    with pytest.raises(LookupError) as caught:
        send_and_fail()
    assert [note for note in caught.value.__notes__ if note.startswith("1 record was not acknowledged")]


def test_an_empty_block_ends_without_a_broker(nowhere: str) -> None:
    with Producer(nowhere, connect_timeout=None) as producer:
        pass
    assert producer.acknowledged == 0


@pytest.mark.parametrize("acks", ["0", "1", 1, "all", -1])
def test_any_acknowledgement_level_can_be_chosen(nowhere: str, acks: object) -> None:
    Producer(nowhere, connect_timeout=None, acks=acks).close()


def test_a_record_larger_than_the_client_may_send_is_refused_at_once(nowhere: str) -> None:
    producer = Producer(nowhere, connect_timeout=None, message_max_bytes=2000)
    with pytest.raises(DeliveryError, match="Message size too large"):
        producer.send("orders", bytes(3000))


def test_a_timestamp_that_would_mean_now_is_refused(nowhere: str) -> None:
    with pytest.raises(ValueError, match="positive"):
        Producer(nowhere, connect_timeout=None).send("orders", "one", timestamp_ms=0)


def test_where_no_broker_listens_a_producer_is_refused_with_what_was_tried(nowhere: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        Producer(f"{nowhere},127.0.0.1:1", connect_timeout=0.3)
    assert str(caught.value) == (
        f"cannot reach a broker at {nowhere},127.0.0.1:1 within 0.3 s ({nowhere}: connection refused; 127.0.0.1:1: "
        "connection refused); is one running? start it with: tailrace serve"
    )


def test_a_broker_that_starts_to_listen_in_time_is_waited_for() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        starting = threading.Timer(0.5, listener.listen)
        starting.start()
        Producer(f"127.0.0.1:{listener.getsockname()[1]}", connect_timeout=60).close()
        starting.join()
