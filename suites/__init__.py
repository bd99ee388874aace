"""The clients' own test suites against this broker: which tests they have, how to run each, and the expected result.

`scripts/run_suites.py` is the command line, `scripts/setup-suites` installs the suites. This package keeps only the
names of their tests, in `expected/`.
"""
