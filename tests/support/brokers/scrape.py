"""What a real broker shows on its monitoring port, read as a scraper reads it."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_SECONDS = 60


class Page(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


def get(port: int, path: str, method: str = "GET") -> Page:
    """Ask for a page with a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Page(response.status, headers, response.read())
    finally:
        connection.close()


class Scrape:
    """Every sample of one look at a broker."""

    def __init__(self, port: int) -> None:
        page = get(port, "/metrics")
        assert page.status == 200, page
        self.families = {family.name: family for family in text_string_to_metric_families(page.body.decode())}
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """One sample; 0 where nothing was counted yet, KeyError where there is no such metric at all."""
        if all(sample != name for sample, _ in self._samples) and name.removesuffix("_total") not in self.families:
            raise KeyError(name)
        return self._samples.get((name, frozenset(labels.items())), 0)

    def sum(self, name: str, **labels: str) -> float:
        """All samples that have these labels among theirs."""
        wanted = set(labels.items())
        return sum(value for (sample, has), value in self._samples.items() if sample == name and wanted <= has)

    def labels_of(self, name: str, label: str) -> set[str]:
        """The values that a label has."""
        return {dict(labels)[label] for sample, labels in self._samples if sample == name and label in dict(labels)}
