"""Sparse averaging by the real classes of replica and shard, at a fixed delay: where it is stable, and how far replicas
drift apart.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysync.address import worker
from raysync.blocks import Block, Content
from raysync.compress import FP16, Compressor, Identity, TopK
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.engine.server.block import ParameterBlock
from raysync.engine.server.part_ledger import PartLedger
from raysync.engine.training.parts import Parts, partition
from raysync.errors import SpecError
from raysync.spec import JobSpec, parse_spec
from raysync.sync.async_sparse import AsyncSparse, stability_limit

SIZE = 2000


def job(**strategy: Any) -> JobSpec:
    fields = {
        "kind": "async_sparse",
        "sparse_fraction": 0.05,
        "staleness_bound": 10,
        "ema_hold_steps": 10**6,
        **strategy,
    }
    return parse_spec({"task": {"kind": "quadratic"}, "strategy": fields, "scale": {"workers": 4}})


class Group:
    """Replicas and the shard between them; means take `delay` steps to land."""

    def __init__(self, spec: JobSpec, replicas: int = 4, delay: int = 10, codec: Compressor | None = None) -> None:
        self.spec, self._delay, self._codec = spec, delay, codec or Identity()
        self._block = Block(0, Content.PARAMETER, 0, SIZE)
        self.flats = [torch.zeros(SIZE) for _ in range(replicas)]
        self.sides = [
            Parts(
                spec,
                SimpleNamespace(flat=flat, shared_moments=[]),  # type: ignore[arg-type]
                SimpleNamespace(visible=flat.clone(), blocks=(self._block,)),  # type: ignore[arg-type]
            )
            for flat in self.flats
        ]
        self.server, self.ledger = ParameterBlock(spec, 0, torch.zeros(SIZE)), PartLedger(spec, 0)
        self.view = View(1, tuple(worker(index) for index in range(replicas)))
        self._due: dict[int, list[m.PartMean]] = {}
        self._generator = torch.Generator().manual_seed(0)

    def step(self, number: int, spread: float, drift: float = 0.0) -> None:
        """Let every replica move by `drift` and noise of its own, send its part, and land what is due."""
        for index, (flat, side) in enumerate(zip(self.flats, self.sides, strict=True)):
            flat += drift + spread * torch.randn(SIZE, generator=self._generator)
            flight = side.start(self.spec, number, self._block, self._codec, number)
            push = m.PushPart(
                view=1, sender=worker(index), block=0, round=number, base=flight.base, payload=flight.payload
            )
            sends = self.ledger.on_push(push, self.server, self.view)
            means = [send.message for send in sends if isinstance(send, Send)]
            self._due.setdefault(number + self._delay, []).extend(
                mean for mean in means[:1] if isinstance(mean, m.PartMean)
            )
        for mean in self._due.pop(number, []):
            for side in self.sides:
                side.land(self.spec, mean, number)

    def variance(self) -> float:
        stacked = torch.stack(self.flats)
        return float((stacked - stacked.mean(0)).square().mean())


def test_a_part_is_a_partition_and_the_same_for_everybody() -> None:
    parts = partition(7, 3, 101, 20)
    assert len(parts) == 20
    assert torch.cat(parts).sort().values.tolist() == [*range(101)]
    assert {len(part) for part in parts} == {5, 6}
    assert all(torch.equal(one, other) for one, other in zip(parts, partition(7, 3, 101, 20), strict=True))
    assert len(partition(7, 3, 4, 20)) == 4, "a block of four has four parts"


@pytest.mark.parametrize(("fraction", "is_stable"), [(0.25, True), (0.34, False)])
def test_stable_at_four_parts_and_divergent_at_three(fraction: float, is_stable: bool) -> None:
    """tau = 10, beta = 0.5: two flights in the air are borne, three are not; the shard and replicas really do it."""
    spec = job()
    strategy = spec.strategy.model_copy(update={"sparse_fraction": fraction})
    group = Group(spec.model_copy(update={"strategy": strategy}))
    for number in range(400):
        group.step(number, 0.05)
    assert (group.variance() < 1.0) is is_stable


def test_what_diverges_is_refused_with_the_nearest_that_holds() -> None:
    with pytest.raises(SpecError) as caught:
        job(sparse_fraction=0.34)
    told = str(caught.value)
    assert "3 flights" in told
    assert "ema_beta > 0.555" in told
    assert "sparse_fraction: 0.25" in told
    assert "staleness_bound: 8" in told
    assert "ema_beta: 0.56" in told
    job(sparse_fraction=0.25)
    job(sparse_fraction=0.34, staleness_bound=8)
    job(sparse_fraction=0.34, ema_beta=0.56)
    with pytest.raises(SpecError, match="diverges"):
        job(landing="delta_rule", staleness_bound=40)
    job(landing="overwrite", staleness_bound=40)


def test_the_limit_is_that_of_delayed_descent() -> None:
    found = [round(stability_limit(flights), 3) for flights in (0, 1, 2, 3, 4, 5, 10)]
    assert found == [2.0, 1.0, 0.618, 0.445, 0.347, 0.285, 0.149]


@pytest.mark.parametrize(
    ("strategy", "delay", "expected"),
    [
        ({}, 0, 0.0178),
        ({"landing": "overwrite"}, 10, 0.0183),
        ({"landing": "delta_rule"}, 10, 0.0366),
        ({"ema_beta": 0.5}, 10, 0.0241),
        ({"ema_beta": 0.9, "ema_final_beta": 0.9}, 10, 0.0191),
    ],
)
def test_replicas_drift_as_far_as_the_formula_says(strategy: dict[str, Any], delay: int, expected: float) -> None:
    """Var(w_i - mean) = (D-1)/D q [(c-1)/2 + tau (1-beta)/(1+beta)], D = 4, c = 20, q = 0.0025."""
    group = Group(job(**strategy), delay=delay)
    found = []
    for number in range(900):
        group.step(number, 0.05)
        if number >= 500:
            found.append(group.variance())
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.12)


def test_the_correction_keeps_progress_that_overwriting_loses() -> None:
    """All move by 0.01 a step; with sparse_fraction * tau = 0.5 overwriting throws a third of it away."""
    ends = {}
    for landing in ("ema", "delta_rule", "overwrite"):
        group = Group(job(landing=landing))
        for number in range(400):
            group.step(number, 0.0, drift=0.01)
        ends[landing] = float(torch.stack(group.flats).mean())
    assert ends["ema"] == pytest.approx(4.0, rel=0.01)
    assert ends["delta_rule"] == pytest.approx(4.0, rel=0.01)
    assert ends["overwrite"] < 0.75 * 4.0


@pytest.mark.parametrize("codec", [FP16(), TopK(ratio=0.2)])
def test_what_a_codec_leaves_out_is_part_of_the_next_difference(codec: Compressor) -> None:
    """Replicas that begin apart come together, though each round only tells a part of a part."""
    group = Group(job(ema_beta=0.0, staleness_bound=1, landing="overwrite"), delay=0, codec=codec)
    for flat in group.flats:
        flat += torch.randn(SIZE)
    before = group.variance()
    for number in range(600):
        group.step(number, 0.0)
    assert group.variance() < 1e-4 * before


def test_means_that_come_too_late_change_nothing_but_the_reference() -> None:
    group = Group(job(staleness_bound=3), delay=5)
    for number in range(60):
        group.step(number, 0.05)
    lonely = Group(job(staleness_bound=3), delay=10**6)
    for number in range(60):
        lonely.step(number, 0.05)
    assert all(torch.equal(one, other) for one, other in zip(group.flats, lonely.flats, strict=True))


def test_a_missing_replica_changes_the_divisor_once_the_others_are_far_ahead() -> None:
    spec = job(staleness_bound=4)
    block, ledger = ParameterBlock(spec, 0, torch.zeros(40)), PartLedger(spec, 0)
    view = View(1, (worker(0), worker(1), worker(2)))

    def push(who: int, round: int) -> list[Any]:
        payload = Identity().encode(torch.full((2,), float(who + 1)), 0)
        told = m.PushPart(view=1, sender=worker(who), block=0, round=round, base=-1, payload=payload)
        return ledger.on_push(told, block, view)

    assert [push(who, round) for round in range(2) for who in (0, 1)] == [[]] * 4
    sends = push(0, 2)
    assert {(send.to, send.message.round) for send in sends} == {(worker(who), 0) for who in range(3)}
    assert block.y[partition(spec.seed, 0, 40, 20)[0]].tolist() == [1.5, 1.5]
    (late,) = push(2, 0)
    assert (late.to, late.message) == (worker(2), sends[0].message), "who comes late is told, and does not count"


def test_beta_stays_and_then_grows_along_a_cosine() -> None:
    strategy = AsyncSparse(ema_beta=0.5, ema_final_beta=0.99, ema_hold_steps=100)
    found = [round(strategy.beta_at(step, 1100), 3) for step in (0, 100, 600, 1100)]
    assert found == [0.5, 0.5, 0.745, 0.99]
