"""The README's Python example runs as it stands, apart from the address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import BrokerProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_example_produces_and_consumes(broker: BrokerProcess) -> None:
    match = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    code = match.group(1).replace("127.0.0.1:9092", broker.bootstrap)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 10
    assert lines[-1].endswith("b'0' b'hello 9'")
