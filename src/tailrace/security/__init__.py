"""Who asks, and what they may do: principals, operations on resources, and the ports for an authorizer and quotas.

It must not know requests, handlers or connections: `broker/access` asks it on their behalf.
"""
