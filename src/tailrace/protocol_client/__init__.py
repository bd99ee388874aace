"""One blocking client of the protocol: connections to brokers, and a cluster as its brokers describe it.

Owns sockets, the choice of versions, retries, and the place where connections prove who they are. It may touch `wire`,
`records` and `runtime`. It must not know the inside of brokers, confluent-kafka, Spark or Arrow.
"""
