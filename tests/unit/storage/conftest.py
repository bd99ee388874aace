from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.storage.logs import Logs


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(str(tmp_path / "orders-0"))
