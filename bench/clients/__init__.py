"""The clients that send the load: the C programs of `c/` and `peer_clients/`, and plain connections.

They know a server's address and how to measure its resource usage. They know no workload.
"""
