"""The connections of one broker: listeners, requests in, responses out in order, routing, and calls to other brokers.

Owns the bytes of sockets and the memory they may use. Must not know what a request means: `handlers/` does.
"""
