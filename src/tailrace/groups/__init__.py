"""Consumer groups: members, assignments, committed offsets, and the records that store them."""
