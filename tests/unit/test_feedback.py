"""Error feedback: commit, recall, retries, and the warm start."""

from __future__ import annotations

import pytest
import torch

from raysync.compress import FP16, Identity, OneBit, TopK
from raysync.compress.feedback import Feedback
from raysync.compress.registry import decode
from raysync.compress.warmup import codec_for_round
from raysync.errors import PayloadError

KEY = (0, "displacement")


def test_retry_sends_the_same_bytes_and_moves_nothing() -> None:
    feedback, update = Feedback(), torch.arange(10.0)
    first = feedback.squeeze(KEY, 0, update, TopK(ratio=0.2), 1)
    rest = feedback.residual(KEY).clone()
    assert feedback.squeeze(KEY, 0, update * 5, TopK(ratio=0.2), 1) == first
    assert torch.equal(feedback.residual(KEY), rest)
    assert torch.equal(decode(first) + rest, update)


def test_recall_puts_everything_back() -> None:
    feedback, update = Feedback(), torch.randn(100)
    for codec in (OneBit(chunk=32), TopK(ratio=0.1), Identity(), FP16()):
        before = feedback.residual(KEY).clone() if feedback.residual(KEY) is not None else torch.zeros(100)
        feedback.squeeze(KEY, 3, update, codec, 1)
        feedback.recall(KEY, update)
        assert torch.allclose(feedback.residual(KEY), before + update, atol=1e-6)
        assert feedback.pending() == {}


def test_commit_of_another_round_changes_nothing() -> None:
    feedback = Feedback()
    feedback.squeeze(KEY, 3, torch.ones(4), TopK(ratio=0.5), 1)
    feedback.commit(KEY, 2)
    assert feedback.pending() == {KEY: 3}
    feedback.commit(KEY, 3)
    assert feedback.pending() == {}


def test_disabled_feedback_keeps_nothing() -> None:
    feedback = Feedback(enabled=False)
    feedback.squeeze(KEY, 0, torch.randn(50), TopK(ratio=0.1), 1)
    feedback.recall(KEY, torch.zeros(50))
    assert feedback.residuals() == {}
    assert feedback.norm() == 0


def test_norm_follows_the_residuals() -> None:
    feedback = Feedback()
    assert feedback.norm() == 0
    feedback.squeeze(KEY, 0, torch.tensor([3.0, 4.0, 100.0]), TopK(ratio=0.3, values="fp32"), 1)
    assert feedback.norm() == pytest.approx(5.0)
    feedback.commit(KEY, 0)
    feedback.squeeze(KEY, 1, torch.zeros(3), Identity(), 1)
    assert feedback.norm() == 0, "a lossless codec sends what was left"


def test_state_survives() -> None:
    feedback, other = Feedback(), Feedback()
    feedback.squeeze(KEY, 4, torch.randn(20), OneBit(chunk=32), 1)
    other.load_state_dict(feedback.state_dict())
    assert torch.equal(feedback.residual(KEY), other.residual(KEY))
    assert other.pending() == {KEY: 4}
    assert other.norm() == feedback.norm()


def test_refused_update_leaves_the_residual() -> None:
    feedback = Feedback()
    feedback.squeeze(KEY, 0, torch.randn(20), TopK(ratio=0.1), 1)
    feedback.commit(KEY, 0)
    before = feedback.residual(KEY).clone()
    with pytest.raises(PayloadError):
        feedback.squeeze(KEY, 1, torch.full((20,), float("nan")), TopK(ratio=0.1), 1)
    assert torch.equal(feedback.residual(KEY), before)
    assert feedback.pending() == {}


WARMUP = [
    # codec, round, block bytes, dense rounds, ramp rounds, min bytes -> kind and ratio
    (TopK(ratio=0.01), 0, 4096, 0, 0, 0, ("topk", 0.01)),
    (TopK(ratio=0.01), 2, 4096, 3, 0, 0, ("identity", None)),
    (TopK(ratio=0.01), 3, 4096, 3, 0, 0, ("topk", 0.01)),
    (TopK(ratio=0.01), 3, 4096, 3, 3, 0, ("topk", 0.01**0.25)),
    (TopK(ratio=0.01), 5, 4096, 3, 3, 0, ("topk", 0.01**0.75)),
    (TopK(ratio=0.01), 6, 4096, 3, 3, 0, ("topk", 0.01)),
    (OneBit(), 4, 4096, 3, 3, 0, ("identity", None)),
    (OneBit(), 6, 4096, 3, 3, 0, ("onebit", None)),
    (OneBit(), 9, 4095, 0, 0, 4096, ("identity", None)),
    (OneBit(), 9, 4096, 0, 0, 4096, ("onebit", None)),
]


@pytest.mark.parametrize(("codec", "round", "size", "dense", "ramp", "least", "expected"), WARMUP)
def test_warm_start_is_a_table(codec, round, size, dense, ramp, least, expected) -> None:  # type: ignore[no-untyped-def]
    found = codec_for_round(codec, round, size, dense, ramp, least)
    assert found.kind == expected[0]
    if expected[1] is not None:
        assert found.ratio == pytest.approx(expected[1])
