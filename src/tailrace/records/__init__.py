"""Record batch v2: the one format that is on the wire and on disk alike. No I/O here."""
