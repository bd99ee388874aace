"""The command line of the benchmarks: `python -m bench SUITE`; `make bench*` first installs what a suite needs.

`python -m bench docs` regenerates the generated parts of pages from the last results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import suites
from bench.harness.page import PageError

DOCS = "docs"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench", description="compare tailrace with its peers, as ratios")
    parser.add_argument(
        "suite", choices=[*suites.NAMES, DOCS], help=f"the suite to run, or {DOCS}: regenerate the pages"
    )
    name = parser.parse_args(arguments[:1]).suite
    return write_docs() if name == DOCS else suites.command(name).run(arguments[1:])


def write_docs() -> int:
    """Write the generated parts of all pages from their last results, if there are any."""
    code = 0
    for name in suites.NAMES:
        for part in suites.command(name).pages:
            try:
                part.write()
            except (PageError, FileNotFoundError) as error:
                print(f"bench {DOCS}: {error}", file=sys.stderr)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
