"""Principals, operations on resources, and the ports for an authorizer and for quotas.

Must not know requests, handlers or connections: `broker/access` calls it for them.
"""
