"""Who asks, and what they may do: principals, operations on resources, and the port for an authorizer.

It must not know requests, handlers or connections: `broker/access` asks it on their behalf.
"""
