"""SelSync's signals against references written from the formulas."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from raysync.address import worker
from raysync.errors import KnobError
from raysync.knobs import apply_knobs, initial_knobs, turn
from raysync.spec import parse_spec
from raysync.sync import SelSync, StepContext
from raysync.sync.signal import Divergence, Fixed, GradChange, Random, StepStats
from raysync.sync.signal.grad_change import ewma
from raysync.value import whole


def reference(squared_norms: list[float], window: int, alpha: float) -> list[float]:
    """SelSync's Delta, straight from the formula: smooth the squared norm over the last W values, take the relative
    change.
    """
    deltas = []
    for i in range(len(squared_norms)):
        smooth = []
        for end in (i, i + 1):
            recent = np.array(squared_norms[max(0, end - window) : end])
            weights = (1 - alpha) ** np.arange(len(recent), 0, -1)
            smooth.append((weights * recent).sum() / weights.sum() if end else math.nan)
        deltas.append(abs(smooth[1] - smooth[0]) / smooth[0])
    return deltas


def _observe(signal: GradChange, norms: list[float], workers: int) -> list[float]:
    meter = signal.meter()
    return [meter.observe(StepStats(grad_sq=norm), workers)[0] for norm in norms]


@pytest.mark.parametrize(("window", "workers"), [(25, 16), (5, 4), (1, 2), (3, 99)])
def test_grad_change_matches_the_formula(window: int, workers: int) -> None:
    generator = random.Random(0)
    norms = [generator.lognormvariate(0, 0.6) for _ in range(80)]
    found = _observe(GradChange(window=window), norms, workers)
    assert found[0] == math.inf, "there is no change at the first step: synchronise"
    assert found[1:] == pytest.approx(reference(norms, window, workers / 100)[1:], rel=1e-12)


def test_alpha_is_workers_over_100_capped_at_one() -> None:
    norms = [1.0, 3.0, 2.0]
    assert _observe(GradChange(), norms, 250) == _observe(GradChange(alpha=1.0), norms, 4)
    assert _observe(GradChange(), norms, 16) == _observe(GradChange(alpha=0.16), norms, 4)


def test_ewma_is_the_authors_window() -> None:
    assert ewma([1.0, 2.0], 0.5) == pytest.approx((0.25 * 1 + 0.5 * 2) / 0.75)
    assert ewma([7.0], 0.01) == pytest.approx(7.0)


def test_upward_spike_of_the_noted_size_fires_and_a_fall_cannot() -> None:
    """From a flat history Delta reaches 0.3 at a spike of 2.85x with alpha 0.16; a fall gives at most about alpha."""
    flat = [1.0] * 60
    assert _observe(GradChange(), [*flat, 2.95], 16)[-1] >= 0.3
    assert _observe(GradChange(), [*flat, 2.75], 16)[-1] < 0.3
    assert _observe(GradChange(), [*flat, 1e-9], 16)[-1] < 0.17


@pytest.mark.parametrize("norms", [[0.0, 1.0], [1.0, math.inf], [math.nan, 1.0], [0.0, 0.0]])
def test_zero_or_broken_norm_calls_for_a_synchronisation(norms: list[float]) -> None:
    for order in ("smooth_change", "change_smooth", "smooth_change_smooth"):
        assert _observe(GradChange(order=order), norms, 4)[-1] == math.inf


def test_orders_differ_as_the_notes_say() -> None:
    """On stationary noise: smoothing last fires always at 0.3, smoothing first rarely, the released code's double
    one never.
    """
    generator = random.Random(1)
    norms = [generator.lognormvariate(0, 0.55) ** 2 for _ in range(3000)]
    rates = {}
    for order, alpha in (("smooth_change", 0.16), ("change_smooth", 0.16), ("smooth_change_smooth", 0.01)):
        found = _observe(GradChange(order=order, alpha=alpha), norms, 16)[100:]
        rates[order] = sum(value >= 0.3 for value in found) / len(found)
    assert rates["change_smooth"] > 0.95
    assert rates["smooth_change"] < 0.2
    assert rates["smooth_change_smooth"] == 0


def test_norm_kinds_pick_their_number() -> None:
    stats = [StepStats(grad_sq=4.0, tensor_norms=3.0), StepStats(grad_sq=9.0, tensor_norms=4.5)]
    for norm, expected in (("squared", 5 / 4), ("l2", 1 / 2), ("tensor_sum", 1 / 2)):
        meter = GradChange(norm=norm, alpha=1.0).meter()
        assert [meter.observe(one, 4) for one in stats][-1] == (expected,)


def test_meter_state_survives() -> None:
    norms = [random.Random(2).random() for _ in range(60)]
    for order in ("smooth_change", "change_smooth", "smooth_change_smooth"):
        whole, first, second = (GradChange(order=order).meter() for _ in range(3))
        expected = [whole.observe(StepStats(norm), 4) for norm in norms]
        for norm in norms[:33]:
            first.observe(StepStats(norm), 4)
        second.load_state_dict(first.state_dict())
        assert [second.observe(StepStats(norm), 4) for norm in norms[33:]] == expected[33:]


def _context(
    step: int, values: tuple[tuple[float, ...], ...] = (), last_sync_step: int = -1, **more: object
) -> StepContext:
    members = tuple(map(worker, range(max(1, len(values)))))
    return StepContext(step, last_sync_step, members, values, 10_000, 10, lambda _: 0.1, 7, **more)  # type: ignore[arg-type]


def test_divergence_over_estimates_the_variance() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        drift = generator.normal(size=(4, 30)) + generator.normal(size=30)
        direction = generator.normal(size=30)
        direction /= np.linalg.norm(direction)
        values = tuple((float(u @ u), float(u @ direction)) for u in drift)
        exact = np.mean([u @ u for u in drift]) - np.linalg.norm(drift.mean(axis=0)) ** 2
        assert Divergence().score(_context(0, values)) >= exact - 1e-9


@pytest.mark.parametrize("signal", [Random(rate=0.2), Fixed(rate=0.2)])
def test_controls_fire_at_their_rate(signal: Random | Fixed) -> None:
    strategy = SelSync(signal=signal)
    fired = [strategy.decide(_context(step)).sync for step in range(5000)]
    assert sum(fired) / 5000 == pytest.approx(0.2, abs=0.02)
    if isinstance(signal, Fixed):
        gaps = np.diff(np.flatnonzero(fired))
        assert gaps.min() == gaps.max() == 5


def test_delta_is_inclusive_and_any_worker_fires() -> None:
    strategy = SelSync(delta=0.3)
    assert strategy.decide(_context(100, ((0.1,), (0.3,), (0.0,)), 90)).sync
    assert not strategy.decide(_context(100, ((0.1,), (0.2999,), (0.0,)), 90)).sync
    assert SelSync(delta=0).decide(_context(100, ((0.0,),))).sync
    assert not SelSync(delta=math.inf).decide(_context(100, ((math.inf,),))).sync


def test_warm_up_and_intervals_bound_the_signal() -> None:
    quiet, loud = ((0.0,),), ((9.0,),)
    assert SelSync(delta=0.3).decide(_context(24, quiet)).sync, "the window of 25 is not full"
    assert not SelSync(delta=0.3).decide(_context(25, quiet, 24)).sync
    assert not SelSync(delta=0.3, warmup_steps=0).decide(_context(0, quiet)).sync
    rare = SelSync(delta=0.3, min_interval=5, max_interval=20, warmup_steps=0)
    assert not rare.decide(_context(53, loud, last_sync_step=50)).sync
    assert rare.decide(_context(55, loud, last_sync_step=50)).sync
    assert rare.decide(_context(70, quiet, last_sync_step=50)).sync
    assert not rare.decide(_context(69, quiet, last_sync_step=50)).sync


@pytest.mark.parametrize("target", [0.5, 0.9])
def test_target_rate_holds_the_wanted_lssr(target: float) -> None:
    """Whatever the scale of the signal, and although it changes ten-fold half-way."""
    strategy = SelSync(delta=0.3, target_lssr=target, warmup_steps=0)
    memory, generator, local, last = dict[str, float](), random.Random(3), 0, -1
    for step in range(6000):
        score = generator.lognormvariate(0, 1) * (0.01 if step < 3000 else 0.1)
        choice = strategy.decide(_context(step, ((score,),), last, memory=memory))
        memory, local, last = dict(choice.memory), local + (not choice.sync), step if choice.sync else last
    assert local / 6000 == pytest.approx(target, abs=0.03)


def test_a_signal_that_never_fires_says_so_and_is_overruled() -> None:
    """A small score under a large delta: replicas meet every 100 steps all the same, and the job says why."""
    strategy, memory, last, notices, syncs = SelSync(delta=0.3), {}, -1, {}, []
    for step in range(900):
        choice = strategy.decide(_context(step, ((0.07,), (0.02,)), last, memory=memory))
        memory, last = dict(choice.memory), step if choice.sync else last
        syncs += [step] if choice.sync and step >= 25 else []
        notices |= {step: choice.notice} if choice.notice else {}
    assert syncs == [124, 224, 324, 424, 524, 624, 724, 824]
    assert list(notices) == [124, 224, 424, 824], "then more rarely"
    assert "no synchronisation for 100 steps, so only every 100 steps: largest score 0.07, delta 0.3" in notices[124]
    assert "lower delta, or set max_interval or delta: auto" in notices[124]


def test_the_longest_gap_leaves_alone_who_asked_for_something_else() -> None:
    assert SelSync(delta=math.inf).longest_gap is None, "never means never"
    assert SelSync(signal=Fixed(rate=0.001)).longest_gap is None
    assert SelSync(delta=0.3, max_interval=7).longest_gap == 7
    assert SelSync(delta=0.3, target_lssr=0.99).longest_gap == 400
    assert SelSync(delta=0.3, min_interval=300).longest_gap == 300
    assert SelSync(delta=math.inf).decide(_context(5000, ((0.1,),))).notice is None


@pytest.mark.parametrize(
    ("fields", "shortest", "longest"),
    [
        ({}, 3, 10),
        ({"target_lssr": 0.9}, 5, 15),
        ({"target_lssr": 0.0}, 1, 2),
        ({"target_lssr": 0.99}, 50, 150),
        ({"min_interval": 1}, 1, 10),
        ({"max_interval": 2}, 2, 2),
        ({"min_interval": 30}, 30, 30),
        ({"delta": 0.3}, 1, 100),
        ({"signal": Fixed(rate=0.1)}, 1, None),
    ],
)
def test_auto_derives_both_gaps_from_its_rate(fields: dict[str, Any], shortest: int, longest: int | None) -> None:
    strategy = SelSync(**fields)
    assert (strategy.shortest_gap, strategy.longest_gap) == (shortest, longest)


@pytest.mark.parametrize("scale", [1e-6, 0.02, 50.0])
@pytest.mark.parametrize("lssr", [0.5, 0.85, 0.95])
def test_auto_holds_its_rate_and_its_gaps_whatever_the_signal(lssr: float, scale: float) -> None:
    """The signal comes in bursts, and changes ten-fold half-way."""
    strategy = SelSync(target_lssr=lssr)
    generator, memory, syncs = random.Random(5), dict[str, float](), [-1]
    for step in range(4000):
        loud = 5 if step // 40 % 3 == 0 else 1
        score = loud * generator.lognormvariate(0, 1) * scale * (1 if step < 2000 else 10)
        choice = strategy.decide(_context(step, ((score,),), syncs[-1], memory=memory))
        memory = dict(choice.memory)
        syncs += [step] if choice.sync else []
    gaps = np.diff(syncs)
    assert strategy.shortest_gap <= gaps.min() <= gaps.max() <= strategy.longest_gap
    assert len(gaps) / 4000 == pytest.approx(1 - lssr, rel=0.1)
    assert choice.threshold is not None
    # Within the gaps the signal chooses: bursts have more than their share of the steps.
    in_bursts = sum(step // 40 % 3 == 0 for step in syncs) / len(syncs)
    assert in_bursts > 0.36


def test_auto_begins_evenly_spaced_unless_a_warm_up_is_asked_for() -> None:
    """A synchronisation at each of the first steps, with a lossy codec, costs accuracy where data is skewed."""
    for strategy, expected in (
        (SelSync(), [6, 13, 20]),
        (SelSync(target_lssr=0.9), [9, 19]),
        (SelSync(max_interval=5), [4, 9, 14, 19, 24]),
        (SelSync(warmup_steps=4), [0, 1, 2, 3]),
    ):
        memory, syncs = dict[str, float](), [-1]
        for step in range(25 if strategy.warmup_steps is None else 4):
            choice = strategy.decide(_context(step, ((9.0,),), syncs[-1], memory=memory))
            memory, syncs = dict(choice.memory), [*syncs, step] if choice.sync else syncs
        assert syncs[1:] == expected
        assert memory["delta"] > 0.1, "meanwhile the threshold moves to where the signal is"


def test_a_threshold_set_by_hand_ends_the_automatic() -> None:
    for fields in ({}, {"target_lssr": 0.9}, {"delta": 0.2, "target_lssr": 0.9}):
        spec = parse_spec({"task": {"kind": "digits"}, "strategy": {"kind": "selsync", **fields}})
        knobs = initial_knobs(spec)
        turned = turn(spec, knobs, {"delta": 0.5})
        strategy = apply_knobs(spec, turned).strategy
        assert isinstance(strategy, SelSync)
        assert (strategy.delta, strategy.target_lssr) == (0.5, None)
        choice = strategy.decide(_context(50, ((0.6,),), 49))
        assert (choice.sync, choice.threshold, choice.memory.get("delta")) == (True, 0.5, None)
        back = apply_knobs(spec, turn(spec, turned, {"delta": "auto"})).strategy
        assert isinstance(back, SelSync)
        assert (back.delta, back.target_lssr) == ("auto", fields.get("target_lssr"))
    with pytest.raises(KnobError, match="delta"):
        turn(spec, knobs, {"delta": "often"})


@pytest.mark.parametrize(("number", "expected"), [(0.29 * 100, 29), (2.5, 2), (3.0000000000000004, 3), (-0.1 * 30, -3)])
def test_whole_numbers_survive_floating_point(number: float, expected: int) -> None:
    assert whole(number) == expected
