"""What holds for every test folder."""

from __future__ import annotations

import gc

from hypothesis import settings

# A busy machine must not fail a test.
settings.register_profile("tailrace", deadline=None)
settings.load_profile("tailrace")


def pytest_collection_finish() -> None:
    """Keep the collector away from what lives as long as the run.

    Simulated processes are collected one by one as they end. Beside the modules and tests of a whole folder, each of
    these collections took a hundred times as long as its own garbage needs.
    """
    gc.collect()
    gc.freeze()
