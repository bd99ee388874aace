"""Whole clusters in one process, by seed: machines, clients, faults, history, checks, and brokers broken on purpose.

Owns a run of the simulation. Brokers run the real code, through the ports of `tailrace.runtime`.
"""
