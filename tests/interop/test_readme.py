"""The README's Python example runs as it stands, apart from the address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.brokers.broker_process import BrokerProcess, free_port

README = Path(__file__).parents[2] / "README.md"


def run_example(bootstrap: str) -> subprocess.CompletedProcess[str]:
    match = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    code = match.group(1).replace("127.0.0.1:9092", bootstrap)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)


def test_without_a_broker_the_example_says_so() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    result = run_example(bootstrap)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert f"UnreachableError: cannot reach a broker at {bootstrap} within 5 s (connection refused)" in last
    assert "start it with: tailrace serve" in last


def test_the_example_produces_and_consumes(broker: BrokerProcess) -> None:
    result = run_example(broker.bootstrap)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 10
    assert lines[-1].endswith("b'0' b'hello 9'")
