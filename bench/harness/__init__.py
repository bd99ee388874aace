"""Carries out suites: rounds, turns, warm-up, progress, failures, results, ratios, charts, pages, the machine.

It knows no system, no client and no workload.
"""
