"""The clients that send the load: the C programs of `c/` and `peer_clients/`, and plain connections.

They know where a server is reached and how to measure what it uses. They know no workload.
"""
