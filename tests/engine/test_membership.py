"""Joining, leaving, pausing and turning knobs while a job runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from raysync.address import shard, worker
from raysync.compress import Identity
from raysync.control.view import Cursor, View
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.engine.server.shard import Shard
from raysync.errors import ProtocolError
from raysync.sim import Fault, Pace, Simulation
from raysync.tasks.workload import Workload
from tests.audit import AuditedSimulation
from tests.jobs import EVERY, SYNCHRONOUS, WatchedSimulation, final_vector, job, members, workload


@pytest.mark.parametrize("name", EVERY)
def test_worker_joins_and_another_leaves_without_anybody_restarting(name: str) -> None:
    spec = job(EVERY[name], scale={"workers": 3, "max_workers": 4, "shards": 2}, budget={"steps": 40})
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.after(0.2, simulation.add_worker)
    simulation.after(0.5, lambda: simulation.remove_worker(1))
    simulation.run()
    simulation.check()
    assert simulation.coordinator.view.members == members(0, 2, 3)
    assert simulation.workers[1].phase.value == "gone"
    assert sorted(simulation.workers) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_newcomer_sees_what_the_others_see(name: str) -> None:
    spec = job(SYNCHRONOUS[name], scale={"workers": 2, "max_workers": 3, "shards": 2}, budget={"steps": 40})
    simulation = WatchedSimulation(spec, pace=Pace(jitter=0.3))
    simulation.after(0.25, simulation.add_worker)
    simulation.run()
    joint = [seen for seen in simulation.after_round.values() if len(seen) == 3]
    assert joint
    assert all(torch.equal(seen[2], seen[0]) for seen in joint)


def test_resize_deals_the_data_out_anew() -> None:
    """Over a whole job with a join and a leave, every sample is read equally often, give or take one."""
    counts = torch.zeros(200)
    spec = job({"kind": "local_sgd", "sync_every": 2}, scale={"workers": 2, "max_workers": 3}, budget={"steps": 60})
    data = workload(spec)

    class Counting(Workload):
        def batch(self, indices: Any) -> Any:
            counts[torch.from_numpy(indices)] += 1
            return super().batch(indices)

    simulation = Simulation(spec, workload=Counting(data.task))
    simulation.after(0.3, simulation.add_worker)
    simulation.after(0.8, lambda: simulation.remove_worker(0))
    simulation.run()
    assert counts.max() - counts.min() <= 2


def test_leavers_residual_goes_into_the_next_round_once() -> None:
    spec = job({"kind": "local_sgd"}, scale={"workers": 2})
    core = Shard(shard(0), spec)
    core.handle(m.NewView(view=View(1, members(0), members(1))))
    values, update, rest = (Identity().encode(torch.full((3,), value), 0) for value in (0.0, 1.0, 8.0))
    core.handle(m.Init(view=1, sender=worker(0), block=0, content="parameter", payload=values))
    handover = m.Handover(view=1, sender=worker(1), block=0, share=0.5, payloads={"displacement": rest})
    for _ in range(2):
        assert core.handle(handover) == [Send(worker(1), m.Ack(block=0, round=-1))], "a retry is acknowledged again"
    push = m.Push(
        view=1,
        sender=worker(0),
        block=0,
        round=0,
        participants=members(0),
        payload=update,
        payload_kind="displacement",
        weight=1,
        lr=1,
    )
    core.handle(push)
    assert torch.equal(core.blocks[0].x, torch.full((3,), 5.0)), "1 from the push, 8 / 2 inherited"
    core.handle(msgspec.structs.replace(push, round=1))
    assert torch.equal(core.blocks[0].x, torch.full((3,), 6.0)), "inherited once"


def test_knob_turns_at_one_step_for_everybody() -> None:
    spec = job({"kind": "selsync", "delta": 0.0, "warmup_steps": 0}, budget={"steps": 60})
    simulation = WatchedSimulation(spec, pace=Pace(jitter=0.4))
    simulation.after(0.8, lambda: simulation.tell(m.Turn(changes={"delta": float("inf")}, by="anna")))
    result = simulation.run()
    (turned,) = [event for event in result.events if event.kind == "knobs"]
    changed = {"before": {"delta": 0.0}, "after": {"delta": float("inf")}}
    assert turned.data == {**changed, "asked_step": turned.step, "by": "anna"}
    for event in result.events:
        if event.kind == "decision" and event.step < 59:
            assert event.data["sync"] is (event.step < turned.step)
            assert event.knob_version == (0 if event.step < turned.step else 1)


def test_pause_stops_and_resume_goes_on() -> None:
    spec = job(budget={"steps": 40})
    simulation = WatchedSimulation(spec)
    simulation.after(0.3, lambda: simulation.turn(pause=True))
    simulation.run_until(lambda sim: bool(sim.coordinator.knobs.values["pause"]))
    held = simulation.coordinator.pacing.next_step
    simulation.after(10.0, lambda: simulation.turn(pause=False))
    simulation.run_until(lambda sim: sim.now_s > 9.0)
    assert simulation.coordinator.pacing.next_step == held
    simulation.run()
    free = WatchedSimulation(spec)
    free.run()
    assert torch.equal(final_vector(simulation), final_vector(free)), "a pause changes no number"


@pytest.mark.parametrize("name", ["bsp", "ssp"])
def test_budget_ends_the_job_early(name: str) -> None:
    by_time = Simulation(job(EVERY[name], budget={"steps": 10_000, "time_s": 1.0}), workload=workload(job()))
    assert 1.0 <= by_time.run().virtual_time_s < 2.0
    target = {"metric": "eval/distance", "value": 1.5}
    by_target = Simulation(
        job(EVERY[name], budget={"steps": 10_000, "target": target}, eval={"every": 5}), workload=workload(job())
    )
    result = by_target.run()
    assert result.metrics["eval/distance"] <= 1.6
    assert result.virtual_time_s < 60
    stopped = Simulation(job(EVERY[name], budget={"steps": 10_000}), workload=workload(job()))
    stopped.after(0.5, lambda: stopped.tell(m.Stop(reason="enough")))
    assert stopped.run().virtual_time_s < 1.0


def test_worker_with_another_model_is_refused() -> None:
    spec = job(scale={"workers": 2})
    simulation = Simulation(spec, workload=workload(spec))
    simulation.coordinator.handle(m.Join(sender=worker(0), num_samples=200, num_elements=37))
    with pytest.raises(ProtocolError, match=r"vector of 5 elements.*must give every worker the same"):
        simulation.coordinator.handle(m.Join(sender=worker(1), num_samples=200, num_elements=5))


class Normed:
    """A task with BatchNorm, frozen parameters and an integer buffer."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        model[0].bias.requires_grad_(False)
        return model

    def train_data(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(120, 4, generator=generator) * torch.tensor([1.0, 5.0, 0.2, 1.0]) + 3
        return torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))

    eval_data = train_data

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("name", ["bsp", "local_sgd", "selsync-gradients", "ssp"])
def test_float_buffers_are_averaged_with_the_parameters(name: str) -> None:
    spec = job(EVERY[name], optimizer={"kind": "sgd", "lr": 0.01})
    simulation = WatchedSimulation(spec, workload=Workload(Normed()))
    simulation.run()
    first = simulation.workers[0]
    assert first.shared.num_elements == 4 * 8 + 8 + 8 + 8 + 1 + 16
    means = [worker.replica.model[1].running_mean for worker in simulation.workers.values()]
    assert float(means[0].abs().max()) > 0.1, "the statistics have moved"
    if name != "ssp":
        assert all(torch.equal(mean, means[0]) for mean in means)
    assert first.replica.model[1].num_batches_tracked > 0


@pytest.mark.parametrize("inner_state", ["keep", "average", "reset"])
@pytest.mark.parametrize(
    "optimizer", [{"kind": "sgd", "lr": 0.05, "momentum": 0.9}, {"kind": "adam", "lr": 0.01}], ids=["sgd", "adam"]
)
def test_inner_state_after_a_synchronisation(inner_state: str, optimizer: dict[str, Any]) -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 3}, optimizer=optimizer, inner_state=inner_state, budget={"steps": 12}
    )
    simulation = WatchedSimulation(spec)
    simulation.run()
    moments = [
        [worker.replica.moments[name] for name in spec.optimizer.active_moments]
        for worker in simulation.workers.values()
    ]
    equal = all(
        torch.equal(mine, first) for worker in moments[1:] for mine, first in zip(worker, moments[0], strict=True)
    )
    zero = all(float(moment.abs().max()) == 0 for worker in moments for moment in worker)
    assert (equal, zero) == {"keep": (False, False), "average": (True, False), "reset": (True, True)}[inner_state]


def _finish(simulation: Simulation) -> Simulation:
    simulation.run()
    return simulation


@pytest.mark.parametrize("name", ["bsp", "ssp"])
def test_stop_ends_a_paused_job(name: str) -> None:
    spec = job(EVERY[name], budget={"steps": 10_000})
    simulation = Simulation(spec, workload=workload(spec), max_time_s=60)
    simulation.after(0.3, lambda: simulation.turn(pause=True))
    simulation.after(2.0, lambda: simulation.tell(m.Stop(reason="enough")))
    assert _finish(simulation).now_s < 10


def test_lost_wish_to_leave_is_repeated() -> None:
    spec = job(scale={"workers": 3})
    simulation = AuditedSimulation(spec, workload=workload(spec), faults=(Fault(action="drop", where="Leave"),))
    simulation.after(0.2, lambda: simulation.remove_worker(1))
    simulation.run()
    simulation.check()
    assert simulation.coordinator.view.members == members(0, 2)


def test_checkpoint_waits_for_leavers_and_leaves_newcomers_out() -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 2},
        compression={"push": {"kind": "topk", "ratio": 0.1}},
        scale={"workers": 3, "max_workers": 4},
        budget={"steps": 40},
    )
    for moment in (0.2, 0.21, 0.22, 0.23):
        simulation = AuditedSimulation(spec, workload=workload(spec))
        simulation.after(0.2, lambda sim=simulation: sim.remove_worker(1))
        simulation.after(moment, lambda sim=simulation: sim.tell(m.TakeCheckpoint()))
        simulation.after(moment, simulation.add_worker)
        simulation.run()
        simulation.check()
        (checkpoint,) = simulation.checkpoints.values()
        restored = Simulation.restore(spec, checkpoint, workload=workload(spec), max_time_s=60)
        restored.run()
        assert restored.coordinator.finished


def test_replicas_that_share_gradients_meet_whole() -> None:
    """The final average of selsync with gradients carries all training: a sparse codec must not cut it down."""
    losses = []
    for compression in ({}, {"push": {"kind": "topk", "ratio": 0.1}, "pull": {"kind": "topk", "ratio": 0.1}}):
        spec = job(
            {"kind": "selsync", "delta": 0.05, "aggregate": "gradients"}, compression=compression, budget={"steps": 100}
        )
        losses.append(Simulation(spec, workload=workload(spec)).run().metrics["eval/distance"])
    assert losses[1] < 2 * losses[0] + 0.5


def test_resizes_inside_one_lap_stay_cheap() -> None:
    from raysync.data import Sampler
    from raysync.spec import Data

    sampler, cursor = Sampler(Data(batch_size=1), 20_000, 0), Cursor()
    for change in range(30):
        cursor = sampler.advance(cursor, 2 + change % 3, 5)
    assert len(cursor.spent) == 30
    assert len(sampler.batch(View(1, members(0, 1), (), 0, cursor), worker(0), 3)) == 1


def test_decisions_tell_what_each_worker_called_for() -> None:
    spec = job({"kind": "selsync", "delta": 0.03, "warmup_steps": 2})
    result = WatchedSimulation(spec).run()
    decided = [event for event in result.events if event.kind == "decision" and event.step > 2]
    for event in decided:
        scores = event.data["scores"]
        assert {*scores} == {"0", "1", "2", "3"}
        assert max(scores.values()) == pytest.approx(event.data["score"], rel=1e-5), "the largest is the job's"
    assert len({tuple(event.data["scores"].values()) for event in decided}) > 10
    for strategy in ({"kind": "bsp"}, {"kind": "selsync", "delta": 0.3, "signal": {"kind": "divergence"}}):
        result = WatchedSimulation(job(strategy)).run()
        assert not any("scores" in event.data for event in result.events), strategy


@pytest.mark.parametrize("name", ["bsp", "selsync", "selsync-overlap", "ssp", "local_sgd"])
def test_with_fewer_workers_than_the_fewest_no_step_is_made_until_others_come(name: str) -> None:
    scale = {"workers": 3, "min_workers": 3, "shards": 2}
    spec = job(EVERY[name], scale=scale, budget={"steps": 30})
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    simulation.after(0.3, lambda: simulation.kill(worker(1), down_s=5.0))
    steps: list[int] = []
    for moment_s in (2.0, 4.5):
        simulation.after(moment_s, lambda: steps.append(simulation.coordinator.steps_made))
    simulation.run()
    simulation.check()
    assert steps[0] == steps[1] < 29, "two of three wait"
    assert simulation.coordinator.finished
    assert members(0, 2, 3) == simulation.coordinator.view.members
