"""Batches and records that client libraries refuse to make."""
