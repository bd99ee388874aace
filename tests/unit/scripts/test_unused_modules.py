"""The check for modules that nothing uses: what counts as a use, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.unused_modules import entry_points, find_modules, unused_modules

Unused = Callable[..., list[str]]


@pytest.fixture
def unused(tmp_path: Path) -> Unused:
    """The unused modules of a package `queue` whose command is `queue.cli`; `__init__.py` files need not be given."""

    def find(**sources: str) -> list[str]:
        for name, text in sources.items():
            path = tmp_path / "src" / "queue" / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            for folder in (path.parent, tmp_path / "src" / "queue"):
                (folder / "__init__.py").touch()
            path.write_text(text)
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "queue"\nscripts = { queue = "queue.cli:main" }\n')
        modules = find_modules(tmp_path / "src")
        return unused_modules(modules, entry_points(tmp_path / "pyproject.toml"), ["queue.testing"])

    return find


def test_a_module_that_nothing_imports_is_found(unused: Unused) -> None:
    assert unused(cli="import queue.log", log="", dead="import queue.log") == ["queue.dead"]


def test_modules_that_only_unused_ones_import_are_found_even_in_a_circle(unused: Unused) -> None:
    assert unused(cli="", one="import queue.two", two="import queue.one", three="import queue.three") == [
        "queue.one",
        "queue.three",
        "queue.two",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import queue.storage.segment",
        "import queue.storage.segment as segment",
        "from queue.storage import segment",
        "from queue.storage.segment import Segment",
        "from .storage.segment import Segment",
        "from .storage import segment",
        "def later():\n    from queue.storage.segment import Segment",
        "TABLE = {'segment': 'queue.storage.segment'}",
    ],
)
def test_every_kind_of_import_and_a_table_of_names_are_uses(unused: Unused, statement: str) -> None:
    assert unused(cli=statement, storage__in__segment="", storage__in__dead="") == ["queue.storage.dead"]


def test_a_package_uses_what_it_passes_on_and_is_loaded_with_what_is_in_it(unused: Unused) -> None:
    found = unused(
        cli="import queue.storage.segment",
        storage__in____init__="from .index import Index\nfrom . import cache",
        storage__in__segment="",
        storage__in__index="",
        storage__in__cache="",
        storage__in__dead="",
    )
    assert found == ["queue.storage.dead"]


def test_a_package_that_loads_all_that_is_in_it_uses_it(unused: Unused) -> None:
    packages = {
        "all__in____init__": "from pkgutil import iter_modules\nfor module in iter_modules(__path__): ...",
        "all__in__one": "",
        "some__in____init__": "",
        "some__in__two": "",
    }
    assert unused(cli="import queue.all, queue.some", **packages) == ["queue.some.two"]


@pytest.mark.parametrize(
    "text",
    ["import logging\nlogger = logging.getLogger('queue.dead')", "'''See queue.dead for more.'''", "import queue"],
)
def test_the_name_of_a_logger_and_a_mention_in_a_text_are_no_uses(unused: Unused, text: str) -> None:
    assert unused(cli=text, dead="") == ["queue.dead"]


def test_programs_and_the_kit_for_tests_are_used_and_so_is_what_they_import(unused: Unused) -> None:
    found = unused(
        __main__="import queue.start",
        start="",
        docs="import queue.text\nif __name__ == '__main__':\n    print()",
        text="",
        testing__in__disk="import queue.port",
        port="",
        cli="",
        testing_kit="",
    )
    assert found == ["queue.testing_kit"]
