"""Codecs: bits per element, encode (with residual) and decode-and-add as ratios to a copy of the same array, accuracy.

python -m tests.bench codecs           the table for the README and the JSON lines behind it
python -m tests.bench codecs --large   the same with 100 million floats as well
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from raysync.compress import BF16, FP16, QSGD, Compressor, Identity, Int8, OneBit, RandomK, TopK, kernels
from raysync.compress.registry import decode_add
from raysync.sim import Simulation
from raysync.tasks.workload import Workload
from tests.bench.record import record
from tests.bench.simulated import digits_job

CODECS: dict[str, Compressor] = {
    "identity": Identity(),
    "fp16": FP16(),
    "bf16": BF16(),
    "int8": Int8(),
    "int8 nearest": Int8(rounding="nearest"),
    "onebit": OneBit(),
    "onebit mean_abs": OneBit(scale="mean_abs"),
    "topk 1 %": TopK(ratio=0.01),
    "topk 1/32": TopK(ratio=1 / 32),
    "randomk 1 %": RandomK(ratio=0.01),
    "qsgd": QSGD(),
}
BARS = {"onebit": (3.5, 2.0), "topk 1 %": (6.0, None), "int8": (5.0, None)}
"""The most a codec may cost, in copies of the array: encode, decode-and-add."""
ACCURACY_SEEDS = (7, 8, 9)


def _best_s(action: Callable[[], object], repeats: int) -> float:
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, size: int, repeats: int) -> dict[str, float]:
    """Return size and speed of a codec; every ratio is taken against copies made just before and just after."""
    codec = CODECS[name]
    update = torch.randn(size, generator=torch.Generator().manual_seed(0))
    residual, target = torch.zeros(size), torch.empty(size)
    payload = codec.squeeze(update, residual, 1)
    copies = [_best_s(lambda: target.copy_(update), repeats)]
    encode_s = _best_s(lambda: codec.squeeze(update, residual, 1), repeats)
    copies.append(_best_s(lambda: target.copy_(update), repeats))
    decode_s = _best_s(lambda: decode_add(payload, target, 0.25), repeats)
    copies.append(_best_s(lambda: target.copy_(update), repeats))
    copy_s = sum(copies) / len(copies)
    return {
        "bits": 8 * len(payload) / size,
        "encode": encode_s / copy_s,
        "decode": decode_s / copy_s,
        "copy_ms": 1e3 * copy_s,
    }


def extra_memory(name: str, size: int) -> float:
    """Return what encoding needs beyond update, residual and payload, as a share of the array."""
    codec = CODECS[name]
    update, residual = torch.randn(size), torch.zeros(size)
    codec.squeeze(update[:4096].clone(), torch.zeros(4096), 1)
    before = _peak_bytes()
    payload = codec.squeeze(update, residual, 1)
    return max(0, _peak_bytes() - before - len(payload)) / (4 * size)


def scale_error(size: int) -> float:
    """Return the relative error of a scale over one chunk of `size` elements against an exact sum."""
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    scales = np.empty(1, np.float32)
    kernels.chunk_scales(values, np.zeros_like(values), size, True, scales)
    exact = math.fsum(float(np.abs(part.astype(np.float64)).sum()) for part in np.array_split(values, 1000)) / size
    return abs(float(scales[0]) - exact) / exact


def accuracy(codec: Compressor, workload: Workload) -> float:
    """Return the mean final accuracy of BSP on digits with the codec both ways."""
    compression = {"push": codec.model_dump(), "pull": codec.model_dump()}
    found = []
    for seed in ACCURACY_SEEDS:
        spec = digits_job(
            {"kind": "bsp"},
            compression=compression,
            optimizer={"kind": "sgd", "lr": 0.3},
            lr_schedule={"kind": "cosine", "final_ratio": 0.05},
            scale={"workers": 4, "shards": 2},
            budget={"steps": 1000},
            eval={"every": 1000},
            seed=seed,
        )
        found.append(Simulation(spec, workload=workload).run().metrics["eval/accuracy"])
    return sum(found) / len(found)


def main() -> int:
    """Measure all codecs; print JSON lines and the table."""
    torch.set_num_threads(1)
    workload = Workload(digits_job({"kind": "bsp"}).task.build())
    rows, failed = [], []
    sizes = [10_000_000, 100_000_000] if "--large" in sys.argv else [10_000_000]
    memory = {name: extra_memory(name, 100_000_000 if "--large" in sys.argv else 20_000_000) for name in BARS}
    for name, codec in CODECS.items():
        reached = accuracy(codec, workload)
        for size in sizes:
            found = measure(name, size, 9 if size < 50_000_000 else 4)
            if name in memory:
                found["extra_memory"] = memory[name]
            record("codecs", codec=name, elements=size, accuracy=reached, **found)
            bars = zip((found["encode"], found["decode"]), BARS.get(name, (None, None)), strict=True)
            failed += [
                f"{name} at {size}: {ratio:.2f} > {bar}" for ratio, bar in bars if bar is not None and ratio > bar
            ]
            if size == sizes[0]:
                rows.append(
                    f"| {name} | {found['bits']:.3f} | {found['encode']:.1f} | {found['decode']:.1f} | {100 * reached:.1f} % |"
                )
    record("codecs", scale_error_elements=100_000_000, scale_error=f"{scale_error(100_000_000):.1e}")
    print("\n| codec | bits per element | encode / copy | decode / copy | accuracy |\n|---|---|---|---|---|")
    print("\n".join(rows))
    if failed:
        print("over the bar: " + "; ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
