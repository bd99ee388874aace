"""A blocking client of the protocol: connections to brokers, and a cluster as its brokers describe it.

Owns sockets, the choice of versions, retries, and the place for authentication. It may use `wire`, `records` and
`runtime`. It must not know the inside of brokers, confluent-kafka, Spark or Arrow.
"""
