"""The generated parts of pages: written from a results file between two marks; the text around them stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.paths import ROOT

COMMAND = "python -m bench docs"


class PageError(Exception):
    """The results or the page do not allow the part to be written."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """One part of one page."""

    results: Path
    page: Path
    text: Callable[[Mapping[str, Any]], str]
    #: Returns why results are not shown, or None if they are.
    refusal: Callable[[Mapping[str, Any]], str | None] = lambda _: None
    #: Whether the chart beside the results is copied beside the page.
    has_chart: bool = False

    @property
    def begin(self) -> str:
        return f"<!-- Generated from {self.results.relative_to(ROOT)} by `{COMMAND}`: begin -->"

    @property
    def end(self) -> str:
        return f"<!-- Generated from {self.results.relative_to(ROOT)}: end -->"

    def replaced(self, page: str, generated: str) -> str:
        """Return the text of a page with this part replaced."""
        if page.count(self.begin) != 1 or page.count(self.end) != 1:
            raise PageError(f"the page must have exactly one part that is generated from {self.results.name}")
        head, rest = page.split(self.begin)
        tail = rest.split(self.end)[1]
        return f"{head}{self.begin}\n\n{generated}\n\n{self.end}{tail}"

    def write(self, results_path: Path | None = None, page_path: Path | None = None) -> None:
        """Write the part from the last results, if they may be shown."""
        results_path, page_path = results_path or self.results, page_path or self.page
        results = json.loads(results_path.read_text())
        if reason := self.refusal(results):
            raise PageError(f"{results_path.name} is {reason}")
        page_path.write_text(self.replaced(page_path.read_text(), self.text(results)))
        if self.has_chart:
            shutil.copyfile(results_path.with_suffix(".svg"), page_path.with_suffix(".svg"))
