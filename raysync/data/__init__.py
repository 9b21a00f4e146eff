"""Who reads which samples: SelDP and DefDP order, label skew, data injection. Everything is pure in (seed, view,
worker, step), so a batch can be read again after a restart.
"""

from __future__ import annotations

from raysync.data.partition import Indices, Sampler, injected_batch_size

__all__ = ["Indices", "Sampler", "injected_batch_size"]
