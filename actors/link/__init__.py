"""How cores on different processes reach each other: one port, two transports, one conformance suite."""
