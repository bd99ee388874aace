"""Consumer groups: who reads which partitions, how far each group has come, and the records that keep it."""
