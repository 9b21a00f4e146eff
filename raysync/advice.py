"""Combinations of settings that are allowed and known to be fragile, each with what to change: told at submission."""

from __future__ import annotations

from raysync.spec import JobSpec
from raysync.sync import SelSync

_SPARSE_RATIO = 0.02
_HIGH_DELTA = 0.2


def advice(spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence for everything about a job that is worth a second thought before it runs."""
    found = (_server_momentum_with_onebit(spec), _sparse_and_rare(spec))
    return tuple(sentence for sentence in found if sentence is not None)


def _server_momentum_with_onebit(spec: JobSpec) -> str | None:
    """Momentum goes on with what the workers have not seen yet, since one bit per element lags behind it."""
    momentum = getattr(spec.server_optimizer, "momentum", 0.0)
    if not momentum or spec.compression.pull.kind != "onebit":
        return None
    field = "outer.momentum" if spec.server_optimizer is not spec.optimizer else "optimizer.momentum"
    return (
        f"{field}={momentum:g} on the server with pull onebit tends to overshoot: workers see its steps late. Set "
        f"compression.pull to int8 or fp16, or {field} to 0"
    )


def _sparse_and_rare(spec: JobSpec) -> str | None:
    """Few elements at rare moments: most of what is learnt waits in residuals."""
    codec, strategy = spec.compression.push, spec.strategy
    ratio = getattr(codec, "ratio", 1.0)
    if ratio > _SPARSE_RATIO or not isinstance(strategy, SelSync) or strategy.delta == "auto":
        return None
    if strategy.delta < _HIGH_DELTA or strategy.target_lssr is not None or not strategy.signal.has_threshold:
        return None
    return (
        f"strategy.delta={strategy.delta:g} with push {codec.kind} of ratio {ratio:g} sends very little very rarely: "
        "most of what workers learn waits in residuals. Set delta: auto, or compression.push.ratio to 0.05 or more"
    )
