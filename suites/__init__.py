"""The clients' own test suites against this broker: which tests there are, how each is run, and what is expected.

`scripts/run_suites.py` is the command line, `scripts/setup-suites` brings the suites. Nothing of them is kept here but
the names of their tests, in `expected/`.
"""
