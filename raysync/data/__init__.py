"""Data order: SelDP, DefDP, label skew and data injection."""

from __future__ import annotations

from raysync.data.partition import Sampler, injected_batch_size

__all__ = ["Sampler", "injected_batch_size"]
