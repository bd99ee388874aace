"""What all benchmarks share: processes, the machine and its limits, the page cache, warming up, ratios, charts.

It knows no system and no workload.
"""
