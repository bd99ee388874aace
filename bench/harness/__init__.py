"""Carries out suites: rounds, turns, warming up, progress, failures, results, ratios, charts, pages, the machine.

It knows no system, no client and no workload.
"""
