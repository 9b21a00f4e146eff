"""How updates travel between workers and shards, one file per way; `exchange_of` returns the one a job needs.

To add an exchange: write its file, and name it in the table below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from raysync.engine.exchange.base import Exchange
from raysync.engine.exchange.displacement import Displacement
from raysync.engine.exchange.gradient import Gradient
from raysync.engine.exchange.relayed_gradient import RelayedGradient
from raysync.engine.exchange.sparse_parts import SparseParts
from raysync.spec import JobSpec

EXCHANGES: Mapping[str, Exchange] = MappingProxyType(
    {
        "displacement": Displacement(),
        "gradient": Gradient(),
        "relayed_gradient": RelayedGradient(),
        "sparse_parts": SparseParts(),
    }
)


def exchange_of(spec: JobSpec) -> Exchange:
    """Return how the updates of a job travel."""
    return EXCHANGES[spec.strategy.needs.exchange]


__all__ = ["EXCHANGES", "Exchange", "exchange_of"]
