"""Which codec a round really uses: early training is fragile, and small blocks are not worth the trouble."""

from __future__ import annotations

from raysync.compress import AnyCodec, Identity

_DENSE = Identity()


def codec_for_round(
    codec: AnyCodec, round: int, size_bytes: int, dense_rounds: int, ramp_rounds: int, min_bytes: int
) -> AnyCodec:
    """Return what to send a block with in a round.

    Dense for the first `dense_rounds`; then, for codecs with a ratio, a geometric ramp from 1 down to it over
    `ramp_rounds` (the others stay dense so long); dense always for blocks below `min_bytes`.
    """
    if size_bytes < min_bytes or round < dense_rounds:
        return _DENSE
    progress = (round - dense_rounds + 1) / (ramp_rounds + 1)
    if progress >= 1:
        return codec
    ratio: float | None = getattr(codec, "ratio", None)
    if ratio is None:
        return _DENSE
    return codec.model_copy(update={"ratio": ratio**progress})
