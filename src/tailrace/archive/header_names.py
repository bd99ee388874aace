"""Names of record headers in files: text for every reader of Parquet, for clients the bytes that were produced.

Nobody checks names when they are produced, and a string of Parquet that is no UTF-8 makes DuckDB and pandas refuse the
whole file. So a name that is no text is stored as U+FFFD, `base64:` and its bytes in base64. A name that begins like
that itself is stored in the same way: each name has one form, and each form is of one name.
"""

from __future__ import annotations

import base64
import binascii

import pyarrow as pa
from pyarrow._compute import MatchSubstringOptions, call_function

MARK = "\ufffdbase64:"
_MARK_BYTES = MARK.encode()
#: What `pyarrow.compute.starts_with` calls; that module takes long to import, and workers do without it.
_WITH_MARK = MatchSubstringOptions(MARK)


def stored(names: pa.Array) -> pa.Array:
    """Names as they were produced, given as bytes, in the form that files have."""
    if _is_text(names) and not _has_marks(names):
        return names.view(pa.string())
    return pa.array([_stored(name) for name in names.to_pylist()], pa.string())


def produced(names: pa.Array) -> pa.Array:
    """Names of a file as the bytes that were produced."""
    plain = names.cast(pa.binary())
    if not _has_marks(plain):
        return plain
    return pa.array([_produced(name) for name in plain.to_pylist()], pa.binary())


def readable(names: pa.Array) -> pa.Array:
    """Names as they were produced, given as bytes, as text for people: what is no text is replaced."""
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
        return name  # of a file from before names were stored in this way
