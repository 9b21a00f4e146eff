"""`char_lm`: a byte-level GPT on a text file, by default on the Python standard library's own sources."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from raysync.errors import TaskError
from raysync.tasks.base import MapDataset, Task, TaskSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

_EVAL_SHARE = 0.1


class CharLM(TaskSpec):
    """Predict the next byte."""

    kind: Literal["char_lm"] = "char_lm"
    metric_names: ClassVar[tuple[str, ...] | None] = ("eval/loss", "eval/accuracy")
    path_fields: ClassVar[tuple[str, ...]] = ("corpus",)
    width: int = Field(default=64, ge=8)
    depth: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)
    context: int = Field(default=64, ge=2)
    """Bytes the model sees at once."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    corpus: str | None = None
    """A text file; default: the standard library's sources in alphabetical order."""
    corpus_bytes: int = Field(default=1_000_000, ge=1_000)
    """How much of the corpus to use."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        return self

    def build(self) -> Task:
        return self

    def model(self) -> nn.Module:
        """Return the untrained GPT."""
        from raysync.tasks.gpt import GPT

        return GPT(self.width, self.depth, self.heads, self.context, self.dropout)

    def train_data(self) -> MapDataset:
        """Return the first nine tenths of the corpus as windows of `context` + 1 bytes."""
        return self._windows(0.0, 1 - _EVAL_SHARE)

    def eval_data(self) -> MapDataset:
        """Return the last tenth of the corpus."""
        return self._windows(1 - _EVAL_SHARE, 1.0)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean cross-entropy per byte, in nats."""
        from torch.nn.functional import cross_entropy

        (windows,) = batch
        return cross_entropy(model(windows[:, :-1].long()).flatten(0, 1), windows[:, 1:].long().flatten())

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the mean cross-entropy per byte, and the share of bytes predicted right."""
        from torch.nn.functional import cross_entropy

        (windows,) = batch
        scores, wanted = model(windows[:, :-1].long()).flatten(0, 1), windows[:, 1:].long().flatten()
        accuracy = (scores.argmax(dim=1) == wanted).float().mean()
        return {"loss": cross_entropy(scores, wanted), "accuracy": accuracy}

    def _windows(self, start: float, stop: float) -> MapDataset:
        import torch
        from torch.utils.data import TensorDataset

        text = read_corpus(self.corpus, self.corpus_bytes)
        length = self.context + 1
        part = text[int(start * len(text)) : int(stop * len(text))]
        count = len(part) // length
        if count == 0:
            raise TaskError(
                "char_lm", f"a corpus of {len(text)} bytes is too short for context {self.context}; give a longer file"
            )
        return TensorDataset(torch.frombuffer(bytearray(part[: count * length]), dtype=torch.uint8).view(count, length))


@lru_cache(maxsize=4)
def read_corpus(path: str | None, limit: int) -> bytes:
    """Return up to `limit` bytes of a file, or of the standard library's sources."""
    if path is not None:
        try:
            with open(path, "rb") as file:
                return file.read(limit)
        except OSError as error:
            raise TaskError(
                "char_lm", f"corpus {path!r} cannot be read: {error.strerror}; set task.corpus to a text file"
            ) from error
    text = b""
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += source.read_bytes()
        if len(text) >= limit:
            break
    return text[:limit]
