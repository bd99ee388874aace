"""What is measured: each workload prepares what it needs and measures once. It knows no rounds and no reports."""
