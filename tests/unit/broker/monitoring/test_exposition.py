"""Metrics as text are what Prometheus's own parser makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tailrace.broker.monitoring.exposition import Description, Kind, Sample, labels, lines, number
from tailrace.runtime.histogram import Histogram


@given(st.text(), st.text(), st.integers(-(2**63), 2**63) | st.floats(allow_nan=False))
def test_any_label_and_any_value_come_back(first: str, second: str, value: float) -> None:
    description = Description("orders", Kind.GAUGE, 'How "many"\nthere are\\were', ("a", "b"))
    text = "".join(lines(description, [Sample(labels(a=first, b=second), value)]))
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type) == ("orders", "gauge")
    assert family.documentation == 'How "many"\nthere are\\were'
    (sample,) = family.samples
    assert sample.labels == {"a": first, "b": second}
    # Some versions of the parser take every value for a float.
    assert sample.value in (value, float(value))


def test_a_histogram_is_cumulative_and_in_the_unit_of_its_name() -> None:
    histogram = Histogram((0.0001, 0.001, 2.5))
    for seconds in (0.00005, 0.0005, 0.0006, 1.0, 60.0):
        histogram.observe(seconds)
    description = Description("time_ms", Kind.HISTOGRAM, "How long.", ("request",), scale=1000)
    text = "".join(lines(description, [Sample(labels(request="Fetch"), histogram)]))
    (family,) = text_string_to_metric_families(text)
    assert family.type == "histogram"
    buckets = {one.labels["le"]: one.value for one in family.samples if one.name == "time_ms_bucket"}
    assert buckets == {"0.1": 1, "1": 3, "2500": 4, "+Inf": 5}
    others = {one.name: one.value for one in family.samples if one.name != "time_ms_bucket"}
    assert others["time_ms_count"] == 5
    assert abs(others["time_ms_sum"] - 61_001.15) < 0.001
    assert all(one.labels["request"] == "Fetch" for one in family.samples)


def test_a_metric_without_labels_has_no_braces() -> None:
    text = "".join(lines(Description("up_total", Kind.COUNTER, "Up."), [Sample("", 3)]))
    assert text == "# HELP up_total Up.\n# TYPE up_total counter\nup_total 3\n"


def test_numbers_keep_what_they_are() -> None:
    assert number(2**63) == "9223372036854775808"
    assert number(True) == "1"
    assert number(0.1) == "0.1"
    assert [number(float(text)) for text in ("inf", "-inf", "nan")] == ["+Inf", "-Inf", "NaN"]
