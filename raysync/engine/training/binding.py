"""A model's parameters as views into one flat vector, and what happens when user code cuts a view.

`p.data = ...`, `load_state_dict(assign=True)`, `LSTM.flatten_parameters()` give a parameter other memory, and
`zero_grad()` gives it another gradient: training would go on beside the flat vector, in silence. `mend` compares
pointers, which takes microseconds, and binds anew.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from raysync.errors import TaskError


class _Slot(NamedTuple):
    """A place in the model where a parameter is registered; a tied one has several."""

    registry: dict[str, nn.Parameter | None]
    key: str


class Binding:
    """The trainable parameters of a model, bound to `flat`; gradients are bound to `grad` where `binds_grad`."""

    def __init__(self, task: str, model: nn.Module, binds_grad: bool = True) -> None:
        self._task, self._binds_grad = task, binds_grad
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(named), list(named.values())
        self._check()
        self._slots, self._shapes = _slots(model, self.parameters), [p.shape for p in self.parameters]
        self._registered = [slot for slots in self._slots for slot in slots]
        self._held = [index for index, slots in enumerate(self._slots) for _ in slots]
        """Which parameter each of them holds."""
        self._known: dict[int, list[int]] = {}
        """Where the stretches of the two vectors in use begin, by the vectors' own beginnings."""
        self.stretches: list[slice] = []
        offset = 0
        for parameter in self.parameters:
            self.stretches.append(slice(offset, offset + parameter.numel()))
            offset += parameter.numel()
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.grad = torch.zeros_like(self.flat)
        for index in range(len(self.parameters)):
            self._bind(index)
        self._versions = self._now()

    def mend(self, is_owned_by_server: bool = False, takes_gradients: bool = False) -> None:
        """Bind anew whatever was cut loose, and take its values over; with `takes_gradients` its gradients, too.

        Where the server owns the parameters (`is_owned_by_server`) other values than the flat vector's would stay
        this worker's own: that is refused with the parameter's name.
        """
        if not self._is_whole():
            for index, slots in enumerate(self._slots):
                self._mend_one(index, slots, is_owned_by_server, takes_gradients)
        versions = self._now()
        if is_owned_by_server and versions != self._versions:
            changed = next(i for i, version in enumerate(versions) if version != self._versions[i])
            raise TaskError(self._task, f"parameter {self.names[changed]!r} was changed in place; {_SERVER_OWNS}")
        self._versions = versions

    def rebind(self, flat: Tensor) -> None:
        """Make the parameters views into another vector of the same length."""
        self.flat = flat
        for parameter, stretch in zip(self.parameters, self.stretches, strict=True):
            parameter.data = flat[stretch].view_as(parameter)
        self._versions = self._now()

    def _is_whole(self) -> bool:
        if [parameter.data_ptr() for parameter in self.parameters] != self._pointers(self.flat):
            return False
        if self._binds_grad:
            gradients = [parameter.grad for parameter in self.parameters]
            pointers = [0 if gradient is None else gradient.data_ptr() for gradient in gradients]
            if pointers != self._pointers(self.grad):
                return False
        found = [registry.get(key) for registry, key in self._registered]
        return all(map(operator.is_, found, [self.parameters[index] for index in self._held]))

    def _pointers(self, flat: Tensor) -> list[int]:
        """Return where in memory every parameter's stretch of a vector begins."""
        base = flat.data_ptr()
        if base not in self._known:
            size = flat.element_size()
            self._known = {**dict([*self._known.items()][-1:]), base: [base + size * s.start for s in self.stretches]}
        return self._known[base]

    def _mend_one(self, index: int, slots: list[_Slot], is_owned_by_server: bool, takes_gradients: bool) -> None:
        name, shape = self.names[index], self._shapes[index]
        found = slots[0].registry.get(slots[0].key)
        if found is None or any(slot.registry.get(slot.key) is not found for slot in slots):
            raise TaskError(self._task, f"parameter {name!r} was removed, or is tied no more; keep the model as it was")
        if found.shape != shape or found.dtype != torch.float32:
            kind = f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
            raise TaskError(
                self._task, f"parameter {name!r} became {kind}; it must stay float32 of shape {tuple(shape)}"
            )
        values = self.flat[self.stretches[index]]
        if not torch.equal(found.detach().reshape(-1), values):
            if is_owned_by_server:
                raise TaskError(self._task, f"parameter {name!r} was given other values; {_SERVER_OWNS}")
            values.copy_(found.detach().reshape(-1))
        if takes_gradients:
            self._take_gradient(index, found)
        if found is not self.parameters[index]:
            self.parameters[index], self._versions[index] = found, found._version
        self._bind(index)

    def _take_gradient(self, index: int, found: nn.Parameter) -> None:
        """Take over a gradient that autograd has put elsewhere; of one that is None there was none."""
        gradient = self.grad[self.stretches[index]]
        if found.grad is None:
            gradient.zero_()
        elif found.grad.data_ptr() != gradient.data_ptr():
            gradient.copy_(_dense(found.grad).reshape(-1))

    def _bind(self, index: int) -> None:
        parameter, stretch = self.parameters[index], self.stretches[index]
        parameter.data = self.flat[stretch].view_as(parameter)
        if self._binds_grad:
            parameter.grad = self.grad[stretch].view_as(parameter)

    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradients there are, as vectors, from where autograd has put them."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                yield _dense(parameter.grad).reshape(-1)

    def non_finite_gradient(self) -> str | None:
        """Return the name of the first parameter whose own gradient holds a NaN or an infinity."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None and not bool(_dense(parameter.grad).isfinite().all()):
                return name
        return None

    def gather_gradients(self) -> None:
        """Copy the gradients into `grad`, where they are not bound to it; of one that is None there is none."""
        for parameter, stretch in zip(self.parameters, self.stretches, strict=True):
            if parameter.grad is None:
                self.grad[stretch].zero_()
            else:
                self.grad[stretch] = _dense(parameter.grad).reshape(-1)

    def hand_out_gradients(self) -> None:
        """Make `grad` the gradient of every parameter, where they are not bound to it: of those without one, too."""
        for parameter, stretch in zip(self.parameters, self.stretches, strict=True):
            gradient = self.grad[stretch].view_as(parameter)
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = gradient.clone()
            else:
                parameter.grad.copy_(gradient)

    def _now(self) -> list[int]:
        return [parameter._version for parameter in self.parameters]

    def _check(self) -> None:
        if not self.parameters:
            raise TaskError(self._task, "model() has no trainable parameters")
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if is_lazy(parameter):
                remedy = "call the model once on a sample before you return it"
                raise TaskError(self._task, f"parameter {name!r} has no shape yet; {remedy}")
        wrong = {str(parameter.dtype) for parameter in self.parameters} - {"torch.float32"}
        if wrong:
            problem = f"model() has parameters of {', '.join(sorted(wrong))}; return it with .float()"
            raise TaskError(self._task, problem)
        by_place = sorted(zip(map(_place, self.parameters), self.names, strict=True))
        for (place, one), (next_place, other) in pairwise(by_place):
            if place.storage == next_place.storage and place.stop > next_place.start:
                remedy = "tie them by making them one Parameter"
                raise TaskError(self._task, f"parameters {one!r} and {other!r} share memory; {remedy}")


_SERVER_OWNS = (
    "with this strategy the server owns the parameters, so the change would stay this worker's own and replicas would "
    "drift apart: use a strategy that averages parameters (selsync, local_sgd), or change them through the loss"
)


def _slots(model: nn.Module, parameters: list[nn.Parameter]) -> list[list[_Slot]]:
    found: dict[int, list[_Slot]] = {id(parameter): [] for parameter in parameters}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in found:
                found[id(parameter)].append(_Slot(module._parameters, key))
    return [found[id(parameter)] for parameter in parameters]


class _Place(NamedTuple):
    """Where a tensor lies in memory, in elements of its storage."""

    storage: int
    start: int
    stop: int


def _place(tensor: Tensor) -> _Place:
    start = int(tensor.storage_offset())
    return _Place(tensor.untyped_storage().data_ptr(), start, start + tensor.numel())


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
