"""The pipeline's requests to brokers: the existing partitions, their first and last offsets; and a producer of batches.

Owns these requests and their errors. Sockets belong to the protocol client. Must not import Spark.
"""
