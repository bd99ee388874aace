"""The Kafka protocol as values and bytes, without I/O: frames, messages, and the codec compiled from descriptions."""
