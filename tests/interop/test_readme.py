"""The README's Python program and its walk-through run as they stand, apart from the address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.brokers.broker_process import EXECUTABLE, BrokerProcess, free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TIMEOUT_SECONDS = 180


def run_example(bootstrap: str) -> subprocess.CompletedProcess[str]:
    match = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert match is not None
    code = match.group(1).replace("127.0.0.1:9092", bootstrap)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


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


def test_the_walk_through_runs_in_order_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = re.findall(r"^```(sh|text) walk-through\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    shown = [output for language, output in blocks if language == "text"]
    assert len(shown) == 3
    with BrokerProcess(tmp_path / "data") as broker:
        for name, code in re.findall(r"```python\n# (\w+\.py).*?\n(.*?)```", README, re.DOTALL):
            (tmp_path / name).write_text(code.replace("127.0.0.1:9092", broker.bootstrap))
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", "\n".join(text for language, text in blocks if language == "sh")],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{EXECUTABLE.parent}:{os.environ['PATH']}",
                "TAILRACE_BOOTSTRAP": broker.bootstrap,
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed = done.stdout.replace(broker.bootstrap, "127.0.0.1:9092")
    for output in shown:
        assert output in printed
