"""The picture of the layers: what it draws, and that the one in the docs is the present one."""

from __future__ import annotations

import pytest

from scripts.layer_picture import BEGIN, END, PAGE, imports, layers, picture, with_picture


def test_the_picture_in_the_docs_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == with_picture(page, picture(layers(), imports())), "run `make docs`"


def test_an_import_that_follows_from_others_is_not_drawn() -> None:
    drawn = picture(["cli", "broker", "wire"], {"cli": {"broker", "wire"}, "broker": {"wire"}})
    assert "cli --> broker" in drawn
    assert "broker --> wire" in drawn
    assert "cli --> wire" not in drawn


def test_imports_of_what_is_no_layer_are_not_drawn() -> None:
    assert "-->" not in picture(["cli", "broker"], {"cli": {"tailrace"}, "broker": {"cli"}})


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="lacks the lines"):
        with_picture("# Architecture", "a picture")
    assert with_picture(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"
