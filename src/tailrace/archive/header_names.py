"""Names of record headers in files: text for every Parquet reader, the produced bytes for clients.

Nothing checks header names when they are produced, and a Parquet string that is not UTF-8 makes DuckDB and pandas
refuse the whole file. So a name that is not text is stored as U+FFFD, `base64:` and its bytes in base64. A name that
itself starts like that is stored in the same way, so the mapping is one to one.
"""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa
from pyarrow._compute import MatchSubstringOptions, call_function

MARK = "\ufffdbase64:"
_MARK_BYTES = MARK.encode()
#: The function behind `pyarrow.compute.starts_with`; importing that module takes long, so workers avoid it.
_WITH_MARK = MatchSubstringOptions(MARK)


def stored(names: pa.Array) -> pa.Array:
    """Names in the form of files, from the bytes that were produced."""
    if _is_text(names) and not _has_marks(names):
        return names.view(pa.string())
    return pa.array([_stored(name) for name in names.to_pylist()], pa.string())


def produced(names: pa.Array) -> pa.Array:
    """Names as the bytes that were produced, from the form of files."""
    plain = names.cast(pa.binary())
    if not _has_marks(plain):
        return plain
    return pa.array([_produced(name) for name in plain.to_pylist()], pa.binary())


def readable(names: pa.Array) -> pa.Array:
    """Names as text for people, from the bytes that were produced; undecodable bytes are replaced."""
    if _is_text(names):
        return names.view(pa.string())
    return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _is_text(names: pa.Array) -> bool:
    try:
        names.view(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _has_marks(names: pa.Array) -> bool:
    return bool(call_function("starts_with", [names], _WITH_MARK).true_count)


def _stored(name: bytes) -> str:
    if not name.startswith(_MARK_BYTES):
        try:
            return name.decode()
        except UnicodeDecodeError:
            pass
    return MARK + base64.b64encode(name).decode()


def _produced(name: bytes) -> bytes:
    if not name.startswith(_MARK_BYTES):
        return name
    try:
        return base64.b64decode(name.removeprefix(_MARK_BYTES), validate=True)
    except binascii.Error:
        return name  # the file is older than this encoding
