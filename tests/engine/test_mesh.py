"""Pipelines and meshes in the simulator, by the same cores that run on Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysync.address import Address, stage
from raysync.engine import messages as m
from raysync.engine.member import Phase
from raysync.errors import SpecError, TaskError
from raysync.pipeline.trace import utilisation
from raysync.sim import Fault, Network, Pace, Simulation, random_faults
from raysync.sim.faults import random_freezes
from raysync.spec import JobSpec, parse_spec
from raysync.tasks.workload import Workload

LATE: dict[str, Any] = {"kind": "async_one_f_one_b"}
SPARSE: dict[str, Any] = {"kind": "async_sparse", "sparse_fraction": 0.25, "staleness_bound": 6}
LOCAL: dict[str, Any] = {"kind": "local_sgd", "sync_every": 4}
BSP: dict[str, Any] = {"kind": "bsp"}
DIGITS = {"kind": "digits", "hidden": [16, 16, 16]}
WORKLOAD = Workload(parse_spec({"task": DIGITS}).task.build())


def mesh(stages: int, pipelines: int = 1, schedule: Any = "gpipe", strategy: Any = BSP, **changes: Any) -> JobSpec:
    schedule = {"kind": schedule} if isinstance(schedule, str) else schedule
    return parse_spec(
        {
            "task": DIGITS,
            "strategy": strategy,
            "scale": {"workers": pipelines, "stages": stages, "block_bytes": 1024, "max_workers": pipelines + 1},
            **({"schedule": schedule} if stages > 1 else {}),
            "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
            "budget": {"steps": 12},
            "eval": {"every": 5},
            **changes,
        }
    )


def run(spec: JobSpec, **world: Any) -> tuple[dict[str, Tensor], Simulation]:
    simulation = Simulation(spec, workload=WORKLOAD, **world)
    simulation.run()
    first = simulation.members[min(simulation.members)]
    return first.show_model(lambda state: {name: value.clone() for name, value in state.items()}), simulation


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def evaluations(simulation: Simulation) -> list[tuple[int, dict[str, float]]]:
    return [(event.step, event.data) for event in simulation.ledger.events if "eval/loss" in event.data]


def told(simulation: Simulation, name: str) -> float:
    return float(next(event.data[name] for event in reversed(simulation.ledger.events) if name in event.data))


# Synchronous


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
@pytest.mark.parametrize(("stages", "pipelines"), [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)])
def test_synchronous_schedules_train_the_unsplit_model(schedule: str, stages: int, pipelines: int) -> None:
    whole, plain = run(mesh(1, pipelines, budget={"steps": 8}))
    split, simulation = run(mesh(stages, pipelines, schedule, budget={"steps": 8}))
    assert distance(whole, split) < 1e-6
    losses = [
        [event.data["train/loss"] for event in found.ledger.events if "train/loss" in event.data]
        for found in (plain, simulation)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert evaluations(simulation)[-1][1]["eval/loss"] == pytest.approx(
        evaluations(plain)[-1][1]["eval/loss"], abs=1e-5
    )
    assert simulation.saved_by == [0]
    (cut,) = [event for event in simulation.ledger.events if event.kind == "notice"]
    assert cut.step == 0
    assert cut.data["text"].startswith(f"cut into {stages} stages: stage 0: layer")
    assert "1,040 parameters, 57% of the cost" in cut.data["text"]
    assert {core.passes.delays[-1] for core in simulation.stages.values()} == {0}


@pytest.mark.parametrize("strategy", [LOCAL, {"kind": "selsync", "delta": 0.05}, {"kind": "diloco", "sync_every": 3}])
@pytest.mark.parametrize("schedule", ["one_f_one_b", LATE])
def test_every_averaging_strategy_runs_over_stages(strategy: dict[str, Any], schedule: Any) -> None:
    _, simulation = run(mesh(3, 2, schedule, strategy, budget={"steps": 20}))
    for number in range(3):
        one, other = (simulation.stages[stage(number, pipeline)] for pipeline in range(2))
        assert torch.equal(one.replica.flat, other.replica.flat), "the last round brings replicas together"
    assert told(simulation, "sync/rounds") >= 2
    if strategy is LOCAL and schedule == "one_f_one_b":
        whole, _ = run(mesh(1, 2, strategy=LOCAL, budget={"steps": 20}))
        split, _ = run(mesh(3, 2, schedule, LOCAL, budget={"steps": 20}))
        assert distance(whole, split) < 1e-6


@pytest.mark.parametrize("strategy", [LOCAL, SPARSE])
def test_kept_passes_give_the_bits_of_repeated_ones(strategy: dict[str, Any]) -> None:
    """Of a model whose layers save their weights for the backward pass, and draw at random."""
    task = {
        "kind": "char_lm",
        "width": 16,
        "depth": 4,
        "heads": 2,
        "context": 8,
        "dropout": 0.1,
        "corpus_bytes": 20_000,
    }
    found = []
    for recompute in (True, False):
        schedule = {**LATE, "recompute": recompute}
        spec = mesh(4, 2, schedule, strategy, task=task, checkpoint={"every_rounds": 2}, budget={"steps": 30})
        simulation = Simulation(spec, workload=Workload(spec.task.build()))
        simulation.run()
        assert simulation.stages[stage(0, 0)].passes.delays[-1] == 3
        found.append({address: core.replica.flat.clone() for address, core in simulation.stages.items()})
    repeated, kept = found
    assert all(torch.equal(vector, kept[address]) for address, vector in repeated.items())


def test_a_bound_on_the_norm_is_the_whole_models_where_all_stages_step_together() -> None:
    free, _ = run(mesh(3, schedule={"kind": "gpipe"}, strategy=LOCAL))
    loose, _ = run(mesh(3, schedule={"kind": "gpipe", "clip_norm": 1e9}, strategy=LOCAL))
    assert distance(free, loose) == 0.0
    bound = 0.1
    spec = mesh(3, schedule={"kind": "gpipe", "clip_norm": bound}, strategy=LOCAL, budget={"steps": 1})
    spec = spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"momentum": 0.0, "lr": 1.0})})
    before = mesh(3, strategy=LOCAL, budget={"steps": 1}, optimizer={"kind": "sgd", "lr": 1e-12})
    (clipped, _), (start, _) = run(spec), run(before)
    moved = torch.cat([(clipped[name] - start[name]).reshape(-1) for name in start])
    assert float(moved.norm()) == pytest.approx(bound, rel=1e-3)


# Asynchronous


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("slack", [0, 1])
def test_gradients_are_as_late_as_the_plan_says_and_of_the_weights_that_were_used(stages: int, slack: int) -> None:
    spec = mesh(stages, 2, {**LATE, "slack": slack}, SPARSE, budget={"steps": 30})
    _, simulation = run(spec)
    for address, core in simulation.stages.items():
        full = (stages - 1 - address.stage) * (1 + slack)
        assert core.passes.delays == [min(step, full) for step in range(30)], str(address)
        assert core.passes.peak_live == full + 1
    assert told(simulation, "pipeline/delay") == (stages - 1) * (1 + slack)


def test_with_one_microbatch_in_flight_asynchronous_is_synchronous() -> None:
    """A rate of zero moves nothing, so late gradients are those of the model itself: the stash and the repeated forward
    pass are right if the first step's gradient is that of the unsplit model.
    """
    frozen = {"kind": "sgd", "lr": 1e-30}
    specs = [mesh(3, 1, LATE, LOCAL, optimizer=frozen), mesh(1, 1, strategy=LOCAL, optimizer=frozen)]
    late, plain = (run(spec)[1] for spec in specs)
    parts = [core.replica for _, core in sorted(late.stages.items())]
    losses = [
        [event.data["train/loss"] for event in found.ledger.events if "train/loss" in event.data]
        for found in (late, plain)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert sum(len(part.flat) for part in parts) == len(next(iter(plain.workers.values())).replica.flat)


@pytest.mark.parametrize("schedule", ["gpipe", LATE])
def test_sparse_averaging_ends_in_one_model_and_sends_its_share(schedule: Any) -> None:
    strategy = {**SPARSE, "sparse_fraction": 0.05}
    scale = {"workers": 2, "stages": 2, "block_bytes": 2**20}
    task = {"kind": "digits", "hidden": [512, 256]}
    spec = mesh(2, 2, schedule, strategy, scale=scale, task=task, budget={"steps": 60})
    simulation = Simulation(spec, network=Network(latency_s=0.02))
    simulation.run()
    for number in range(2):
        one, other = (simulation.stages[stage(number, pipeline)] for pipeline in range(2))
        assert torch.equal(one.replica.flat, other.replica.flat)
    assert told(simulation, "sparse/landed") > 0
    assert told(simulation, "sparse/dropped") == 0
    dense, steps = 2 * 2 * 4 * sum(len(core.replica.flat) for core in simulation.stages.values()) / 2, 60
    sent = told(simulation, "comm/bytes_up") + told(simulation, "comm/bytes_down")
    assert sent < 0.06 * dense * steps
    assert evaluations(simulation)[-1][1]["eval/accuracy"] > 0.5


def test_plain_replicas_run_free_too() -> None:
    spec = mesh(1, 3, strategy=SPARSE, budget={"steps": 150})
    _, simulation = run(spec, network=Network(latency_s=0.03), pace=Pace(jitter=0.3))
    flats = [core.replica.flat for core in simulation.workers.values()]
    assert all(torch.equal(flats[0], flat) for flat in flats)
    assert told(simulation, "sparse/delay") > 1
    assert evaluations(simulation)[-1][1]["eval/accuracy"] > 0.5


@pytest.mark.parametrize("stages", [1, 2])
def test_knobs_pause_checkpoint_and_scale_where_all_meet(stages: int) -> None:
    spec = mesh(stages, 2, LATE, SPARSE, budget={"steps": 60})
    simulation = Simulation(spec, workload=WORKLOAD, network=Network(latency_s=0.01), durable=True)
    simulation.after(0.15, lambda: simulation.turn(lr=0.01, sparse_fraction=0.5, staleness_bound=4))
    simulation.after(0.3, lambda: simulation.add_worker())
    simulation.after(0.5, lambda: simulation.tell(m.TakeCheckpoint()))
    simulation.after(0.6, lambda: simulation.remove_worker(0))
    simulation.run()
    views = [event.data["members"] for event in simulation.ledger.events if event.kind == "view"]
    assert views == [[0, 1], [0, 1, 2], [1, 2]]
    (turned,) = [event for event in simulation.ledger.events if event.kind == "knobs"]
    assert turned.data["after"] == {"lr": 0.01, "sparse_fraction": 0.5, "staleness_bound": 4}
    assert len(simulation.checkpoints) == 1
    restored = Simulation.restore(spec, simulation.checkpoints[1], workload=WORKLOAD)
    restored.run()
    assert restored.coordinator.steps_made == 60


def test_a_turn_that_would_diverge_is_refused() -> None:
    simulation = Simulation(mesh(1, 2, strategy=SPARSE, budget={"steps": 30}), workload=WORKLOAD)
    simulation.run_until(lambda sim: sim.coordinator.steps_made > 3)
    with pytest.raises(Exception, match="diverges"):
        simulation.coordinator.board.turn({"sparse_fraction": 1.0, "staleness_bound": 20}, None)


@pytest.mark.parametrize(("schedule", "strategy"), [("gpipe", BSP), ("one_f_one_b", LOCAL)])
def test_synchronous_schedules_resume_bit_for_bit(schedule: str, strategy: dict[str, Any]) -> None:
    spec = mesh(3, 2, schedule, strategy, checkpoint={"every_rounds": 2}, budget={"steps": 14})
    whole, simulation = run(spec)
    assert simulation.checkpoints
    restored = Simulation.restore(spec, simulation.checkpoints[1], workload=WORKLOAD)
    restored.run()
    again = restored.members[min(restored.members)].show_model(
        lambda state: {name: value.clone() for name, value in state.items()}
    )
    assert distance(whole, again) == 0.0


# In time


def test_asynchronous_stages_are_busy_and_synchronous_ones_wait() -> None:
    """Four equal stages: the slowest stage's own time is the limit."""
    layers = {"task": {"kind": "digits", "hidden": [64, 64, 64]}, "data": {"batch_size": 8}}
    spec = mesh(4, 1, LATE, SPARSE, budget={"steps": 200}, eval={"every": 1000}, **layers)
    _, simulation = run(spec, network=Network(latency_s=0.0, bandwidth_bits_per_s=1e12))
    assert min(utilisation(simulation.spans).values()) > 0.97
    spec = mesh(4, 1, "gpipe", LOCAL, budget={"steps": 20}, eval={"every": 1000}, **layers)
    _, simulation = run(spec, network=Network(latency_s=0.0, bandwidth_bits_per_s=1e12))
    assert max(utilisation(simulation.spans).values()) < 0.65


def test_latency_between_stages_costs_the_synchronous_pipeline_more() -> None:
    def samples_per_s(schedule: Any, strategy: dict[str, Any], steps: int) -> float:
        spec = mesh(4, 1, schedule, strategy, budget={"steps": steps}, eval={"every": 1000}, data={"batch_size": 8})
        _, simulation = run(spec, network=Network(latency_s=0.02, bandwidth_bits_per_s=1e10))
        spans = simulation.spans
        batches = steps if isinstance(schedule, dict) and schedule["kind"] == LATE["kind"] else steps * 4
        return batches / (max(span.end_s for span in spans) - min(span.start_s for span in spans))

    synchronous = samples_per_s({"kind": "gpipe", "microbatches": 4}, LOCAL, 20)
    assert samples_per_s({**LATE, "slack": 1}, SPARSE, 80) / synchronous > 1.5


# Faults


@pytest.mark.parametrize("point", ["stage.forward", "stage.backward", "worker.saving"])
@pytest.mark.parametrize(
    ("pipelines", "schedule", "strategy"), [(2, "gpipe", BSP), (2, LATE, SPARSE), (1, "one_f_one_b", LOCAL)]
)
def test_a_stage_that_dies_is_replaced_and_its_pipeline_joins_again(
    pipelines: int, schedule: Any, strategy: dict[str, Any], point: str
) -> None:
    spec = mesh(3, pipelines, schedule, strategy, budget={"steps": 20})
    nth = 1 if point == "worker.saving" else 30
    _, simulation = run(spec, faults=(Fault(action="kill", where=point, nth=nth),))
    assert simulation.happened
    assert simulation.coordinator.steps_made == 20
    assert len(simulation.saved_by) >= 1
    assert one_model(simulation)


def one_model(simulation: Simulation) -> bool:
    """Return whether all that have seen the last round, and were not on their way in again, have the same values."""
    by_stage: dict[int, list[Tensor]] = {}
    for address, core in simulation.members.items():
        if core.finished and core.phase in (Phase.PARTING, Phase.GONE):
            by_stage.setdefault(address.stage, []).append(core.replica.flat)
    return all(torch.equal(found[0], flat) for found in by_stage.values() for flat in found)


CASES: tuple[tuple[int, int, Any, dict[str, Any]], ...] = (
    (1, 3, None, SPARSE),
    (2, 2, "gpipe", BSP),
    (3, 2, "one_f_one_b", LOCAL),
    (3, 2, LATE, SPARSE),
    (2, 1, "gpipe", BSP),
    (2, 2, LATE, LOCAL),
    (2, 2, {"kind": "gpipe", "clip_norm": 1.0}, SPARSE),
)


def run_seed(seed: int, *, freezes: int = 0) -> Simulation:
    """Run one random schedule of faults on one of the meshes; where processes stand still, some have backups."""
    stages, pipelines, schedule, strategy = CASES[seed % len(CASES)]
    spec = mesh(stages, pipelines, schedule, strategy, budget={"steps": 20}, seed=seed)
    if freezes and seed % 2:
        spec = spec.model_copy(update={"scale": spec.scale.model_copy(update={"shards": 2, "replicas": 1})})
    faults = random_faults(seed, 3, 40, in_mesh=True) + random_freezes(seed, freezes, 40, in_mesh=True)
    simulation = Simulation(
        spec, workload=WORKLOAD, faults=faults, durable=True, network=Network(latency_s=0.01), max_time_s=600
    )
    changes = {
        1: lambda: simulation.turn(lr=0.02),
        2: lambda: simulation.add_worker(),
        3: lambda: simulation.remove_worker(0) if pipelines > 1 else None,
        4: lambda: simulation.tell(m.TakeCheckpoint()),
    }
    simulation.after(0.05 * (seed % 7), lambda: changes.get(seed % 5, lambda: None)())
    simulation.run()
    return simulation


@pytest.mark.parametrize("part", [*range(2), *(pytest.param(part, marks=pytest.mark.matrix) for part in range(2, 12))])
def test_random_faults_end_in_one_model(part: int) -> None:
    struck = 0
    for seed in range(35 * part, 35 * part + 35):
        simulation = run_seed(seed)
        struck += len(simulation.happened)
        assert simulation.coordinator.steps_made == 20, f"seed {seed}"
        assert one_model(simulation), f"seed {seed}"
    assert struck >= 20


@pytest.mark.parametrize("seed", [1007, 1125])
def test_meshes_that_once_broke(seed: int) -> None:
    """1007: a backup is filled in an open round. 1125: a parcel of before a pipeline broke comes while it joins again."""
    simulation = run_seed(seed, freezes=3)
    assert one_model(simulation)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.matrix) for part in range(1, 8))])
def test_processes_that_stand_still_end_in_one_model(part: int) -> None:
    for seed in range(1000 + 21 * part, 1021 + 21 * part):
        simulation = run_seed(seed, freezes=3)
        assert simulation.coordinator.steps_made == 20, f"seed {seed}"
        assert one_model(simulation), f"seed {seed}"


TEXT = {"kind": "char_lm", "width": 16, "depth": 4, "heads": 2, "context": 16, "corpus_bytes": 50_000}


def final_loss(spec: JobSpec, troubles: dict[int, Callable[[Simulation], object]], *faults: Fault) -> float:
    """Return the loss of the final model of a job that is troubled at these steps."""
    simulation = Simulation(spec, workload=Workload(spec.task.build()), faults=faults, network=Network(latency_s=0.01))
    for step, trouble in troubles.items():
        simulation.run_until(lambda sim, step=step: sim.coordinator.steps_made >= step)
        trouble(simulation)
    simulation.run()
    assert simulation.coordinator.steps_made == spec.budget.steps
    assert len(simulation.happened) == len(faults)
    return evaluations(simulation)[-1][1]["eval/loss"]


@pytest.mark.parametrize(
    ("schedule", "strategy"),
    [pytest.param("gpipe", BSP, marks=pytest.mark.matrix), (LATE, {**SPARSE, "sparse_fraction": 0.1})],
)
def test_a_lost_stage_and_a_pipeline_added_and_removed_leave_the_loss(schedule: Any, strategy: dict[str, Any]) -> None:
    optimizer = {"kind": "lookahead", "lr": 0.003, "beta1": 0.9}
    scale = {"workers": 2, "stages": 2, "max_workers": 3}
    changes = {"task": TEXT, "optimizer": optimizer, "budget": {"steps": 150}, "eval": {"every": 150}, "scale": scale}
    spec = mesh(2, 2, schedule, strategy, **changes)
    troubles: dict[int, Callable[[Simulation], object]] = {
        60: lambda simulation: simulation.add_worker(),
        100: lambda simulation: simulation.remove_worker(0),
    }
    calm = final_loss(spec, {})
    lost = Fault(action="kill", where="stage.backward", nth=80)
    assert final_loss(spec, troubles, lost) == pytest.approx(calm, rel=0.03)


@pytest.mark.parametrize("recompute", [True, False])
def test_the_formula_of_a_stages_memory_adds_up_what_is_there(recompute: bool) -> None:
    adam = {"kind": "adamw", "lr": 0.001}
    schedule = {**LATE, "recompute": recompute}
    spec = mesh(3, 2, schedule, SPARSE, task=TEXT, optimizer=adam, budget={"steps": 30}, eval={"every": 100})
    simulation = Simulation(spec, workload=Workload(spec.task.build()))
    simulation.run_until(lambda sim: sim.coordinator.steps_made >= 20)
    for number in range(3):
        core = simulation.stages[stage(number, 0)]
        found, vector = core.memory, 4 * len(core.replica.flat)
        assert found.weights == 3 * vector
        assert found.moments == sum(moment.nbytes for moment in core.replica.moments.values() if moment.dim())
        assert core.passes.stash is not None
        assert found.stash == core.passes.stash.bytes == (2 - number) * vector
        assert found.activations == core.passes.peak_live * core.passes.microbatch_bytes
        inputs = 8 * 32 * 16 if number == 0 else 4 * 32 * 16 * 16
        assert (core.passes.microbatch_bytes <= inputs) == (recompute and number < 2), "else what the pass computed"
    told = [event.data for event in simulation.ledger.events if "pipeline/memory_bytes/2" in event.data]
    assert told[-1]["pipeline/memory_bytes/2"] == simulation.stages[stage(2, 0)].memory.total
    assert "pipeline/memory_bytes/3" not in told[-1]


# What cannot be


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def _tied() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
    layers[1].weight = layers[0].weight
    return layers


@pytest.mark.parametrize(
    ("model", "stages", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(64, 10)), 2, "has 1 layers, fewer than scale.stages=2"),
        (_Chain, 2, "returned a _Chain; a pipeline cuts an nn.Sequential"),
        (_tied, 3, "weights tied across stages cannot be trained"),
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.ReLU()), 2, "stage 1 .* has no trainable parameters"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(model: Any, stages: int, words: str) -> None:
    task = mesh(stages).task.build()
    stand_in = type("Digits", (type(task),), {"model": lambda self: model()})()
    with pytest.raises(TaskError, match=words):
        Simulation(mesh(stages), workload=Workload(stand_in)).run()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": BSP, "schedule": LATE}, "needs the gradient of the whole model at one set of weights"),
        ({"strategy": {"kind": "selsync", "aggregate": "gradients"}, "schedule": LATE}, "one set of weights"),
        ({"strategy": {"kind": "ssp"}, "schedule": {"kind": "gpipe"}}, "has no pipelines"),
        ({"schedule": None}, "`schedule` is needed for more than one stage"),
        ({"schedule": {**LATE, "recompute": False, "stash": False}}, "needs stash: true"),
        ({"schedule": {**LATE, "microbatches": 2}}, "less than or equal to 1"),
        ({"schedule": {"kind": "gpipe", "activations": {"kind": "topk"}}}, "must be one of"),
    ],
)
def test_jobs_that_cannot_be_are_refused_with_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        mesh(2, 2, **{"strategy": LOCAL, **changes})


def test_addresses_of_stages_speak() -> None:
    assert str(stage(1, 3)) == "stage/1/3"
    assert stage(1, 3).spoken == "stage 1 of pipeline 3"
    assert Address.parse("stage/0/2") == stage(0, 2)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_pause_holds_replicas_that_run_free(stages: int) -> None:
    spec = mesh(stages, 2, LATE, SPARSE, budget={"steps": 60})
    simulation = Simulation(spec, workload=WORKLOAD, durable=True)
    simulation.after(0.1, lambda: simulation.turn(pause=True))
    simulation.after(8.0, lambda: simulation.turn(pause=False))
    simulation.run_until(lambda sim: sim.now_s > 2)
    paused_at = simulation.coordinator.steps_made
    simulation.run_until(lambda sim: sim.now_s > 7)
    assert simulation.coordinator.steps_made == paused_at < 60
    simulation.run()
    assert simulation.coordinator.steps_made == 60


@pytest.mark.parametrize("kind", ["adamw", "lookahead"])
def test_moments_travel_with_their_part(kind: str) -> None:
    spec = mesh(
        1, 2, strategy=SPARSE, optimizer={"kind": kind, "lr": 1e-3}, inner_state="average", budget={"steps": 30}
    )
    _, simulation = run(spec)
    assert told(simulation, "sparse/landed") > 0
    one, other = (core.replica.moments["exp_avg"] for core in simulation.workers.values())
    assert torch.allclose(one, other, atol=1e-6), "the last round averages all of them"


def test_a_replica_far_behind_is_told_the_mean_itself() -> None:
    """It pushes rounds that the shard has forgotten, and ends with the others all the same."""
    spec = mesh(1, 2, strategy={**SPARSE, "staleness_bound": 3}, budget={"steps": 300}, eval={"every": 1000})
    _, simulation = run(spec, pace=Pace(step_s=0.005, slow={1: 8.0}))
    assert one_model(simulation)
    assert told(simulation, "sparse/dropped") > 100
    one, other = simulation.workers.values()
    assert torch.equal(one.shared.visible, other.shared.visible)


def test_a_stages_part_of_the_final_model_is_sent_once_however_long_it_takes() -> None:
    spec = mesh(3, 2, "gpipe", BSP, budget={"steps": 3})
    sent: list[Address] = []
    simulation = Simulation(
        spec,
        workload=WORKLOAD,
        network=Network(latency_s=0.001, host_bandwidth_bits_per_s={str(stage(0, 0)): 100_000}),
        on_send=lambda sender, send: sent.append(sender) if isinstance(send.message, m.StageModel) else None,
    )
    simulation.run()
    assert sorted(sent) == [stage(1, 0), stage(2, 0)]
