"""Real Ray, real sockets, real processes."""
