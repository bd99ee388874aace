"""The append-only segmented log: one directory per partition, Kafka's file names and formats."""
