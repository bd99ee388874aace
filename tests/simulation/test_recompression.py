"""Crashes under producers whose batches the broker recompresses: the promises are the same as for batches kept as sent.

Every batch takes the way of the large ones, through a thread, so that power cuts and lost connections meet batches that
are being prepared and others that wait behind them. Seeds and replay as in test_crash_recovery.
"""

from __future__ import annotations

import pytest

from tailrace.replication import preparation
from tailrace.testing.loop import SimLoop
from tests.simulation.seeds import chunks_of_seeds, name_of_chunk
from tests.simulation.test_crash_recovery import Run, simulate

SEEDS_PER_TEST = 25
CODECS = ("zstd", "uncompressed", "gzip", "snappy")


def run_seed(seed: int) -> Run:
    codec = CODECS[seed % len(CODECS)]
    try:
        return SimLoop(seed, max_virtual_seconds=3600).run(simulate(seed, {"compression.type": codec}))
    except BaseException as error:
        error.add_note(f"replay with: TAILRACE_SIM_SEED={seed} pytest tests/simulation/test_recompression.py")
        raise


@pytest.mark.parametrize("seeds", chunks_of_seeds(SEEDS_PER_TEST, one_in=10), ids=name_of_chunk)
def test_batches_that_are_prepared_are_promised_like_others(seeds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_SMALL_BYTES", 0)
    runs = [run_seed(seed) for seed in seeds]
    crashes = sum(run.crashes for run in runs)
    acknowledged = sum(run.acknowledged for run in runs)
    print(f"{len(runs)} seeds from {seeds[0]} on: {crashes} crashes, {acknowledged} records acknowledged")
    assert acknowledged > 0
