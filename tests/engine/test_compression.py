"""Compression through whole jobs: conservation, live ratios, warm start, refusals, residual care."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import torch

from raysync.address import Address, worker
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.errors import Diverged
from raysync.sim import Fault, Pace, Simulation
from raysync.tasks.workload import Workload
from tests.audit import AuditedSimulation
from tests.faults import CODECS
from tests.jobs import EVERY, SYNCHRONOUS, WatchedSimulation, final_vector, job, workload

NAMED = {"-".join(str(value) for value in codec.values()): codec for codec in CODECS}


@pytest.mark.parametrize(("push", "pull"), list(itertools.product(NAMED, NAMED)))
def test_books_balance_for_every_codec_pair(push: str, pull: str) -> None:
    """With a learning-rate schedule, three shards, every strategy in turn, and a worker killed on the way."""
    names = list(EVERY)
    name = names[(list(NAMED).index(push) + 3 * list(NAMED).index(pull)) % len(names)]
    spec = job(
        EVERY[name],
        compression={"push": NAMED[push], "pull": NAMED[pull]},
        lr_schedule={"kind": "cosine", "warmup_steps": 4},
        scale={"workers": 3, "shards": 3},
        budget={"steps": 25},
    )
    faults = (Fault(action="kill", where="worker.pushed", nth=7), Fault(action="kill", where="shard.closed", nth=9))
    simulation = AuditedSimulation(spec, workload=workload(spec), faults=faults, pace=Pace(jitter=0.3))
    simulation.run()
    simulation.check()


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("codec", [codec for codec in NAMED if codec != "identity"])
def test_replicas_stay_bitwise_equal_and_shards_change_nothing(name: str, codec: str) -> None:
    finals = []
    for shards in (1, 3):
        compression = {"push": NAMED[codec], "pull": NAMED[codec]}
        simulation = WatchedSimulation(job(SYNCHRONOUS[name], compression=compression, scale={"shards": shards}))
        simulation.run()
        for seen in simulation.after_round.values():
            assert all(torch.equal(vector, seen[0]) for vector in seen.values())
        finals.append(final_vector(simulation))
    assert torch.equal(*finals)


@pytest.mark.parametrize(
    "outer",
    [{"kind": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}, {"kind": "adam", "lr": 0.1}],
    ids=["nesterov", "adam"],
)
def test_server_residual_is_exact_under_any_outer_optimizer(outer: dict[str, Any]) -> None:
    """What the workers see plus the residual x - y is x: sum of all decoded updates == y - y_0, whatever the server does."""
    spec = job({"kind": "local_sgd", "sync_every": 2}, outer=outer, compression={"push": CODECS[1], "pull": CODECS[2]})
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.run()
    simulation.check()
    for shard in simulation.shards.values():
        for block in shard.blocks.values():
            assert float((block.x - block.y).abs().max()) > 0, "a lossy codec leaves a residual"
    seen = simulation.workers[0].shared.visible
    assert torch.equal(seen, final_vector(simulation))


def test_single_worker_double_pass_is_two_chained_feedbacks() -> None:
    from raysync.compress import OneBit
    from raysync.compress.feedback import Feedback
    from raysync.compress.registry import decode
    from raysync.engine.seeds import derive

    codec = OneBit(chunk=32)
    spec = job(
        compression={"push": codec.model_dump(), "pull": codec.model_dump()},
        scale={"workers": 1, "block_bytes": 4096},
        budget={"steps": 12},
    )
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.run()
    first, second = Feedback(), Feedback()
    visible = simulation.closed[0, 0, None].before.clone()
    for round in range(12):
        gradient = simulation.offered[worker(0), 0, "gradient"][round].float()
        sent = decode(first.squeeze((0, "g"), round, gradient, codec, derive(spec.seed, "push", 0, round, 0)))
        step = decode(second.squeeze((0, "g"), round, -0.05 * sent, codec, derive(spec.seed, "pull", round, 0)))
        visible += step
    assert torch.allclose(visible, final_vector(simulation), atol=1e-5)


def test_ratio_turns_while_the_job_runs_and_the_residual_carries_over() -> None:
    compression = {"push": {"kind": "topk", "ratio": 0.05}, "pull": {"kind": "topk", "ratio": 0.05}}
    spec = job(
        {"kind": "local_sgd", "sync_every": 1},
        compression=compression,
        scale={"block_bytes": 4096},
        task={"kind": "quadratic", "dim": 400, "samples": 200},
        budget={"steps": 60},
    )
    sizes: dict[str, dict[int, int]] = {"Push": {}, "Update": {}}

    class Sized(AuditedSimulation):
        def _watch(self, sender: Address, send: Send) -> None:
            super()._watch(sender, send)
            if isinstance(send.message, m.Push | m.Update):
                sizes[type(send.message).__name__][send.message.round] = len(send.message.payload)

    simulation = Sized(spec, workload=workload(spec))
    simulation.after(0.7, lambda: simulation.turn(push_ratio=0.5, pull_ratio=0.25))
    result = simulation.run()
    simulation.check()
    (turned,) = [event for event in result.events if event.kind == "knobs"]
    for name, ratio in (("Push", 0.5), ("Update", 0.25)):
        before, after = sizes[name][turned.step - 2], sizes[name][turned.step + 2]
        assert before < 120
        assert after > ratio * 400 * 2, name


def test_warm_start_sends_dense_then_ramps() -> None:
    compression = {
        "push": {"kind": "topk", "ratio": 0.01},
        "pull": {"kind": "onebit"},
        "dense_rounds": 3,
        "ramp_rounds": 4,
    }
    spec = job(
        compression=compression,
        scale={"block_bytes": 8192},
        task={"kind": "quadratic", "dim": 2000, "samples": 64},
        budget={"steps": 12},
    )
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.run()
    simulation.check()
    sizes = [len(simulation.payloads[worker(0), 0, round, "gradient"]) for round in range(12)]
    assert sizes[0] == sizes[1] == sizes[2] > 8000
    assert sizes[2] > sizes[3] > sizes[4] > sizes[5] > sizes[6] > sizes[7]
    assert max(sizes[7:]) < 130


def test_an_update_that_is_not_finite_is_refused_with_its_parameters_names() -> None:
    """Loss and gradient are finite, the step is not."""

    class Steep:
        def model(self) -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))

        def train_data(self) -> Any:
            return torch.utils.data.TensorDataset(torch.ones(32, 3), torch.ones(32, 1))

        eval_data = train_data

        def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
            return model[0](batch[0]).mean() + 1e30 * model[1].weight.sum()

    spec = job(
        {"kind": "local_sgd", "sync_every": 1},
        optimizer={"kind": "sgd", "lr": 1e10},
        compression={"push": {"kind": "onebit", "chunk": 32}},
        scale={"block_bytes": 64},
        on_divergence="fail",
    )
    simulation = Simulation(spec, workload=Workload(Steep()))
    with pytest.raises(
        Diverged, match=r"block 1 \(1\.weight to 1\.bias\).*NaN or an infinity.*lower the learning rate"
    ):
        simulation.run()


@pytest.mark.parametrize("name", ["bsp", "selsync", "selsync-gradients", "ssp", "diloco"])
def test_residuals_are_in_the_checkpoint(name: str) -> None:
    compression = {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "topk", "ratio": 0.1}}
    spec = job(EVERY[name], compression=compression, scale={"shards": 2})
    whole = Simulation(spec, workload=workload(spec), pace=Pace(jitter=0.4))
    whole.after(0.33, lambda: whole.tell(m.TakeCheckpoint()))
    whole.run()
    stored = io.BytesIO()
    torch.save(whole.checkpoints[1], stored)
    stored.seek(0)
    restored = Simulation.restore(
        spec, torch.load(stored, weights_only=True), workload=workload(spec), pace=Pace(jitter=0.4)
    )
    restored.run()
    assert torch.equal(final_vector(whole), final_vector(restored))
    for number in range(4):
        ours, theirs = (
            whole.workers[number].shared.feedback.residuals(),
            restored.workers[number].shared.feedback.residuals(),
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_leaver_hands_over_what_it_never_sent() -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 2},
        compression={"push": {"kind": "topk", "ratio": 0.1}},
        scale={"workers": 3},
    )
    simulation = AuditedSimulation(spec, workload=workload(spec))
    simulation.after(0.3, lambda: simulation.remove_worker(2))
    simulation.run()
    simulation.check()
    ledgers = [ledger for shard in simulation.shards.values() for ledger in shard.ledgers.values()]
    assert any("worker/2" in ledger.state_dict()["handed"] for ledger in ledgers)


def test_lost_and_held_residuals_are_metrics() -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 2},
        task={"kind": "quadratic", "dim": 2000, "samples": 64},
        compression={"push": {"kind": "topk", "ratio": 0.1}},
        budget={"steps": 40},
        scale={"block_bytes": 8192},
    )
    simulation = AuditedSimulation(
        spec, workload=workload(spec), faults=(Fault(action="kill", where="worker.computed", nth=60),)
    )
    result = simulation.run()
    simulation.check()
    metrics = [event.data for event in result.events if event.kind == "metrics" and "feedback/lost_norm" in event.data]
    assert metrics[1]["feedback/lost_norm"] == 0
    assert metrics[-1]["feedback/lost_norm"] > 0
    assert metrics[-1]["feedback/residual_norm"] > 0
    assert metrics[-1]["comm/compression"] > 1.5, "pushes are a tenth, pulls are dense"


def test_without_error_feedback_mass_is_lost() -> None:
    """The control: the same job without feedback ends measurably farther from the minimum."""
    ends = []
    for error_feedback in (True, False):
        compression = {
            "push": {"kind": "topk", "ratio": 0.1},
            "pull": {"kind": "topk", "ratio": 0.1},
            "error_feedback": error_feedback,
        }
        spec = job(
            compression=compression,
            optimizer={"kind": "sgd", "lr": 0.05},
            budget={"steps": 300},
            scale={"block_bytes": 4096},
        )
        ends.append(Simulation(spec, workload=workload(spec)).run().metrics["eval/distance"])
    assert ends[0] < 0.7 * ends[1]
