"""The messages of the protocol, one module per API, so that each can be imported separately."""
