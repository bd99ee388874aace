"""Connections of one broker: listeners, frames in, answers out in order, routing to handlers, calls to other brokers.

Owns sockets' bytes and the memory they may take. Must not know what a request means: `handlers/` does.
"""
