"""The laws every codec obeys by being in the union."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raysync.compress import QSGD, Compressor, Int8, OneBit, RandomK, TopK
from raysync.compress.registry import CODECS, decode, decode_add
from raysync.compress.wire import OVERHEAD_BYTES
from raysync.errors import PayloadError

CHUNK = 64
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "identity": [{}],
    "fp16": [{}],
    "bf16": [{}],
    "int8": [{"chunk": CHUNK}, {"chunk": CHUNK, "rounding": "nearest"}],
    "onebit": [{"chunk": CHUNK}, {"chunk": CHUNK, "scale": "mean_abs"}],
    "topk": [{"ratio": 0.1}, {"ratio": 0.01, "values": "fp32"}, {"ratio": 1.0}],
    "randomk": [{"ratio": 0.1}, {"ratio": 0.3, "unbiased": True}, {"ratio": 1.0}],
    "qsgd": [{"chunk": CHUNK}, {"chunk": CHUNK, "levels": 1}],
}
INSTANCES = [codec(**fields) for codec in CODECS for fields in VARIANTS[codec.model_fields["kind"].default]]
SIZES = [0, 1, 7, 8, 9, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 1000]


def _name(codec: Compressor) -> str:
    fields = codec.model_dump(exclude={"kind"})
    return codec.kind + "".join(f"-{value}" for value in fields.values())


each_codec = pytest.mark.parametrize("codec", INSTANCES, ids=_name)


def _vector(size: int, seed: int = 0, kind: str = "normal") -> Tensor:
    generator = np.random.default_rng(seed)
    values = {
        "normal": lambda: generator.standard_normal(size),
        "heavy": lambda: generator.standard_t(2, size) * 10.0 ** generator.integers(-6, 6, size),
        "sparse": lambda: generator.standard_normal(size) * (generator.random(size) < 0.05),
        "equal": lambda: np.where(generator.random(size) < 0.5, 0.25, -0.25),
        "zeros": lambda: np.where(generator.random(size) < 0.5, 0.0, -0.0),
        "denormal": lambda: generator.standard_normal(size) * 1e-41,
        "large": lambda: generator.standard_normal(size) * 1e30,
    }[kind]()
    return torch.from_numpy(np.asarray(values, np.float32))


KINDS = ["normal", "heavy", "sparse", "equal", "zeros", "denormal", "large"]


def test_union_and_variants_name_the_same_codecs() -> None:
    assert set(VARIANTS) == {codec.model_fields["kind"].default for codec in CODECS}
    assert len({codec.number for codec in CODECS}) == len(CODECS)


@each_codec
def test_codec_is_a_value(codec: Compressor) -> None:
    assert type(codec).model_validate_json(codec.model_dump_json()) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec


@each_codec
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_from_the_bytes_alone(codec: Compressor, size: int, kind: str) -> None:
    v = _vector(size, 1, kind)
    payload = codec.encode(v, 5)
    assert isinstance(payload, bytes)
    assert payload == codec.encode(v.clone(), 5), "equal arguments, equal bytes"
    decoded = decode(payload)
    assert (decoded.dtype, decoded.shape) == (torch.float32, v.shape)
    assert bool(decoded.isfinite().all())
    assert torch.equal(decoded, decode(bytes(bytearray(payload)), size))
    if codec.lossless:
        assert torch.equal(decoded, v)


@each_codec
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_residual_is_what_the_receiver_misses(codec: Compressor, size: int, kind: str) -> None:
    update, old = _vector(size, 2, kind), _vector(size, 3, kind) * 0.5
    residual = old.clone()
    payload = codec.squeeze(update, residual, 11)
    v, decoded = update + old, decode(payload)
    scale = decoded.abs().maximum(v.abs()).double()
    error = (decoded.double() + residual.double() - v.double()).abs()
    assert bool((error <= 2.0**-23 * scale).all())
    if codec.kind in ("identity", "topk", "fp16", "bf16") and kind != "large":
        assert torch.equal(decoded + residual, v), "exact where arithmetic allows"
    assert torch.equal(residual, v - decoded)


@each_codec
def test_views_that_do_not_lie_in_a_row(codec: Compressor) -> None:
    wide, rests = _vector(600, 4), torch.zeros(600)
    v, residual = wide[::3], rests[1::3]
    plain = torch.zeros(200)
    assert codec.squeeze(v, residual, 3) == codec.squeeze(v.clone(), plain, 3)
    assert torch.equal(residual, plain)
    assert float(rests[0::3].abs().max()) == float(rests[2::3].abs().max()) == 0, "its neighbours are untouched"
    out, flat = torch.zeros(400)[::2], torch.zeros(200)
    payload = codec.encode(v, 3)
    decode_add(payload, out, 0.5)
    decode_add(payload, flat, 0.5)
    assert torch.allclose(out, flat)


@each_codec
@pytest.mark.parametrize("size", [0, 1, 33, 1000])
def test_decode_add_is_decode_and_add(codec: Compressor, size: int) -> None:
    payload, out = codec.encode(_vector(size, 5), 9), _vector(size, 6)
    expected = out.double() + 0.3 * decode(payload).double()
    decode_add(payload, out, 0.3)
    assert torch.allclose(out.double(), expected, rtol=1e-5, atol=1e-6)
    exact = torch.zeros(size)
    decode_add(payload, exact)
    assert torch.equal(exact, decode(payload))
    with pytest.raises(PayloadError, match=f"it holds {size} elements"):
        decode_add(payload, torch.zeros(size + 1))


@each_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 50, 99])
def test_nan_and_infinity_never_reach_a_residual(codec: Compressor, bad: float, where: int) -> None:
    update, residual = _vector(100, 7), _vector(100, 8)
    update[where] = bad
    before = residual.clone()
    with pytest.raises(PayloadError, match="NaN or an infinity"):
        codec.squeeze(update, residual, 0)
    assert torch.equal(residual, before)
    with pytest.raises(PayloadError):
        codec.encode(update, 0)


@each_codec
@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100),
        max_size=150,
    ),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_finite_numbers_are_conserved(codec: Compressor, values: list[float], seed: int) -> None:
    v = torch.tensor(values, dtype=torch.float32)
    residual = torch.zeros_like(v)
    decoded = decode(codec.squeeze(v, residual, seed), len(v))
    scale = decoded.abs().maximum(v.abs()).double()
    assert bool(((decoded.double() + residual.double() - v.double()).abs() <= 2.0**-23 * scale).all())


@each_codec
def test_error_feedback_delays_but_does_not_lose(codec: Compressor) -> None:
    """After T rounds the sum of what was decoded plus the residual is the sum of what was offered."""
    residual, offered, received = (
        torch.zeros(500),
        torch.zeros(500, dtype=torch.float64),
        torch.zeros(500, dtype=torch.float64),
    )
    largest = 0.0
    for step in range(200):
        update = _vector(500, 100 + step)
        received += decode(codec.squeeze(update, residual, step)).double()
        offered += update.double()
        largest = max(largest, float(residual.abs().max()))
    assert float((offered - received - residual.double()).abs().max()) <= 200 * 2.0**-23 * max(1.0, largest)
    if codec.error_bound < 1:
        assert float(residual.norm()) <= 12 * math.sqrt(500) / math.sqrt(min(1.0, getattr(codec, "ratio", 1.0) * 10)), (
            "it stays bounded"
        )


SIZE_BITS = {
    "identity": lambda c, n: 32 * n,
    "fp16": lambda c, n: 16 * n,
    "bf16": lambda c, n: 16 * n,
    "int8": lambda c, n: 8 * n + 32 * -(-n // c.chunk) + 8,
    "onebit": lambda c, n: 8 * -(-n // 8) + 32 * -(-n // c.chunk) + 8,
    "randomk": lambda c, n: 32 * min(n, max(1, round(c.ratio * n))) + 96,
}


@each_codec
@pytest.mark.parametrize("size", SIZES)
def test_size_is_the_formula(codec: Compressor, size: int) -> None:
    if codec.kind in SIZE_BITS:
        assert 8 * (len(codec.encode(_vector(size), 0)) - OVERHEAD_BYTES) == SIZE_BITS[codec.kind](codec, size)
    else:
        assert codec.kind in ("topk", "qsgd"), "entropy-coded: see the bounds below"


def test_sizes_meet_their_bounds() -> None:
    v = _vector(1 << 20, 3)
    assert 8 * len(OneBit().encode(v, 0)) / len(v) <= 1.02
    for p in (0.01, 1 / 32, 0.001):
        entropy = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
        assert 8 * len(TopK(ratio=p).encode(v, 0)) / len(v) <= 1.15 * (entropy + 16 * p)
    assert 8 * len(QSGD().encode(v, 0)) / len(v) <= 3.8


# What the single codecs promise


TORCH_TWINS = [
    *(OneBit(chunk=chunk, scale=scale) for chunk in (32, 64, 4096) for scale in ("rms", "mean_abs")),
    *(Int8(chunk=chunk, rounding=rounding) for chunk in (32, 4096) for rounding in ("stochastic", "nearest")),
    *(QSGD(chunk=chunk, levels=levels) for chunk in (32, 512) for levels in (1, 4)),
    *(TopK(ratio=ratio, values=values) for ratio in (0.01, 0.1, 1.0) for values in ("fp16", "fp32")),
]


@pytest.mark.parametrize("codec", TORCH_TWINS, ids=_name)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_path_gives_the_same_bytes(codec: Any, kind: str) -> None:
    """What a GPU would run, here on CPU tensors, against the compiled kernels: same payload, same residual."""
    for size in (0, 1, 31, 33, 4095, 4097, 50_000):
        update, first = _vector(size, 1, kind), _vector(size, 2, kind) * 0.3
        second = first.clone()
        fast = codec.squeeze(update, first, 77)
        plain = (
            codec._squeeze_torch(update, second)
            if hasattr(codec, "_squeeze_torch")
            else codec._squeeze(update, second, 77, in_torch=True)
        )
        assert fast == plain
        assert torch.equal(first, second)


@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "equal", "zeros"])
@pytest.mark.parametrize("size", [50, 5000, 200_000])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.5])
def test_topk_keeps_exactly_the_largest(kind: str, size: int, ratio: float) -> None:
    v = _vector(size, 9, kind)
    kept = decode(TopK(ratio=ratio, values="fp32").encode(v, 0))
    number = max(1, round(ratio * size))
    order = sorted(range(size), key=lambda i: (-abs(float(v[i])), i))[:number] if size <= 5000 else None
    if order is not None:
        expected = torch.zeros(size)
        expected[order] = v[order]
        assert torch.equal(kept, expected + 0.0)
    error = float((v.double() - kept.double()).square().sum())
    assert error <= (1 - number / size) * float(v.double().square().sum()) * (1 + 1e-9)


def test_onebit_scales_and_errors_are_the_formulas() -> None:
    v = _vector(64, 3).double()
    rho = float(v.abs().sum() / (math.sqrt(64) * v.norm()))
    rms = decode(OneBit(chunk=64).encode(v.float(), 0)).double()
    mean_abs = decode(OneBit(chunk=64, scale="mean_abs").encode(v.float(), 0)).double()
    assert float(rms.norm()) == pytest.approx(float(v.norm()), rel=1e-6), "RMS keeps the norm"
    assert float((v - rms).square().sum() / v.square().sum()) == pytest.approx(2 * (1 - rho), rel=1e-5)
    assert float((v - mean_abs).square().sum() / v.square().sum()) == pytest.approx(1 - rho**2, rel=1e-5)
    again = decode(OneBit(chunk=64).encode(rms.float(), 0))
    assert torch.allclose(again, rms.float(), rtol=1e-6), "a decoded vector is a fixed point"


def test_zero_of_either_sign_counts_as_positive() -> None:
    v = torch.tensor([0.0, -0.0, 1.0, -1.0] * 16)
    decoded = decode(OneBit(chunk=64).encode(v, 0))
    assert bool((decoded[v == 0] > 0).all())


def test_padding_takes_no_part() -> None:
    """A block of ten elements has the scale of its ten elements (published code divides by the padded length)."""
    v = torch.full((10,), 3.0)
    assert decode(OneBit(chunk=64).encode(v, 0)).tolist() == [3.0] * 10


@pytest.mark.parametrize(
    "codec", [RandomK(ratio=0.25, unbiased=True), QSGD(chunk=32, levels=2), Int8(chunk=32)], ids=_name
)
def test_unbiased_codecs_are_unbiased(codec: Compressor) -> None:
    v, rounds = _vector(96, 12), 4000
    draws = torch.stack([decode(codec.encode(v, seed)) for seed in range(rounds)]).double()
    deviation = (draws.mean(dim=0) - v.double()).abs()
    standard_error = draws.std(dim=0) / math.sqrt(rounds) + 1e-7
    assert float((deviation / standard_error).max()) < 4.5


def test_qsgd_variance_is_within_its_bound() -> None:
    v, levels = _vector(512, 1).double(), 4
    errors = [
        float((decode(QSGD(chunk=512, levels=levels).encode(v.float(), seed)).double() - v).square().sum())
        for seed in range(200)
    ]
    assert np.mean(errors) <= min(512 / levels**2, math.sqrt(512) / levels) * float(v.square().sum())


def test_randomk_draws_distinct_positions_from_the_seed_alone() -> None:
    from raysync.compress.randomk import draw

    for count, kept in ((1, 1), (10, 3), (1000, 999), (4096, 41)):
        positions, lengths = draw(count, kept, 123)
        assert len(set(positions.tolist())) == kept
        assert positions.max() < count
        assert float(lengths.sum()) == count
        assert np.array_equal(positions, draw(count, kept, 123)[0])
    assert draw(1000, 50, 1)[0].tolist() != draw(1000, 50, 2)[0].tolist()
    assert draw(1000, 5, 2**63 - 1)[0].tolist() == [133, 239, 447, 680, 883], (
        "fixed for ever: other machines rely on it"
    )


def test_fp16_clamps_and_keeps_the_rest() -> None:
    from raysync.compress import FP16

    residual = torch.zeros(2)
    decoded = decode(FP16().squeeze(torch.tensor([1e6, -1e6]), residual, 0))
    assert decoded.tolist() == [65504.0, -65504.0]
    assert residual.tolist() == [1e6 - 65504.0, 65504.0 - 1e6]


@pytest.mark.parametrize("codec", [Int8(chunk=64), QSGD(chunk=64)], ids=_name)
def test_extreme_levels_do_not_wrap_around(codec: Compressor) -> None:
    """127 + 0.9999999 rounds to 128 in fp32; a level must stay what its own decoder accepts."""
    for sign in (1.0, -1.0):
        v = torch.zeros(1 << 18)
        v[::64] = sign
        dense = v if codec.kind == "qsgd" else torch.full_like(v, sign)
        for seed in range(20):
            assert float((decode(codec.encode(dense, seed)) - dense).abs().max()) <= 0.07, "at most one level off"


def test_sum_that_overflows_is_refused_before_it_is_kept() -> None:
    for codec in INSTANCES:
        if codec.lossless or codec.kind in ("fp16", "bf16"):
            continue
        update, residual = torch.full((40,), 3e38), torch.full((40,), 3e38)
        with pytest.raises(PayloadError):
            codec.squeeze(update, residual, 0)
        assert bool((residual == 3e38).all())


_USED = """
import os, sys
import torch
from raysync.compress import kernels
from tests.conformance.test_codecs import INSTANCES, _vector

for codec in INSTANCES:
    child = os.fork()
    if child == 0:
        codec.prepare()
        ready = kernels.num_loaded()
        for kind in ("normal", "equal", "zeros"):
            for size in (1, 33, 5000):
                numbers, out = _vector(size, kind=kind), torch.zeros(size)
                payload = codec.squeeze(numbers, out, 3)
                parted = bytearray(payload)
                for arrived in (payload, memoryview(payload), parted, memoryview(parted), memoryview(payload).toreadonly()):
                    codec.decode(arrived, size)
                    codec.decode_add(arrived, out, 0.25)
        sys.stdout.flush()
        os._exit(kernels.num_loaded() - ready)
    late = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"{codec!r}: {late}")
"""


def test_a_codec_that_is_prepared_compiles_nothing_later() -> None:
    done = subprocess.run([sys.executable, "-c", _USED], capture_output=True, text=True, check=True, timeout=110)
    late = [line for line in done.stdout.splitlines() if not line.endswith(": 0")]
    assert late == []
    assert len(done.stdout.splitlines()) == len(INSTANCES)
