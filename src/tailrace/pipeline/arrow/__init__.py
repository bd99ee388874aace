"""Records as Arrow columns and back: decoding batches, encoding rows, and values as JSON or Avro.

Owns bytes and columns. Must not know where they come from or go to.
"""
