from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stores.etcd_messages import (
    Delete,
    Event,
    KeyValue,
    Lease,
    Put,
    WatchMessage,
    authenticate_request,
    lease_grant_request,
    lease_request,
    progress_request,
    range_request,
    read_authenticate_response,
    read_lease_response,
    read_range_response,
    read_txn_response,
    read_watch_response,
    txn_request,
    watch_request,
)

# The expected bytes were written down by hand from the field numbers in etcd's rpc.proto and kv.proto.


def test_requests_are_what_etcd_reads() -> None:
    assert range_request(b"k") == b"\x0a\x01k\x18\x00\x20\x00\x38\x00"
    assert range_request(b"k", b"l", 300, 5) == b"\x0a\x01k\x18\xac\x02\x20\x05\x38\x00\x12\x01l"
    assert watch_request(b"k", b"l", 7) == b"\x0a\x0a\x0a\x01k\x12\x01l\x18\x07\x40\x01"
    assert progress_request() == b"\x1a\x00"
    assert lease_grant_request(9) == b"\x08\x09"
    assert lease_request(1 << 62) == b"\x08" + b"\x80" * 8 + b"\x40"
    assert authenticate_request("u", "pw") == b"\x0a\x01u\x12\x02pw"


def test_a_transaction_compares_revisions_and_writes_in_order() -> None:
    request = txn_request([(b"a", 0), (b"b", 200)], [Put(b"a", b"1", 5), Delete(b"c")])
    compare_absent = b"\x10\x02\x1a\x01a\x30\x00"  # target MOD, key, revision 0: it is not there
    compare = b"\x10\x02\x1a\x01b\x30\xc8\x01"
    put = b"\x12\x08\x0a\x01a\x12\x011\x18\x05"
    delete = b"\x1a\x03\x0a\x01c"
    expected = b""
    for field, body in ((1, compare_absent), (1, compare), (2, put), (2, delete)):
        expected += bytes([field << 3 | 2, len(body)]) + body
    assert request == expected


HEADER = b"\x0a\x04\x08\x01\x18\x2a"  # cluster 1, revision 42


def test_answers_are_read_and_what_is_unknown_is_skipped() -> None:
    entry = b"\x0a\x02/k\x10\x01\x18\x29\x20\x03\x2a\x01v\x30\x07"
    unknown = b"\xa2\x06\x01x" + b"\xa9\x06" + b"\x00" * 8 + b"\xad\x06" + b"\x00" * 4 + b"\xb0\x06\x05"
    page = read_range_response(HEADER + unknown + b"\x12" + bytes([len(entry)]) + entry + b"\x18\x01")
    assert page == (42, [KeyValue(b"/k", b"v", 41)], True)
    assert read_range_response(HEADER) == (42, [], False)
    assert read_txn_response(HEADER + b"\x10\x01") == (42, True)
    assert read_txn_response(HEADER) == (42, False)
    assert read_lease_response(HEADER + b"\x10\x05\x18\x09") == Lease(5, 9)
    assert read_lease_response(b"\x10\x05\x18" + b"\xff" * 9 + b"\x01") == Lease(5, -1)
    assert read_authenticate_response(HEADER + b"\x12\x03tok") == "tok"


def test_a_watch_tells_changes_and_why_it_ended() -> None:
    put, delete = b"\x12\x07\x0a\x01a\x18\x05\x2a\x00", b"\x08\x01\x12\x05\x0a\x01b\x18\x06"
    events = b"".join(b"\x5a" + bytes([len(event)]) + event for event in (put, delete))
    expected = [Event(KeyValue(b"a", b"", 5), False), Event(KeyValue(b"b", b"", 6), True)]
    assert read_watch_response(HEADER + events) == WatchMessage(expected, False, 0, "", False)
    ended = read_watch_response(HEADER + b"\x20\x01\x28\x09\x32\x03why")
    assert ended == WatchMessage([], True, 9, "why", False)
    assert read_watch_response(HEADER + b"\x38\x01").is_fragment


@given(st.binary(max_size=60))
def test_bytes_that_are_no_answer_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for read in (read_range_response, read_txn_response, read_watch_response, read_lease_response):
        try:
            read(data)
        except ValueError:
            pass


@pytest.mark.parametrize("cut", range(1, 14))
def test_an_answer_that_is_cut_off_is_not_taken_for_a_shorter_one(cut: int) -> None:
    entry = b"\x0a\x02/k\x18\x29\x2a\x04" + b"v" * 4
    with pytest.raises(ValueError):
        read_range_response((b"\x12" + bytes([len(entry)]) + entry)[:-cut])


@given(st.binary(max_size=40), st.binary(max_size=300), st.integers(0, 2**63 - 1))
def test_what_is_put_is_what_is_read(key: bytes, value: bytes, lease: int) -> None:
    """A put has the fields 1, 2 and 3 of which an entry reads 1 as the key and 3 as the revision."""
    request = txn_request([], [Put(key, value, lease)])
    inner = _body(_body(request))
    page = read_range_response(b"\x12" + _length(len(inner)) + inner)
    assert page.entries == [KeyValue(key, b"", lease)]
    assert value in inner


def _length(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def _body(data: bytes) -> bytes:
    """The content of the first field, which is a message."""
    size, start = data[1], 2
    if size > 127:
        size, start = size & 127 | data[2] << 7, 3
    return data[start : start + size]
