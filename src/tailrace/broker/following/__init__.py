"""Following other leaders: one fetcher per leader, its session, and the effects of its responses on local partitions.

Owns the follower's side of replication on the network. Must not decide who leads: it follows what the image says.
"""
