"""Searches over job specifications with Ray Tune, one file per search. None is here yet."""
