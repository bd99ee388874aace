"""Following other leaders: one fetcher per leader, its session, and what its answers do to the partitions here.

Owns the follower's side of replication on the network. Must not decide who leads: it follows what the image says.
"""
