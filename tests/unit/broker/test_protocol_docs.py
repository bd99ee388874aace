"""The protocol page is what the handlers serve."""

from __future__ import annotations

from pathlib import Path

from tailrace.broker.handlers import APIS
from tailrace.broker.protocol_docs import main, render

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_is_what_the_table_of_handlers_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_every_served_api_has_a_row_with_its_versions() -> None:
    page = render()
    for key, api in APIS.items():
        name = api.request.__name__.removesuffix("Request")
        assert f"| {name} | {int(key)} | {api.min_version} to {api.max_version} |" in page


def test_the_page_can_be_written_anywhere(tmp_path: Path) -> None:
    main([str(tmp_path / "docs" / "protocol.md")])
    assert (tmp_path / "docs" / "protocol.md").read_text(encoding="utf-8") == render()
