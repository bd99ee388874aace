"""Those who send the load: the C programs of `c/` and `peer_clients/`, and plain connections.

They know where a system is reached and how to measure around a request, and no workload.
"""
