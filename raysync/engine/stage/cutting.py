"""A task's model as a chain of stages: its own `stages(n)`, or an `nn.Sequential` cut by what its layers cost.

Every process of a job cuts for itself and must come to the same: costs are counted on a sample, not timed. A layer
costs as many multiplications as it has parameters, at every position of its output, and one for every element of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raysync.engine.stage.feed import model_input
from raysync.engine.training.replica import seed_generators
from raysync.errors import TaskError
from raysync.pipeline.cut import cut_evenly, put_together
from raysync.tasks.workload import Workload


class Cut(NamedTuple):
    """A model in stages, freshly initialised: as the whole model would be."""

    modules: tuple[nn.Module, ...]
    names: tuple[str, ...]
    """Which layers each stage has."""
    costs: tuple[float, ...]
    """What each stage costs, as a share of the whole; empty where the task made the stages itself."""

    @property
    def told(self) -> str:
        """The cut in words: layers, parameters and cost of every stage."""
        sizes = [sum(parameter.numel() for parameter in module.parameters()) for module in self.modules]
        costs = [f", {cost:.0%} of the cost" for cost in self.costs] or [""] * len(self.modules)
        stages = zip(self.names, sizes, costs, strict=True)
        return "; ".join(f"stage {s}: {name}, {size:,} parameters{cost}" for s, (name, size, cost) in enumerate(stages))


def cut_model(workload: Workload, stages: int, seed: int, device: str = "cpu") -> Cut:
    """Return the stages of a task's model; raise `TaskError` where it cannot be cut."""
    seed_generators(seed, device)
    own = getattr(workload.task, "stages", None)
    cut = _asked(workload, own(stages), stages) if own is not None else _sequential(workload, stages)
    _check_untied(workload.name, cut.modules)
    for number, module in enumerate(cut.modules):
        if not any(parameter.requires_grad for parameter in module.parameters()):
            problem = f"stage {number} ({cut.names[number]}) of {stages} has no trainable parameters"
            raise TaskError(workload.name, f"{problem}; lower scale.stages, or give the task stages(n)")
    return cut


def _asked(workload: Workload, given: Any, stages: int) -> Cut:
    modules = tuple(given) if isinstance(given, Sequence | nn.Sequential) else ()
    if len(modules) != stages or not all(isinstance(module, nn.Module) for module in modules):
        problem = f"stages({stages}) must return {stages} torch.nn.Modules"
        found = f"{len(modules)} things" if modules else type(given).__name__
        raise TaskError(workload.name, f"{problem}, not {found}; lower scale.stages to what it can give")
    names = tuple(", ".join(name for name, _ in module.named_children()) or "its own" for module in modules)
    return Cut(modules, tuple(f"layers {name}" for name in names), ())


def _sequential(workload: Workload, stages: int) -> Cut:
    model = workload.task.model()
    if not isinstance(model, nn.Sequential):
        problem = f"model() returned a {type(model).__name__}; a pipeline cuts an nn.Sequential"
        raise TaskError(workload.name, f"{problem}: return one, or give the task stages(n), or set scale.stages: 1")
    named = list(model.named_children())
    if len(named) < stages:
        raise TaskError(workload.name, f"its model has {len(named)} layers, fewer than scale.stages={stages}")
    costs = layer_costs(workload, [layer for _, layer in named])
    ranges = cut_evenly(costs, stages)
    modules = tuple(nn.Sequential() for _ in ranges)
    for module, layers in zip(modules, ranges, strict=True):
        for name, layer in named[layers.start : layers.stop]:
            module.add_module(name, layer)  # under its old name, so that the whole model's names stay
    names = tuple(
        f"layers {named[part.start][0]} to {named[part.stop - 1][0]}" if len(part) > 1 else f"layer {named[part[0]][0]}"
        for part in ranges
    )
    total = sum(costs)
    return Cut(modules, names, tuple(sum(costs[part.start : part.stop]) / total for part in ranges))


def layer_costs(workload: Workload, layers: Sequence[nn.Module]) -> list[float]:
    """Return what each layer of a chain costs, counted on one sample."""
    batch = workload.batch(np.arange(1))
    costs = []
    with torch.no_grad():
        x = model_input(workload, batch).cpu()
        for layer in layers:
            x = layer.eval()(x)
            if not isinstance(x, Tensor):
                problem = f"a layer returned a {type(x).__name__}; between stages goes one tensor"
                raise TaskError(workload.name, problem)
            positions = x.numel() / max(1, x.shape[-1])
            used = sum(parameter.numel() for kind in layer.modules() for parameter in _multiplied(kind))
            costs.append(float(positions * used + x.numel()))
            layer.train()
    return costs


def _multiplied(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module's own that every position is multiplied with; of an embedding one row is."""
    if isinstance(module, nn.Embedding):
        return []
    return list(module.parameters(recurse=False))


def _check_untied(task: str, modules: Sequence[nn.Module]) -> None:
    owners: dict[int, tuple[int, str]] = {}
    for stage, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            known, other = owners.setdefault(parameter.untyped_storage().data_ptr(), (stage, name))
            if known != stage:
                problem = f"{other!r} of stage {known} and {name!r} of stage {stage} are one tensor"
                raise TaskError(task, f"{problem}; weights tied across stages cannot be trained: untie them")


class Chain(nn.Module):
    """All stages one after the other: the whole model again."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(modules)

    def forward(self, x: Any) -> Any:
        """Return what the last stage makes of it."""
        for stage in self.stages:
            x = stage(x)
        return x

    def whole_state_dict(self) -> dict[str, Tensor]:
        """Return all parameters and buffers under the names they have in their stages; with the stage's number before
        them where two stages use the same.
        """
        return put_together([stage.state_dict() for stage in self.stages])
