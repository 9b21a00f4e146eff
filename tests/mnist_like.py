"""Images in MNIST's format, made here: scikit-learn's digits drawn larger, shifted, turned and scaled at random.

Evaluation images come from other originals than training images.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import affine_grid, grid_sample

from raysync.tasks.digits import read_digits

_TRAIN_ORIGINALS = 1437
SIZE = 28


def write_mnist_like(folder: Path, num_train: int = 8000, num_eval: int = 2000, seed: int = 0) -> Path:
    """Write the four IDX files into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = read_digits()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    parts = {
        "train": (order[:_TRAIN_ORIGINALS], num_train),
        "t10k": (order[_TRAIN_ORIGINALS:], num_eval),
    }
    for name, (originals, count) in parts.items():
        chosen = generator.choice(originals, count)
        images = _drawn(pixels[chosen].reshape(count, 8, 8) / 16, generator)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(_idx(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(_idx(labels[chosen].astype(np.uint8)))
    return folder


def _drawn(small: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return the images drawn at full size, each in its own way."""
    count = len(small)
    angle, scale = generator.uniform(-0.35, 0.35, count), generator.uniform(1.0, 1.5, count)
    shift = generator.uniform(-0.25, 0.25, (count, 2))
    turn = np.stack([np.stack([np.cos(angle), -np.sin(angle)], 1), np.stack([np.sin(angle), np.cos(angle)], 1)], 1)
    theta = np.concatenate([turn * scale[:, None, None], shift[:, :, None]], axis=2)
    grid = affine_grid(torch.from_numpy(theta).float(), [count, 1, SIZE, SIZE], align_corners=False)
    drawn = grid_sample(torch.from_numpy(small).float()[:, None], grid, align_corners=False)[:, 0].numpy()
    noisy = drawn + generator.normal(0, 0.08, drawn.shape)
    return np.asarray(np.clip(255 * noisy, 0, 255), np.uint8)


def _idx(array: NDArray[np.uint8]) -> bytes:
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()
