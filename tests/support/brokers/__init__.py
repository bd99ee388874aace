"""Real brokers and clusters in processes of their own, and disks that fail under them."""
