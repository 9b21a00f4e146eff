"""`mnist`: the IDX files of MNIST (or any set in its format) from a folder, gzipped or not, and a small perceptron."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from raysync.errors import TaskError
from raysync.tasks.base import Classification, MapDataset, Task, mlp

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "eval": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_MAX_BYTES = 2**30


class MNIST(Classification):
    """Ten classes of grey images; normalised with the usual mean and deviation."""

    kind: Literal["mnist"] = "mnist"
    path_fields: ClassVar[tuple[str, ...]] = ("folder",)
    folder: str
    """Where the four IDX files lie."""
    hidden: tuple[int, ...] = Field(default=(256,), max_length=8)
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many training samples."""

    def build(self) -> Task:
        return self

    def model(self) -> nn.Module:
        """Return a perceptron from pixels to ten classes."""
        rows, columns = read_idx(self._path("eval", 0)).shape[1:]
        return mlp((int(rows * columns), *self.hidden, 10))

    def train_data(self) -> MapDataset:
        """Return the training images and labels."""
        return self._part("train", self.limit)

    def eval_data(self) -> MapDataset:
        """Return the evaluation images and labels."""
        return self._part("eval", None)

    def _part(self, part: str, limit: int | None) -> MapDataset:
        import torch
        from torch.utils.data import TensorDataset

        images, labels = (read_idx(self._path(part, index))[:limit] for index in (0, 1))
        if len(images) != len(labels):
            raise TaskError(
                "mnist",
                f"the {part} files hold {len(images)} images but {len(labels)} labels; get both from one source",
            )
        pixels = (torch.from_numpy(images.reshape(len(images), -1).copy()).float() / 255 - 0.1307) / 0.3081
        return TensorDataset(pixels, torch.from_numpy(labels.copy()).long())

    def _path(self, part: str, index: int) -> Path:
        name = _FILES[part][index]
        alternatives = [name, name + ".gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz"]
        for candidate in (Path(self.folder) / alternative for alternative in alternatives):
            if candidate.is_file():
                return candidate
        raise TaskError(
            "mnist",
            f"{name} (or {name}.gz) is not in folder {self.folder!r}; set task.folder to where the IDX files lie",
        )


def read_idx(path: Path) -> np.ndarray:
    """Return the array of unsigned bytes an IDX file holds; its length must be what its header says."""
    import numpy as np

    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        raise TaskError("mnist", f"{path.name} cannot be read: {error}") from error
    if len(content) > _MAX_BYTES:
        raise TaskError("mnist", f"{path.name} is larger than {_MAX_BYTES} bytes unpacked")
    if len(content) < 4 or content[:3] != b"\0\0\x08" or content[3] not in (1, 3) or len(content) < 4 + 4 * content[3]:
        raise TaskError("mnist", f"{path.name} is not an IDX file of unsigned bytes with one or three dimensions")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    body = memoryview(content)[4 + 4 * content[3] :]
    wanted = 1
    for size in shape:
        wanted *= size
    if len(body) != wanted:
        raise TaskError(
            "mnist",
            f"{path.name} holds {len(body)} bytes but its header {shape} needs {wanted}: it is cut short or damaged",
        )
    return np.frombuffer(body, np.uint8).reshape(shape)
