"""A broker seen from outside: counters, metrics as text, health, and the HTTP port that serves them."""
