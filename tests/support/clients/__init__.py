"""Client libraries behind one shape, and a client that sends whatever bytes it is given."""
