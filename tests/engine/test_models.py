"""Models as people bring them: buffers and moments travel exactly, views that are cut are noticed, NaN is named."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from raysync.engine import messages as m
from raysync.engine.training.binding import Binding
from raysync.engine.training.norms import squared_norm
from raysync.engine.training.replica import Replica
from raysync.errors import Diverged, TaskError
from raysync.sim import Simulation
from raysync.spec import JobSpec
from raysync.tasks.workload import Workload
from tests import models, reference
from tests.jobs import EVERY, final_vector, job

ONEBIT = {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "onebit", "chunk": 32}}
LOSSY = {"onebit": ONEBIT, "topk": {"push": {"kind": "topk", "ratio": 0.1}, "pull": {"kind": "topk", "ratio": 0.1}}}


def run(task: Any, strategy: dict[str, Any], **changes: Any) -> Simulation:
    simulation = Simulation(job(strategy, **changes), workload=Workload(task))
    simulation.run()
    return simulation


def model_of(simulation: Simulation, worker: int = 0) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    simulation.workers[worker].show_model(lambda state: kept.update({k: v.clone() for k, v in state.items()}))
    return kept


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("name", EVERY)
def test_running_statistics_are_never_compressed(name: str, codec: str) -> None:
    simulation = run(models.Normed(), EVERY[name], compression=LOSSY[codec], budget={"steps": 60})
    state = model_of(simulation)
    assert float(state["1.running_var"].min()) > 0.05, "a variance that a lossy codec has touched goes below zero"
    losses = [event.data["eval/loss"] for event in simulation.ledger.events if "eval/loss" in event.data]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 1.2 * losses[0]


@pytest.mark.parametrize("codec", LOSSY)
def test_moments_are_never_compressed(codec: str) -> None:
    adam = {"kind": "adam", "lr": 0.01}
    changes: dict[str, Any] = {"optimizer": adam, "inner_state": "average", "budget": {"steps": 80}}
    exact = run(models.Regression(), {"kind": "local_sgd", "sync_every": 4}, **changes)
    lossy = run(models.Regression(), {"kind": "local_sgd", "sync_every": 4}, compression=LOSSY[codec], **changes)
    assert float(final_vector(lossy).abs().max()) < 2 * float(final_vector(exact).abs().max())
    moments = lossy.workers[0].replica.moments
    assert float(moments["exp_avg_sq"].min()) >= 0
    assert all(torch.equal(worker.replica.moments["exp_avg"], moments["exp_avg"]) for worker in lossy.workers.values())


@pytest.mark.parametrize("compression", [{}, ONEBIT], ids=["dense", "onebit"])
@pytest.mark.parametrize("name", EVERY)
def test_infinite_and_constant_buffers_come_back_bit_for_bit(name: str, compression: dict[str, Any]) -> None:
    simulation = run(models.Masked(), EVERY[name], compression=compression, scale={"workers": 3, "block_bytes": 64})
    fresh, state = models.Masked().model().state_dict(), model_of(simulation)
    assert torch.equal(state["mask"], fresh["mask"])
    assert torch.equal(state["scale"], fresh["scale"]), "fp32 must not round a constant in double"
    assert not torch.equal(state["mean"], fresh["mean"]), "a buffer that user code replaces is averaged too"


def test_buffers_are_the_mean_over_the_workers() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 5}, budget={"steps": 5})
    simulation = Simulation(spec, workload=Workload(models.Normed()))
    simulation.run_until(lambda sim: any(worker.phase.value == "syncing" for worker in sim.workers.values()))
    simulation.run_until(
        lambda sim: len(sim.workers) == 4 and all(w.phase.value == "syncing" for w in sim.workers.values())
    )
    own = torch.stack([worker.replica.extras() for worker in simulation.workers.values()]).double()
    simulation.run()
    assert torch.allclose(simulation.workers[0].replica.extras().double(), own.mean(dim=0), atol=1e-6)


def test_a_joiner_under_averaged_moments_takes_over_the_step_count() -> None:
    spec = job(
        {"kind": "local_sgd", "sync_every": 2},
        optimizer={"kind": "adam", "lr": 0.01},
        inner_state="average",
        budget={"steps": 40},
        scale={"workers": 2, "max_workers": 3},
    )
    simulation = Simulation(spec, workload=Workload(models.Regression()))
    simulation.after(0.4, simulation.add_worker)
    simulation.run()
    counts = {worker: float(core.replica.moments["step"]) for worker, core in simulation.workers.items()}
    assert counts == dict.fromkeys(range(3), pytest.approx(40, abs=1e-3))


# Views that user code cuts


@pytest.mark.parametrize("how", ["zero_grad", "same", "assign"])
@pytest.mark.parametrize("name", ["bsp", "selsync", "ssp", "selsync-gradients"])
def test_cut_views_are_bound_anew(name: str, how: str) -> None:
    plain = final_vector(run(models.Regression(), EVERY[name]))
    assert torch.equal(final_vector(run(models.Severing(how), EVERY[name])), plain)


def test_new_values_are_taken_over_where_the_worker_owns_the_parameters() -> None:
    for how in ("clamp", "inplace"):
        simulation = run(models.Severing(how), {"kind": "local_sgd", "sync_every": 3})
        assert float(model_of(simulation)["0.weight"].abs().max()) < 0.35
        assert not torch.equal(
            final_vector(simulation), final_vector(run(models.Regression(), {"kind": "local_sgd", "sync_every": 3}))
        )


@pytest.mark.parametrize("how", ["clamp", "inplace"])
@pytest.mark.parametrize("name", ["bsp", "ssp"])
def test_new_values_are_refused_where_the_server_owns_the_parameters(name: str, how: str) -> None:
    with pytest.raises(TaskError, match=r"parameter '0\.weight' was (given other values|changed in place).*local_sgd"):
        run(models.Severing(how), EVERY[name])


def test_what_cannot_be_bound_anew_is_refused_by_name() -> None:
    def cut(change: Callable[[nn.Module], None]) -> None:
        model = models.Regression().model()
        binding = Binding("mine", model)
        change(model)
        binding.mend()

    with pytest.raises(TaskError, match=r"parameter '0\.weight' became float32 of shape \(4, 6\)"):
        cut(lambda model: setattr(model[0].weight, "data", torch.zeros(4, 6)))
    with pytest.raises(TaskError, match=r"parameter '2\.bias' was removed"):
        cut(lambda model: setattr(model[2], "bias", None))
    with pytest.raises(TaskError, match=r"parameter '0\.weight' became float64"):
        cut(lambda model: model.double())


def test_an_evaluation_that_cuts_views_loses_no_gradient() -> None:
    class Careless(models.Regression):
        def metrics(self, model: nn.Module, batch: Any) -> dict[str, float]:
            model.zero_grad()
            model[0].weight.data = model[0].weight.data.clone()
            return {"zero": 0.0}

    for strategy in ({"kind": "bsp"}, {"kind": "local_sgd", "sync_every": 3}):
        plain = run(models.Regression(), strategy, eval={"every": 1})
        assert torch.equal(final_vector(run(Careless(), strategy, eval={"every": 1})), final_vector(plain))


def test_parameters_that_share_memory_are_refused() -> None:
    class Shared(models.Regression):
        def model(self) -> nn.Module:
            made = nn.ModuleDict({"a": nn.Linear(models.INPUTS, 4), "b": nn.Linear(models.INPUTS, 4)})
            made["b"].weight = nn.Parameter(made["a"].weight.data)
            return made

    with pytest.raises(TaskError, match=r"'a\.weight' and 'b\.weight' share memory; tie them by making them one"):
        Replica(job(), Workload(Shared()))


def test_a_lazy_parameter_is_refused() -> None:
    class Lazy(models.Regression):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.LazyLinear(4))

    with pytest.raises(TaskError, match=r"parameter '0\.weight' has no shape yet; call the model once"):
        Replica(job(), Workload(Lazy()))


# Divergence


class Exploding(models.Regression):
    """The loss is NaN on one sample of worker 1's data from some step on."""

    def __init__(self, value: float) -> None:
        self._value, self._calls = value, 0

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training:
            self._calls += 1
        return super().loss(model, batch) * (self._value if self._calls > 20 and model.training else 1.0)


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
@pytest.mark.parametrize("strategy", [{"kind": "bsp"}, {"kind": "local_sgd", "sync_every": 120}])
def test_a_loss_that_is_not_finite_ends_the_job_at_its_step(strategy: dict[str, Any], value: float, word: str) -> None:
    spec = job(strategy, budget={"steps": 200}, on_divergence="fail")
    with pytest.raises(
        Diverged, match=rf"worker \d, step (\d+): the loss is {word}; lower the learning rate"
    ) as raised:
        Simulation(spec, workload=Workload(Exploding(value))).run()
    assert raised.value.step in (4, 5), "at the step it happens, not at the next synchronisation"


def test_a_gradient_that_is_not_finite_is_named() -> None:
    class Rooted(models.Regression):
        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
            return super().loss(model, batch) + (0 * model[2].bias).sqrt().sum()  # finite itself, its slope is not

    with pytest.raises(
        Diverged, match=r"worker 0, step 0: the gradient of 2\.bias holds a NaN .* though the loss is \d"
    ):
        run(Rooted(), {"kind": "local_sgd", "sync_every": 100}, on_divergence="fail")


# Smaller things


def test_norms_of_long_vectors_are_summed_in_double() -> None:
    vector = torch.randn(20_000_000, generator=torch.Generator().manual_seed(1))
    exact = float(vector.double().dot(vector.double()))
    assert abs(squared_norm(vector) / exact - 1) < 1e-5
    assert abs(float(torch.dot(vector, vector)) / exact - 1) > 1e-4, "what one sum in fp32 would err by"


def test_augmentation_resumes_bit_for_bit() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 3}, scale={"shards": 2})

    def simulation() -> Simulation:
        return Simulation(spec, workload=Workload(models.Augmented()))

    whole = simulation()
    whole.after(0.3, lambda: whole.tell(m.TakeCheckpoint()))
    whole.run()
    stored = io.BytesIO()
    torch.save(whole.checkpoints[1], stored)
    stored.seek(0)
    restored = Simulation.restore(spec, torch.load(stored, weights_only=True), workload=Workload(models.Augmented()))
    restored.run()
    assert torch.equal(final_vector(whole), final_vector(restored))


def test_reading_extras_takes_only_what_is_asked_for() -> None:
    spec: JobSpec = job({"kind": "local_sgd"}, optimizer={"kind": "adam"}, inner_state="average")
    replica = Replica(spec, Workload(models.Odd()))
    whole = replica.extras()
    pieces = [replica.read_extras(start, min(start + 7, len(whole))) for start in range(0, len(whole), 7)]
    assert torch.equal(torch.cat(pieces), whole)


def test_an_embedding_that_renormalises_its_rows_is_refused_where_the_server_owns_them() -> None:
    with pytest.raises(TaskError, match=r"parameter '0\.weight' was changed in place.*local_sgd"):
        run(models.MaxNorm(), {"kind": "bsp"})
    run(models.MaxNorm(), {"kind": "local_sgd", "sync_every": 3})


@pytest.mark.parametrize("task", [*models.TABLE.values(), models.Parametrized], ids=lambda task: task.__name__)
def test_models_as_people_bring_them_train_as_in_plain_torch(task: type[models.Regression]) -> None:
    spec = job(
        {"kind": "bsp"},
        optimizer={"kind": "sgd", "lr": reference.LR, "momentum": reference.MOMENTUM},
        data={"batch_size": reference.BATCH},
        scale={"workers": reference.WORKERS},
        budget={"steps": reference.STEPS},
        seed=reference.SEED,
    )
    simulation = Simulation(spec, workload=Workload(task()))
    simulation.run()
    assert reference.distance(model_of(simulation), reference.train(task())) < 1e-5
