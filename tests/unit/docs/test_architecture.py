"""The page on architecture names existing modules, and counts the hops of its walks correctly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "tailrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = PAGE.split("\n## Six walks through the code\n", 1)[1].split("\n## ", 1)[0]
NUMBERS = range(1, 7)
#: What the page says of the code before its restructuring.
FORMER_MODULES = ("broker/leadership", "cluster/controller", "pipeline/brokers")


def rows(text: str) -> list[list[str]]:
    """The cells of the first table in a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def walk(number: int) -> list[tuple[str, list[str]]]:
    """The hops of each row of a walk, as the row numbers them, and the modules that it names for them."""
    section = WALKS.split(f"\n### {number}. ", 1)[1].split("\n### ", 1)[0]
    return [(hops, re.findall(r"`([^`]+)`", modules)) for hops, modules, *_ in rows(section) if hops]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_walk_numbers_each_module_it_comes_to_as_one_hop(number: int) -> None:
    last = 0
    for hops, modules in walk(number):
        first, last = last + 1, last + len(modules)
        assert hops == (f"{first}–{last}" if first < last else str(first))


@pytest.mark.parametrize("number", NUMBERS)
def test_the_totals_are_those_of_the_walks(number: int) -> None:
    modules = [module for _, modules in walk(number) for module in modules]
    _, _, hops, _, files = rows(WALKS)[number - 1]
    assert (int(hops), int(files)) == (len(modules), len(set(modules)))


def test_every_path_on_the_page_exists() -> None:
    paths = set(re.findall(r"`(?!src/)([a-z_]+(?:/[a-z_0-9]+)+)/?`", PAGE))
    known = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py")}
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
    # Where the text makes it plain, the page leaves the first folder out.
    shortened = {path.split("/", 1)[1] for path in known | packages if "/" in path}
    assert len(paths) > 100
    assert paths - known - packages - shortened == set(FORMER_MODULES)
