"""Benchmarks: each prints what it measured, with ratios taken in one run."""
