"""A ratio turned in mid-run: in force from one round on, on every shard, whatever is lost on the way."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from raysync.address import Address, shard
from raysync.compress import Identity, TopK
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.sim import Fault, Pace, Simulation
from tests.audit import AuditedSimulation
from tests.jobs import SSP, SYNCHRONOUS, final_vector, job, workload

BLOCK = 40
"""Elements of a block; the vector has eight."""
WIDE, NARROW = 0.5, 0.1
SAME = {"pull_ratio": WIDE}
STRATEGIES = {
    **SYNCHRONOUS,
    "selsync": {**SYNCHRONOUS["selsync"], "delta": 0.0},
    "selsync-overlap": {**SYNCHRONOUS["selsync-overlap"], "delta": 0.0},
    "selsync-gradients": {**SYNCHRONOUS["selsync-gradients"], "delta": 0.0},
    "selsync-divergence": {**SYNCHRONOUS["selsync-divergence"], "delta": 0.0},
    "local_sgd": {"kind": "local_sgd", "sync_every": 1},
    "diloco": {"kind": "diloco", "sync_every": 2},
}
"""With rounds that come often."""


def _ratio(payload: bytes) -> float:
    """Return with which of the ratios a block was encoded: how an index is packed makes only a few bytes of difference."""
    return NARROW if len(payload) < 70 else WIDE if len(payload) < 130 else 1.0


def test_payloads_tell_their_ratio() -> None:
    for seed in range(50):
        block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(seed))
        for ratio in (NARROW, WIDE):
            assert _ratio(TopK(ratio=ratio).encode(block, seed)) == ratio
        assert _ratio(Identity().encode(block, seed)) == 1.0


def _spec(strategy: dict[str, Any], shards: int) -> Any:
    topk = {"kind": "topk", "ratio": WIDE}
    return job(
        strategy,
        task={"kind": "quadratic", "dim": 8 * BLOCK, "samples": 200},
        compression={"push": topk, "pull": topk},
        scale={"workers": 3, "shards": shards, "block_bytes": 4 * BLOCK},
        budget={"steps": 24},
    )


class Measured(AuditedSimulation):
    """Notes with which ratio every push and every update was made."""

    def __init__(self, *arguments: Any, **world: Any) -> None:
        self.ratios: dict[str, dict[int, dict[Address, set[float]]]] = {
            name: defaultdict(lambda: defaultdict(set)) for name in ("Push", "Update")
        }
        """By message, round and the shard it went to or came from."""
        super().__init__(*arguments, **world)

    def _watch(self, sender: Address, send: Send) -> None:
        super()._watch(sender, send)
        message = send.message
        if isinstance(message, m.Push | m.Update):
            server = send.to if isinstance(message, m.Push) else sender
            self.ratios[type(message).__name__][message.round][server].add(_ratio(message.payload))

    def before_and_after(self, name: str) -> tuple[int, int]:
        """Return the last round made with the wide ratio and the first with the narrow one; no shard and no worker may
        have seen another, and the final round of strategies that meet whole is dense.
        """
        found = {round: set[float]().union(*servers.values()) for round, servers in sorted(self.ratios[name].items())}
        assert all(len(ratios) == 1 for ratios in found.values()), f"{name}: two ratios in one round: {found}"
        everyone = {*map(shard, self.shards)}
        assert all({*servers} == everyone for servers in self.ratios[name].values()), "every shard has every round"
        wide, narrow = ([round for round, ratios in found.items() if ratios == {ratio}] for ratio in (WIDE, NARROW))
        dense = [round for round, ratios in found.items() if ratios == {1.0}]
        assert dense in ([], [max(found)])
        assert max(wide) < min(narrow), f"{name}: it was turned once: {found}"
        return max(wide), min(narrow)


FAULTS: dict[str, tuple[Fault, ...]] = {
    "calm": (),
    "a view is lost": tuple(Fault(action="drop", where="NewView", nth=nth) for nth in range(1, 9)),
    "a view is late": tuple(Fault(action="delay", where="NewView", nth=nth, delay_s=0.4) for nth in (1, 2, 3)),
    "words are lost": tuple(
        Fault(action="drop", where=where, nth=nth)
        for where, first in (("Decision", 20), ("Push", 80), ("Update", 80), ("Report", 20))
        for nth in (first, first + 7, first + 31)
    )
    + (Fault(action="drop", where="ViewSeen", nth=1),),
    "words are overtaken": tuple(
        Fault(action="reorder", where=where, nth=nth)
        for where, nth in (("Push", 75), ("Update", 77), ("NewView", 2), ("Decision", 22))
    ),
    "a shard dies": (Fault(action="kill", where="shard.closed", nth=90),),
    "the coordinator dies": (Fault(action="kill", where="coordinator.decided", nth=14),),
}


def _turn(simulation: Simulation, later_s: float, **changes: float) -> None:
    """Turn knobs a moment after the tenth step was decided on."""
    if simulation.coordinator.steps_made < 10:
        simulation.after(0.001, lambda: _turn(simulation, later_s, **changes))
    else:
        simulation.after(later_s, lambda: simulation.turn(**changes))


def _run(
    name: str,
    shards: int,
    trouble: str,
    later_s: float = 0.0,
    strategies: dict[str, dict[str, Any]] = STRATEGIES,
    **changes: float,
) -> Measured:
    spec = _spec(strategies[name], shards)
    faults, pace = FAULTS[trouble], Pace(jitter=0.4, slow={1: 1.5})
    simulation = Measured(spec, workload=workload(spec), faults=faults, pace=pace, durable=True, max_time_s=600)
    if changes:
        _turn(simulation, later_s, **changes)
    simulation.run()
    simulation.check()
    assert len(simulation.happened) == len(faults), "all of it strikes"
    return simulation


@pytest.mark.parametrize("trouble", FAULTS)
@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.matrix), 2])
@pytest.mark.parametrize("name", ["bsp", "selsync", "selsync-overlap", "local_sgd"])
def test_ratios_turn_at_one_round_on_all_shards(name: str, shards: int, trouble: str) -> None:
    simulation = _run(name, shards, trouble, push_ratio=NARROW, pull_ratio=NARROW)
    (turned,) = [event for event in simulation.ledger.events if event.kind == "knobs"]
    decided = {event.step: event.data for event in simulation.ledger.events if event.kind == "decision"}
    first = min(data["round"] for step, data in decided.items() if step >= turned.step and data["sync"])
    for message in ("Push", "Update"):
        assert simulation.before_and_after(message) == (first - 1, first), "the first decided on since it was turned"


@pytest.mark.parametrize("name", STRATEGIES)
def test_whenever_it_is_turned_no_round_has_two_ratios(name: str) -> None:
    """While a round is open on one shard and closed on another, too."""
    for moment in range(4):
        simulation = _run(name, 2, "calm", 0.008 * moment, pull_ratio=NARROW)
        last, first = simulation.before_and_after("Update")
        assert first == last + 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_how_fast_workers_are_changes_nothing_after_a_turn(name: str) -> None:
    """A turn that comes at the same step gives the same bits, whatever the timing."""
    spec, ends = _spec(STRATEGIES[name], 2), []
    for pace in (Pace(), Pace(jitter=0.5), Pace(slow={2: 4.0})):
        simulation = Simulation(spec, workload=workload(spec), pace=pace)
        simulation.run_until(lambda sim: sim.coordinator.pacing.next_step == 12)
        simulation.coordinator.board.turn({"pull_ratio": NARROW, "push_ratio": 0.3}, None)
        simulation.run()
        ends.append(final_vector(simulation))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_view_that_only_tells_of_knobs_moves_no_bit(name: str, shards: int) -> None:
    plain, turned = (_run(name, shards, "calm", strategies=SYNCHRONOUS, **changes) for changes in ({}, SAME))
    assert turned.coordinator.knobs.version == 1
    assert turned.coordinator.view.number == plain.coordinator.view.number + 1
    assert torch.equal(final_vector(plain), final_vector(turned))
    for number, core in plain.workers.items():
        assert torch.equal(core.replica.flat, turned.workers[number].replica.flat)


@pytest.mark.parametrize("name", STRATEGIES)
def test_until_it_is_turned_all_is_as_if_it_never_were(name: str) -> None:
    plain, turned = _run(name, 2, "calm"), _run(name, 2, "calm", pull_ratio=NARROW)
    _, first = turned.before_and_after("Update")
    rounds = {key: closed for key, closed in turned.closed.items() if key[1] <= first}
    assert {key[1] for key in rounds} == set(range(first + 1))
    for key, closed in rounds.items():
        assert torch.equal(closed.after, plain.closed[key].after), f"block and round {key[:2]}"
    assert not torch.equal(final_vector(plain), final_vector(turned)), "and then it makes a difference"


@pytest.mark.parametrize("trouble", FAULTS)
@pytest.mark.parametrize("shards", [1, 2])
def test_without_rounds_every_worker_sees_a_ratio_turn_once(shards: int, trouble: str) -> None:
    spec = _spec(SSP, shards)
    seen: dict[tuple[Address, Address], dict[int, set[float]]] = defaultdict(lambda: defaultdict(set))

    def watch(sender: Address, send: Send) -> None:
        if isinstance(send.message, m.Update):
            seen[sender, send.to][send.message.round].add(_ratio(send.message.payload))

    simulation = Simulation(
        spec, workload=workload(spec), faults=FAULTS[trouble], pace=Pace(jitter=0.4), on_send=watch, durable=True
    )
    _turn(simulation, 0.0, pull_ratio=NARROW)
    simulation.run()
    for clocks in seen.values():
        used = [ratio for _, ratios in sorted(clocks.items()) for ratio in sorted(ratios, reverse=True)]
        assert used == sorted(used, reverse=True), "never back"
        assert {*used} == {WIDE, NARROW}
