"""Partitions as a replica sees them: who may append, how far readers may see, who waits for what."""
