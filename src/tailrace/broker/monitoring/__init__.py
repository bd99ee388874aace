"""The broker's monitoring: counters, metrics as text, health checks, and the HTTP port that serves them."""
