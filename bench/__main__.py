"""The command line of the benchmarks: `python -m bench SUITE`; `make bench*` set up first what a suite needs.

`python -m bench docs` writes the generated parts of pages again from the last results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import suites
from bench.harness.page import PageError

DOCS = "docs"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench", description="tailrace beside its peers, as ratios")
    parser.add_argument("suite", choices=[*suites.NAMES, DOCS], help=f"what to run, or {DOCS}: write the pages again")
    name = parser.parse_args(arguments[:1]).suite
    return write_docs() if name == DOCS else suites.command(name).run(arguments[1:])


def write_docs() -> int:
    """Write every part of a page from its last results, of which there may be none yet."""
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
