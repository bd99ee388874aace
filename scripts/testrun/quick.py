"""Selects tests for the inner loop: unit tests of changed files, then a selection of the others, within a time budget.

A file has changed if it differs from the point where the branch left origin/main, committed or not. A unit test belongs
to a module if it mirrors its path or imports it. The rest of the selection are the quickest files of each folder, so
that real clients, stores and simulated clusters are included.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scripts.testrun.pieces import ROOT, UNKNOWN_SECONDS, files_of

#: The sum of recorded durations; two lanes take half of that, plus some time to start processes.
BUDGET_SECONDS = 200.0
#: The part of the budget that a folder gets for tests of unchanged files.
CHOICE_SECONDS = {"simulation": 15.0, "contract": 15.0, "interop": 30.0, "fault": 20.0}
#: Only `make test` runs a file that takes longer, even if it changed.
MOST_SECONDS = 60.0


def changed_files(root: Path = ROOT) -> list[str]:
    """Return paths that differ from where this branch left origin/main, or from HEAD if there is no origin/main."""
    base = _git(root, "merge-base", "HEAD", "origin/main") or ["HEAD"]
    tracked = _git(root, "diff", "--name-only", "--diff-filter=d", base[0])
    return sorted({*tracked, *_git(root, "ls-files", "--others", "--exclude-standard")})


def _git(root: Path, *arguments: str) -> list[str]:
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.split("\n")[:-1] if answer.returncode == 0 else []


def choose(changed: Sequence[str], durations: Mapping[str, float], root: Path = ROOT) -> list[str]:
    """Return the test files to run, the most relevant first."""

    def quickest_first(files: Iterable[str]) -> list[str]:
        return sorted(files, key=lambda file: (durations.get(file, UNKNOWN_SECONDS), file))

    unit = files_of("unit", root)
    wanted = [file for file in changed if Path(file).name.startswith("test_") and file.endswith(".py")]
    mirrored = {mirror for file in changed if (mirror := _mirror(file)) in unit}
    wanted += quickest_first(mirrored)
    imports = [statement for file in changed if (statement := _module(file))]
    texts = {file: (root / file).read_text() for file in unit}
    wanted += quickest_first(file for file in unit if any(f"{module} import" in texts[file] for module in imports))

    chosen: dict[str, None] = {}
    left = BUDGET_SECONDS

    def take(files: Iterable[str], bound: float) -> None:
        nonlocal left
        for file in files:
            seconds = durations.get(file, UNKNOWN_SECONDS)
            if file not in chosen and seconds <= MOST_SECONDS and seconds <= min(left, bound):
                chosen[file] = None
                left -= seconds
                bound -= seconds

    reserved = sum(CHOICE_SECONDS.values())
    take(wanted, BUDGET_SECONDS - reserved)
    for folder, seconds in CHOICE_SECONDS.items():
        take(quickest_first(files_of(folder, root)), seconds)
    take(quickest_first(unit), left)
    return list(chosen)


def _mirror(file: str) -> str:
    """Return the unit test that mirrors a module's path."""
    path = Path(file)
    if path.parts[:2] != ("src", "tailrace"):
        return ""
    return str(Path("tests/unit", *path.parts[2:-1], f"test_{path.name}"))


def _module(file: str) -> str:
    """Return the dotted name of a module, or nothing if the file is not one."""
    path = Path(file)
    return ".".join(path.with_suffix("").parts[1:]) if path.parts[0] == "src" and path.suffix == ".py" else ""
