"""A batch whose loss or update is not finite counts for nothing, is told of, and ends a job only where many are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from raysync.address import worker
from raysync.engine.training.divergence import IN_A_ROW, IN_WINDOW, Skips
from raysync.errors import Diverged, SpecError
from raysync.sim import Simulation
from raysync.tasks.workload import Workload
from tests import models
from tests.audit import AuditedSimulation
from tests.jobs import EVERY, SYNCHRONOUS, WatchedSimulation, final_vector, job

ONEBIT = {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "onebit", "chunk": 32}}


class Spoilt(models.Regression):
    """Two samples whose loss is multiplied by `value`."""

    def __init__(self, value: float) -> None:
        self._value = value

    def train_data(self) -> Any:
        inputs, targets = super().train_data().tensors
        targets[[17, 60]] = 7.0
        return torch.utils.data.TensorDataset(inputs, targets)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().loss(model, batch) * (self._value if bool((batch[1] == 7.0).any()) else 1.0)


class Steep(models.Regression):
    """Loss and gradient of some batches are finite, the step along them is not."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        is_steep = bool((batch[0][:, 0] > 2.0).any())
        return 0.01 * super().loss(model, batch) + (3e38 * model[2].bias.sum() if is_steep else 0.0)


def told(simulation: Simulation) -> list[Any]:
    """Return the batches that are said to count for nothing."""
    return [event for event in simulation.ledger.events if event.kind == "divergence"]


@pytest.mark.parametrize("name", EVERY)
def test_a_batch_that_is_not_finite_is_skipped_and_told_of(name: str) -> None:
    spec = job(EVERY[name], data={"batch_size": 4}, compression=ONEBIT, optimizer={"kind": "adam", "lr": 0.01})
    simulation = AuditedSimulation(spec, workload=Workload(models.Poisoned()))
    simulation.run()
    simulation.check()
    events = told(simulation)
    assert events
    for event in events:
        assert event.body.who == f"worker {event.worker}"
        assert (event.body.problem, event.body.parameter) == ("the loss is NaN", "body.weight")
    steps = [(event.worker, event.step) for event in events]
    assert len({*steps}) == len(steps), "each is told of once"
    assert not bool(final_vector(simulation).isnan().any())
    for core in simulation.workers.values():
        assert all(bool(moment.isfinite().all()) for moment in core.replica.moments.values())
        state = core.replica.model.state_dict()
        assert bool(state["norm.running_mean"].isfinite().all())
        assert bool(state["mask"].isinf().any()), "what is infinite on purpose stays so"


@pytest.mark.parametrize("name", ["bsp", "local_sgd", "diloco", "ssp"])
def test_a_skipped_batch_weighs_as_much_as_a_gradient_of_zeros(name: str) -> None:
    found = []
    for value in (0.0, torch.nan, torch.inf):
        simulation = Simulation(job(EVERY[name], data={"batch_size": 4}), workload=Workload(Spoilt(value)))
        simulation.run()
        assert bool(told(simulation)) == (value != 0.0)
        found.append(final_vector(simulation))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_replicas_stay_equal_where_one_of_them_skips(name: str) -> None:
    spec = job(SYNCHRONOUS[name], data={"batch_size": 4}, compression=ONEBIT)
    simulation = WatchedSimulation(spec, workload=Workload(Spoilt(torch.nan)))
    simulation.run()
    assert told(simulation)
    for seen in simulation.after_round.values():
        assert len({vector.numpy().tobytes() for vector in seen.values()}) == 1


def test_a_step_that_leaves_the_finite_numbers_is_not_sent() -> None:
    """The weights overflow though the gradient is finite: it shows when they are to be sent, and is taken back."""
    spec = job(
        {"kind": "local_sgd", "sync_every": 2},
        data={"batch_size": 4},
        compression=ONEBIT,
        optimizer={"kind": "sgd", "lr": 2.0},
    )
    simulation = AuditedSimulation(spec, workload=Workload(Steep()))
    simulation.run()
    assert any(event.body.parameter == "2.bias" for event in told(simulation))
    assert any("NaN or an infinity" in event.body.problem for event in told(simulation))
    assert bool(final_vector(simulation).isfinite().all())


def test_a_model_that_gives_nothing_else_ends_the_job() -> None:
    class Broken(models.Regression):
        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
            return super().loss(model, batch) * torch.nan

    with pytest.raises(Diverged, match=r"worker \d, step 4: the loss is NaN; 5 of its batches in a row were skipped"):
        Simulation(job(), workload=Workload(Broken())).run()


def test_how_many_may_be_skipped() -> None:
    skips = Skips(worker(3), "skip")
    for step in range(10, 9 + IN_A_ROW):
        assert skips.add(step, "the loss is NaN").step == step
    with pytest.raises(Diverged, match=r"worker 3, step 14: the loss is NaN; 5 of its batches in a row"):
        skips.add(9 + IN_A_ROW, "the loss is NaN")
    spread = Skips(worker(3), "skip")
    for step in range(0, 3 * IN_WINDOW, 3):
        spread.add(step, "the loss is NaN")
    again = Skips(worker(3), "skip")
    again.load_state_dict(spread.state_dict())
    with pytest.raises(Diverged, match="21 of its last 200 batches were skipped"):
        again.add(3 * IN_WINDOW, "the loss is NaN")
    rare = Skips(worker(3), "skip")
    for step in range(0, 100_000, 20):
        rare.add(step, "the loss is NaN")
    for policy in ("fail", "rollback"):
        with pytest.raises(Diverged, match="worker 3, step 1: the loss is NaN; lower the learning rate"):
            Skips(worker(3), policy).add(1, "the loss is NaN")


def test_what_is_skipped_survives_a_checkpoint() -> None:
    spec = job(
        {"kind": "selsync", "warmup_steps": 2, "delta": 0.03, "aggregate": "gradients"},
        data={"batch_size": 4},
        checkpoint={"every_rounds": 1},
    )
    calm = Simulation(spec, workload=Workload(Spoilt(torch.nan)))
    calm.run()
    skipped = {event.step for event in told(calm)}
    assert skipped
    for parts in list(calm.checkpoints.values()):
        again = Simulation.restore(spec, parts, workload=Workload(Spoilt(torch.nan)))
        again.run()
        assert torch.equal(final_vector(again), final_vector(calm))


@pytest.mark.parametrize("kind", ["gpipe", "async_one_f_one_b"])
@pytest.mark.parametrize("activations", ["identity", "int8"])
def test_the_stages_of_a_pipeline_skip_it_too(kind: str, activations: str) -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 3},
        data={"batch_size": 4},
        scale={"workers": 2, "stages": 2},
        schedule={"kind": kind, "activations": {"kind": activations}},
    )
    simulation = Simulation(spec, workload=Workload(models.SpoiltRegression()))
    simulation.run()
    assert {event.body.who for event in told(simulation)} >= {"stage 0 of pipeline 0", "stage 1 of pipeline 0"}
    for core in simulation.members.values():
        assert bool(core.replica.flat.isfinite().all())


def test_one_stage_whose_gradient_is_not_finite_spoils_the_step_for_all_that_are_bounded_together() -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 3},
        data={"batch_size": 4},
        scale={"workers": 2, "stages": 2},
        schedule={"kind": "gpipe", "clip_norm": 1.0},
    )
    simulation = Simulation(spec, workload=Workload(models.SpoiltRegression(in_gradient=True)))
    simulation.run()
    by_step: dict[tuple[int | None, int], set[str]] = {}
    for event in told(simulation):
        by_step.setdefault((event.worker, event.step), set()).add(event.body.problem)
    assert by_step
    for problems in by_step.values():
        assert any("the gradient of" in problem and "holds a NaN" in problem for problem in problems)
        assert len(problems) == 2, problems


def test_going_back_needs_a_checkpoint_to_go_back_to() -> None:
    with pytest.raises(SpecError, match=r"on_divergence='rollback' goes back .* set checkpoint\.every_rounds"):
        job(on_divergence="rollback")
    assert job(on_divergence="rollback", checkpoint={"every_rounds": 5}).on_divergence == "rollback"
