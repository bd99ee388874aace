"""Work that nobody asked for: compaction, scrubbing, and watching whether archives can be read and keep up.

Owns when such work is done. Heavy parts run in the helper process; must not be on the path of a request.
"""
