"""Names of headers in files: text for every reader, and the very bytes that were produced for every client."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.archive.header_names import MARK, produced, readable, stored

ODD_NAMES = st.one_of(st.binary(max_size=8), st.text(max_size=8).map(str.encode), st.just(MARK.encode()))


@given(st.lists(ODD_NAMES | st.binary(max_size=4).map(lambda end: MARK.encode() + end), max_size=6))
def test_what_is_stored_is_text_and_gives_back_the_bytes(names: list[bytes]) -> None:
    kept = stored(pa.array(names, pa.binary()))
    kept.validate(full=True)
    assert kept.type == pa.string()
    assert produced(kept).to_pylist() == names
    for name, text in zip(names, kept.to_pylist(), strict=True):
        assert text.startswith(MARK) or text.encode() == name


def test_people_see_text_and_files_from_before_are_read_as_they_are() -> None:
    assert readable(pa.array([b"trace", b"\xff"], pa.binary())).to_pylist() == ["trace", "\ufffd"]
    old = pa.array([b"na\xffe", f"{MARK}!".encode()], pa.binary()).view(pa.string())
    assert produced(old).to_pylist() == [b"na\xffe", f"{MARK}!".encode()]
