"""The simulation kit: whole brokers in one process, in virtual time, reproducible by seed."""
