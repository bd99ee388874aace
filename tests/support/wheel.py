"""Builds the wheel as a release would, and runs commands away from the checkout, so that nothing comes from there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(
    *command: str | Path, stdin: str = "", timeout_seconds: int = 900, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command to its end and give its output; a failure shows all it printed."""
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        timeout=timeout_seconds,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(output: Path) -> Path:
    """The wheel, built from the source distribution."""
    run(sys.executable, "-m", "build", "--outdir", output, ROOT)
    (built,) = output.glob("*.whl")
    return built
