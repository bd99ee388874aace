"""The few messages of etcd's v3 API that the store needs, in protobuf's wire format.

It only knows field numbers: no connections and no retries. Unknown fields are skipped, so that a newer etcd may send
more. Malformed bytes raise `ValueError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tailrace.cluster.store import Unreadable

T = TypeVar("T")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
#: The attribute that transactions compare: the revision of a key's last change. The comparison is always equality.
_COMPARE_MOD_REVISION = 2
_EVENT_DELETE = 1


class KeyValue(NamedTuple):
    """A stored key; its version is the revision of its last change."""

    key: bytes
    value: bytes
    mod_revision: int


class Put(NamedTuple):
    """A write of a transaction; lease 0 means none."""

    key: bytes
    value: bytes
    lease: int


class Delete(NamedTuple):
    """A deletion in a transaction."""

    key: bytes


class RangePage(NamedTuple):
    """Some keys of a range, and the store's revision at the read."""

    revision: int
    entries: Sequence[KeyValue]
    has_more: bool


class TxnResult(NamedTuple):
    """Whether a transaction was applied, and the revision of all its writes."""

    revision: int
    succeeded: bool


class Event(NamedTuple):
    """A change of a watched key."""

    entry: KeyValue
    is_delete: bool


class WatchMessage(NamedTuple):
    """A message of a watch stream: changes, or the end of the watch with its reason."""

    events: Sequence[Event]
    is_canceled: bool
    #: If not 0, history before it is gone, and the watch needed some of it.
    compact_revision: int
    reason: str
    #: Whether the next message continues the same revision.
    is_fragment: bool


class Lease(NamedTuple):
    """A lease and its time to live in seconds; 0 if it is gone."""

    lease_id: int
    ttl_seconds: int


# --- protobuf


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    """A message with these fields, as pairs of number and value, in order."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3 | _VARINT)
            out += _varint(value)
        else:
            out += _varint(number << 3 | _BYTES)
            out += _varint(len(value))
            out += value
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    for index in range(position, min(position + _MAX_VARINT_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, index + 1
        shift += 7
    raise ValueError("a number in a message from etcd has no end")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Every field of a message, as pairs of number and value."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            number, position = _read_varint(data, position)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, position = _read_varint(data, position)
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise ValueError(f"a message from etcd has a field of unknown kind {kind}")
        if size > len(data) - position:
            raise ValueError("a message from etcd is truncated")
        yield tag >> 3, data[position : position + size]
        position += size


class _Fields:
    """The fields of one message by number; missing fields have protobuf's defaults."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._values.setdefault(number, []).append(value)

    def number(self, field: int) -> int:
        value = self._values.get(field, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {field} of a message from etcd is not a number")
        return value if value < 1 << 63 else value - (1 << 64)  # every number here is an int64

    def blob(self, field: int) -> bytes:
        return self.blobs(field)[-1] if field in self._values else b""

    def blobs(self, field: int) -> list[bytes]:
        values = []
        for value in self._values.get(field, []):
            if isinstance(value, int):
                raise ValueError(f"field {field} of a message from etcd is a number")
            values.append(value)
        return values


def _revision(response: _Fields) -> int:
    """The store's revision, from the header of every response."""
    return _Fields(response.blob(1)).number(3)


# --- requests


def range_request(
    key: bytes, range_end: bytes = b"", limit: int = 0, revision: int = 0, *, serializable: bool = False
) -> bytes:
    """Read a key, or the range up to `range_end` (exclusive): linearizable, or from the member's own state."""
    fields: list[tuple[int, int | bytes]] = [(1, key), (3, limit), (4, revision), (7, int(serializable))]
    # An end that is present but empty would mean the end of all keys.
    return _message(*fields, (2, range_end)) if range_end else _message(*fields)


def txn_request(compares: Iterable[tuple[bytes, int]], writes: Iterable[Put | Delete]) -> bytes:
    """Apply all writes if each key has its expected mod revision (0 for missing keys)."""
    fields: list[tuple[int, int | bytes]] = [
        (1, _message((2, _COMPARE_MOD_REVISION), (3, key), (6, revision))) for key, revision in compares
    ]
    for write in writes:
        if isinstance(write, Put):
            fields.append((2, _message((2, _message((1, write.key), (2, write.value), (3, write.lease))))))
        else:
            fields.append((2, _message((3, _message((1, write.key))))))
    return _message(*fields)


def watch_request(key: bytes, range_end: bytes, start_revision: int) -> bytes:
    """Watch a range from a revision on, with large messages in fragments."""
    return _message((1, _message((1, key), (2, range_end), (3, start_revision), (8, 1))))


def progress_request() -> bytes:
    """Ask a watch stream for a sign of life."""
    return _message((3, b""))


def lease_grant_request(ttl_seconds: int) -> bytes:
    return _message((1, ttl_seconds))


def lease_request(lease_id: int) -> bytes:
    """The body of a keep-alive or a revocation."""
    return _message((1, lease_id))


def authenticate_request(user: str, password: str) -> bytes:
    return _message((1, user.encode()), (2, password.encode()))


# --- responses


def _key_value(data: bytes) -> KeyValue:
    fields = _Fields(data)
    return KeyValue(fields.blob(1), fields.blob(5), fields.number(3))


def read_range_response(data: bytes) -> RangePage:
    fields = _Fields(data)
    return RangePage(_revision(fields), [_key_value(entry) for entry in fields.blobs(2)], bool(fields.number(3)))


def read_txn_response(data: bytes) -> TxnResult:
    fields = _Fields(data)
    return TxnResult(_revision(fields), bool(fields.number(2)))


def read_watch_response(data: bytes) -> WatchMessage:
    fields = _Fields(data)
    events = []
    for event in map(_Fields, fields.blobs(11)):
        events.append(Event(_key_value(event.blob(2)), event.number(1) == _EVENT_DELETE))
    return WatchMessage(
        events,
        bool(fields.number(4)),
        fields.number(5),
        fields.blob(6).decode(errors="replace"),
        bool(fields.number(7)),
    )


def read_lease_response(data: bytes) -> Lease:
    """The answer to a grant or keep-alive."""
    fields = _Fields(data)
    return Lease(fields.number(2), fields.number(3))


def read_authenticate_response(data: bytes) -> str:
    return _Fields(data).blob(2).decode()


def understood(read: Callable[[bytes], T], answer: bytes) -> T:
    """Decode an answer with one of the functions above; `Unreadable` if it is malformed."""
    try:
        return read(answer)
    except ValueError as error:
        raise Unreadable(f"etcd gave a malformed answer: {error}") from error
