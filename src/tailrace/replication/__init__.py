"""Partitions as a replica sees them: who may append, how far readers may read, and which requests wait for what."""
