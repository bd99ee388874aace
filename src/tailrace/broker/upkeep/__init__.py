"""Background work: compaction, scrubbing, and checks whether archives are readable and up to date.

Owns when such work is done. Heavy parts run in the helper process; must not be on the path of a request.
"""
