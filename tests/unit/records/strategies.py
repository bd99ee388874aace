"""Records as producers may send them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from tailrace.records.record import NewRecord

#: Enough to find what is there to be found, and no clock: the machine may be busy.
quick = settings(max_examples=40)

contents = st.none() | st.binary(max_size=50)
timestamps = st.integers(0, 2**45)
header_names = st.text(st.characters(codec="utf-8"), max_size=10)
headers = st.lists(st.tuples(header_names, contents), max_size=4).map(tuple)
new_records = st.builds(NewRecord, contents, contents, timestamps, headers)
record_lists = st.lists(new_records, min_size=1, max_size=20)
