"""Thin Ray shells over the cores of `raysync.engine`; they arrive with the Ray runtime."""
