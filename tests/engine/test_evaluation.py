"""Evaluation: judged in parts by all workers at once, of the model of a named round, never of a part of the data alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from raysync.address import COORDINATOR, EVALUATOR, worker
from raysync.compress import verbatim
from raysync.engine import messages as m
from raysync.engine.coordinator import Coordinator
from raysync.engine.effects import Note, Send
from raysync.engine.evaluator import Evaluator
from raysync.events import Metrics
from raysync.sim import Fault, Pace, Simulation
from raysync.tasks.workload import WHOLE, Part, Workload
from tests import models
from tests.jobs import EVERY, SYNCHRONOUS, WatchedSimulation, final_vector, job

SPLIT = [name for name in SYNCHRONOUS if name != "selsync-gradients"]
"""Strategies under which all workers show the same model."""


class Counted(Workload):
    """Remembers which parts of the evaluation data were judged."""

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.judged: Counter[Part] = Counter()

    def evaluate(self, model: Any, part: Part = WHOLE) -> dict[str, float]:
        self.judged[part] += 1
        return super().evaluate(model, part)


def evaluations(simulation: Simulation) -> list[tuple[int, dict[str, float]]]:
    """Return step and metrics of what was judged before the end."""
    bodies = [(event.step, event.body) for event in simulation.ledger.events]
    return [
        (step, {name: value for name, value in body.values.items() if value is not None})
        for step, body in bodies
        if isinstance(body, Metrics) and "eval/loss" in body.values and step < simulation.spec.budget.steps
    ]


def distance(simulation: WatchedSimulation, round: int) -> float:
    """Return what evaluating all data on the model of a round comes to."""
    (visible,) = {tuple(vector.tolist()) for vector in simulation.after_round[round].values()}
    data = simulation.workload
    model = data.task.model()
    with torch.no_grad():
        model.get_parameter("w").copy_(torch.tensor(visible))
    return data.evaluate(model)["eval/loss"]


@pytest.mark.parametrize("name", EVERY)
def test_workers_with_one_model_judge_a_part_each(name: str) -> None:
    spec = job(EVERY[name], eval={"every": 10})
    data = Counted(spec.task.build())
    simulation = WatchedSimulation(spec, workload=data, pace=Pace(jitter=0.3))
    simulation.run()
    found = evaluations(simulation)
    assert [step for step, _ in found] == [0, 10, 20]
    parts = {Part(index, 4): 3 for index in range(4)} if name in SPLIT else {WHOLE: 3}
    assert data.judged == Counter(parts) + Counter({WHOLE: 1}), "and at the end the first worker judges all of it"
    for _, metrics in found if name in SPLIT else []:
        round = int(metrics["eval/round"])
        if round >= 0:
            assert metrics["eval/loss"] == pytest.approx(distance(simulation, round), rel=1e-5)


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("nth", [21, 22, 24, 41, 44])
def test_what_a_dead_worker_was_to_judge_is_missed_and_no_mean_is_told_without_it(name: str, nth: int) -> None:
    spec = job(EVERY[name], eval={"every": 1}, scale={"workers": 2})
    fault = Fault(action="kill", where="worker.computed", nth=nth)
    simulation = WatchedSimulation(spec, pace=Pace(jitter=0.5), faults=(fault,))
    simulation.run()
    assert simulation.happened
    found = evaluations(simulation)
    assert len(found) >= 20
    for _, metrics in found:
        round = int(metrics["eval/round"])
        if round in simulation.after_round:
            assert metrics["eval/loss"] == pytest.approx(distance(simulation, round), rel=1e-5)


def test_a_target_is_reached_by_parts() -> None:
    target = {"metric": "eval/distance", "value": 1.5}
    spec = job({"kind": "local_sgd", "sync_every": 3}, budget={"steps": 10_000, "target": target}, eval={"every": 5})
    simulation = WatchedSimulation(spec)
    simulation.run()
    last_step, metrics = evaluations(simulation)[-1]
    assert metrics["eval/distance"] <= 1.5
    assert simulation.coordinator.steps_made <= last_step + 3


@pytest.mark.parametrize("name", EVERY)
def test_an_evaluator_judges_the_same_models_beside_the_training(name: str) -> None:
    ends = {}
    for on in ("workers", "evaluator"):
        spec = job(EVERY[name], eval={"every": 10, "on": on}, scale={"workers": 2})
        data = Counted(spec.task.build())
        simulation = WatchedSimulation(spec, workload=data, pace=Pace(jitter=0.3))
        simulation.run()
        found = dict(evaluations(simulation))
        ends[on] = found, final_vector(simulation)
    assert data.judged == Counter({WHOLE: 4}), "and at the end the first worker"
    assert torch.equal(ends["workers"][1], ends["evaluator"][1]), "training is the same"
    split, beside = ends["workers"][0], ends["evaluator"][0]
    assert [*beside] == [0, 10, 20]
    for step, metrics in beside.items():
        assert metrics["eval/round"] == split[step]["eval/round"]
        assert metrics["eval/loss"] == pytest.approx(split[step]["eval/loss"], rel=1e-5)


def test_an_evaluator_that_dies_costs_an_evaluation_and_nothing_else() -> None:
    spec = job({"kind": "local_sgd", "sync_every": 3}, eval={"every": 5, "on": "evaluator"})
    calm = WatchedSimulation(spec)
    calm.run()
    fault = Fault(action="kill", where="evaluator.judging", nth=3, delay_s=0.1)
    struck = WatchedSimulation(spec, faults=(fault,))
    struck.run()
    assert struck.happened
    assert torch.equal(final_vector(calm), final_vector(struck))
    told = [step for step, _ in evaluations(struck)]
    assert {0, 5} <= {*told} < {step for step, _ in evaluations(calm)}


def test_of_models_that_wait_the_newest_is_judged_and_each_is_told_once() -> None:
    spec = job(eval={"every": 1, "on": "evaluator"})
    core = Evaluator(EVALUATOR, spec, Workload(spec.task.build()))
    size = core._judge.size_bytes // 4
    vectors = {step: verbatim.encode(torch.full((size,), float(step))) for step in (1, 3, 2)}
    models = [m.Judge(sender=worker(0), step=s, round=s, payload=vector) for s, vector in vectors.items()]
    for model in models:
        assert core.handle(model) == []
    said, to_worker = core.work()
    assert to_worker == Send(worker(0), m.SendNext(step=3))
    assert isinstance(said, Send)
    assert isinstance(said.message, m.Judged)
    assert (said.to, said.message.step, said.message.judgement.round) == (COORDINATOR, 3, 3)
    assert not core.is_ready()
    assert core.retry() == [said]
    core.handle(models[1])
    assert not core.is_ready(), "it was judged already"
    desk = Coordinator(COORDINATOR, spec)
    for _ in range(2):
        desk.handle(said.message)
    desk.handle(m.Judged(sender=EVALUATOR, step=2, judgement=said.message.judgement))
    notes = [effect.event for effect in desk.settle() if isinstance(effect, Note)]
    assert [(event.step, event.kind) for event in notes] == [(3, "metrics")]


def test_no_model_is_sent_to_an_evaluator_that_is_still_judging_or_to_one_that_is_gone_for_long() -> None:
    spec = job(eval={"every": 2, "on": "evaluator"}, scale={"workers": 1})
    sent: list[int] = []
    answers = True

    class Slow(WatchedSimulation):
        def send(self, core: Any, send: Send) -> None:
            if isinstance(send.message, m.Judge):
                sent.append(send.message.step)
            if answers or not isinstance(send.message, m.SendNext):
                super().send(core, send)

    Slow(spec).run()
    assert sent == [*range(0, 30, 2)], "one that answers gets every model"
    sent, answers = [], False
    Slow(spec).run()
    assert sent == [0, 10, 20], "one that does not is sent one in five: it may be another by then"


def test_a_target_is_reached_by_an_evaluator() -> None:
    target = {"metric": "eval/distance", "value": 1.5}
    spec = job(budget={"steps": 10_000, "target": target}, eval={"every": 5, "on": "evaluator"})
    simulation = WatchedSimulation(spec)
    simulation.run()
    assert simulation.coordinator.steps_made < 1000
    assert "target" in (simulation.coordinator.ending.reason or "")


@pytest.mark.parametrize(("name", "inner_state"), [("local_sgd", "average"), ("bsp", "keep"), ("ssp", "keep")])
def test_an_evaluator_sees_buffers_and_needs_no_moments(name: str, inner_state: str) -> None:
    """BatchNorm, frozen and unused parameters, a buffer of infinities; moments that workers average with Adam."""
    found = {}
    for on in ("workers", "evaluator"):
        common = {"optimizer": {"kind": "adam", "lr": 0.01}, "inner_state": inner_state, "scale": {"workers": 2}}
        simulation = Simulation(
            job(EVERY[name], eval={"every": 5, "on": on}, **common), workload=Workload(models.Odd())
        )
        simulation.run()
        found[on] = evaluations(simulation)
    assert [step for step, _ in found["evaluator"]] == [0, 5, 10, 15, 20, 25]
    for (_, split), (_, beside) in zip(found["workers"], found["evaluator"], strict=True):
        assert beside["eval/loss"] == pytest.approx(split["eval/loss"], rel=1e-4)
        assert beside["eval/round"] == split["eval/round"]
