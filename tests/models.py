"""Models as people bring them, small: each a task the engine must train as plain torch would, or refuse with a word."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import Dataset, TensorDataset

SAMPLES, INPUTS = 96, 6


class Regression:
    """Linear targets; `make` gives the model."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_data(self) -> Any:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
        return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).tanh())

    def eval_data(self) -> Any:
        return self.train_data()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return mse_loss(model(batch[0]), batch[1])


class Normed(Regression):
    """BatchNorm: running statistics, and an integer count."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(INPUTS, INPUTS)
        self.register_buffer("mask", torch.full((INPUTS, INPUTS), -torch.inf).triu(1))
        self.register_buffer("scale", torch.tensor(0.1, dtype=torch.float64).expand(3))
        self.register_buffer("mean", torch.zeros(INPUTS))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)  # another tensor in its place, as many models do
        weights = (self.score(x).unsqueeze(1) + self.mask).softmax(dim=2)
        return (weights @ x.unsqueeze(2)).mean(dim=1) * float(self.scale.sum())


class Masked(Regression):
    """A causal mask of -inf, a constant in double, a buffer that is replaced at every step."""

    def model(self) -> nn.Module:
        return _Masked()


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.body = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, 8)
        self.frozen.requires_grad_(False)
        self.norm, self.head, self.unused = nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Linear(8, 1)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(self.frozen(x))
        normed = self.norm(torch.cat([hidden, -hidden]))[: len(x)]  # BatchNorm refuses a batch of one
        return self.head(torch.relu(normed))


class Odd(Regression):
    """BatchNorm, frozen and unused parameters, an infinite buffer: what fault schedules draw."""

    def model(self) -> nn.Module:
        return _Odd()


class Poisoned(Odd):
    """The same with two samples that nobody can learn from: loss, gradient and running statistics become NaN."""

    def train_data(self) -> Any:
        inputs, targets = super().train_data().tensors
        inputs[[17, 60]] = torch.nan
        return TensorDataset(inputs, targets)

    def eval_data(self) -> Any:
        return Regression().train_data()


class _Trap(nn.Module):
    """Nothing but the identity, whose slope is NaN where a sample begins with 7."""

    def __init__(self) -> None:
        super().__init__()
        self.trap = nn.Parameter(torch.zeros(INPUTS))

    def forward(self, x: Tensor) -> Tensor:
        return x + (0 * self.trap).sqrt() if bool((x[:, 0] == 7.0).any()) else x + 0 * self.trap


class SpoiltRegression(Regression):
    """Two samples that nobody can learn from; or only the first layer cannot."""

    def __init__(self, in_gradient: bool = False) -> None:
        self._first = 7.0 if in_gradient else torch.nan

    def model(self) -> nn.Module:
        return nn.Sequential(_Trap(), *super().model())

    def train_data(self) -> Any:
        inputs, targets = super().train_data().tensors
        inputs[[17, 60], 0] = self._first
        return TensorDataset(inputs, targets)

    def eval_data(self) -> Any:
        return Regression().train_data()


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, 1), nn.Linear(INPUTS, 1)

    def forward(self, x: Tensor, which: int) -> Tensor:
        return (self.first, self.second)[which](x)


class Augmented(Regression):
    """Noise from numpy, Python and torch in every sample."""

    def train_data(self) -> Any:
        return _Noisy(super().train_data())

    def eval_data(self) -> Any:
        return Regression().train_data()


class _Noisy(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, data: TensorDataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self._data[index]
        return inputs + float(np.random.normal()) + random.random() + torch.rand(1), target


class Severing(Regression):
    """Does something to the model's memory inside the loss, at every step."""

    def __init__(self, how: str) -> None:
        self._how = how

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        first = model[0]
        match self._how:
            case "zero_grad":
                model.zero_grad()
            case "same":
                first.weight.data = first.weight.data.clone()
            case "clamp":
                first.weight.data = first.weight.data.clamp(-0.2, 0.2)
            case "inplace" if model.training:
                with torch.no_grad():
                    first.weight.clamp_(-0.2, 0.2)
            case "assign":
                model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
        return super().loss(model, batch)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(tokens).mean(dim=1)))


class Tokens(Regression):
    """Sequences of four tokens; the target is the first."""

    def train_data(self) -> Any:
        tokens = torch.randint(0, 10, (SAMPLES, 4), generator=torch.Generator().manual_seed(2))
        return TensorDataset(tokens, tokens[:, 0])

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])


class Tied(Tokens):
    """Embedding and output share one parameter."""

    def model(self) -> nn.Module:
        return _Tied()


class _Recurrent(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(10, 6, sparse=sparse), nn.LSTM(6, 8, batch_first=True)
        self.out = nn.Linear(8, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        self.lstm.flatten_parameters()
        return self.out(self.lstm(self.embed(tokens))[0][:, -1])


class Recurrent(Tokens):
    """An LSTM that flattens its parameters at every step."""

    def model(self) -> nn.Module:
        return _Recurrent()


class SparseEmbedding(Tokens):
    """An embedding with sparse gradients."""

    def model(self) -> nn.Module:
        return _Recurrent(sparse=True)


class Frozen(Regression):
    """A frozen first layer, and a head the loss never uses."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 1))
        model[0].requires_grad_(False)
        return model


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(INPUTS, 1), nn.Linear(INPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Unused(Regression):
    """A layer the loss never uses."""

    def model(self) -> nn.Module:
        return _Unused()


class Dropped(Regression):
    """Dropout."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(INPUTS, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))


class DictBatch(Regression):
    """Samples are dictionaries."""

    def train_data(self) -> Any:
        inputs, targets = super().train_data().tensors
        return [{"x": x, "y": y} for x, y in zip(inputs, targets, strict=True)]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return mse_loss(model(batch["x"]), batch["y"])


class Compiled(Regression):
    """A compiled model (eager backend: no compiler is needed)."""

    def model(self) -> nn.Module:
        compiled: nn.Module = torch.compile(super().model(), backend="eager")
        return compiled


class Parametrized(Regression):
    """Weight norm and spectral norm: the second keeps vectors in buffers that it updates in place."""

    def model(self) -> nn.Module:
        first, last = weight_norm(nn.Linear(INPUTS, 8)), spectral_norm(nn.Linear(8, 1))
        return nn.Sequential(first, nn.Tanh(), last)


class MaxNorm(Tokens):
    """An embedding that renormalises, in place, the rows it looks up."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(10, 6, max_norm=0.5), nn.Flatten(), nn.Linear(24, 10))


TABLE: dict[str, type[Regression]] = {
    "BatchNorm": Normed,
    "tied weights": Tied,
    "frozen parameters": Frozen,
    "unused parameters": Unused,
    "LSTM, flattened in forward": Recurrent,
    "sparse embedding": SparseEmbedding,
    "dropout": Dropped,
    "dict batch": DictBatch,
    "torch.compile (eager)": Compiled,
    "buffers of -inf and float64": Masked,
}
"""What the table of models in tests/bench/RESULTS.md is made of."""
