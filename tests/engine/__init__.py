"""Whole jobs in the simulator: the invariants of the round protocol."""
