from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.world import WORLDS, World, make_world


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from make_world(request.param, tmp_path)
