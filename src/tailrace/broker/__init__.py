"""The broker: configuration, the wire's server side, one handler per API, and the wiring of it all."""
