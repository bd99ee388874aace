"""The simulation kit: whole brokers in one process, in virtual time, by seed."""
