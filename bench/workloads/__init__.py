"""The workloads: each prepares what it needs and measures once. They know no rounds and no reports."""
