"""Fleets of consumer group members, each a process of its own."""
