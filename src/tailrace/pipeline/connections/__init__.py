"""What the pipeline asks brokers: which partitions there are, where they begin and end; and a producer of batches.

Owns these questions and their errors. Sockets belong to the protocol client. Must not import Spark.
"""
