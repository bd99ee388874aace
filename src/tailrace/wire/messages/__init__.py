"""The messages of the protocol, one module per API; who needs one of them loads no other."""
