"""raysync: semi-synchronous training over slow, uneven, unreliable networks; the algorithms, without Ray."""

__version__ = "0.1.0"
