"""Leadership: the controller, handing leadership over, the ISRs of what is led here, and what an ended lease means.

Owns when leaders and ISRs change. Writes them only through `cluster/`; must not touch records.
"""
