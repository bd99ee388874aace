"""Lines between clients and brokers that can be cut, delayed or made to lose requests."""
