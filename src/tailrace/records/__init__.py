"""Record batch v2, the one format both on the wire and on disk. No I/O here."""
