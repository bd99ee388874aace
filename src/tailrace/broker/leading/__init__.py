"""Leadership: the controller, leadership handover, the ISRs of led partitions, and what a lost lease means.

Owns when leaders and ISRs change. Writes them only through `cluster/`; must not touch records.
"""
