"""Servers that die: a coordinator is succeeded by one that asks, a shard by its backup, and nothing changes by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysync.address import COORDINATOR, Address, shard, worker
from raysync.control.view import View
from raysync.engine import messages as m
from raysync.engine.effects import Send
from raysync.engine.server.mirror import Following, Mirror, packed, unpacked
from raysync.sim import Fault, SimResult, Simulation
from tests.audit import AuditedSimulation
from tests.engine.test_mesh import LATE, SPARSE, mesh
from tests.jobs import EVERY, job, workload

POINTS = ("coordinator.decided", "coordinator.saved", "coordinator.sending", "shard.received", "shard.closed")
SQUEEZED = {"push": {"kind": "onebit", "chunk": 32}, "pull": {"kind": "topk", "ratio": 0.4}}


def ran(name: str, faults: tuple[Fault, ...], **changes: Any) -> tuple[AuditedSimulation, SimResult]:
    scale = {"workers": 3, "shards": 2, "replicas": 1, "block_bytes": 80}
    spec = job(EVERY[name], budget={"steps": 14}, scale=scale, compression=SQUEEZED, **changes)
    simulation = AuditedSimulation(spec, workload=workload(spec), faults=faults, durable=True, max_time_s=300)
    result = simulation.run()
    simulation.check()
    return simulation, result


@pytest.mark.parametrize("point", [*POINTS, "shard.saved", "shard.sending"])
@pytest.mark.parametrize("name", ["bsp", "selsync", "selsync-overlap", "local_sgd", "diloco"])
def test_the_death_of_a_server_changes_no_bit_and_every_decision_is_told_once(name: str, point: str) -> None:
    calm, _ = ran(name, ())
    broken, result = ran(name, tuple(Fault(action="kill", where=point, nth=nth) for nth in (3, 11, 12)))
    assert broken.happened
    for index, core in broken.workers.items():
        assert torch.equal(core.shared.visible, calm.workers[index].shared.visible)
    decided = [event.step for event in result.events if event.kind == "decision"]
    assert decided == list(range(14))
    rounds = [event.data["round"] for event in result.events if event.kind == "decision" and event.data["sync"]]
    assert rounds == list(range(len(rounds)))


@pytest.mark.parametrize("name", ["ssp", "fedavg-half"])
def test_others_end_with_balanced_books(name: str) -> None:
    for nth in (2, 6, 13):
        faults = tuple(Fault(action="kill", where=point, nth=nth) for point in POINTS)
        simulation, _ = ran(name, faults)
        assert len(simulation.happened) >= 3


def test_a_shard_and_its_successors_die_one_after_the_other() -> None:
    spec = job(EVERY["bsp"], budget={"steps": 300}, scale={"workers": 2, "shards": 2, "replicas": 1})
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    for n in range(5):
        simulation.after(0.2 + 0.8 * n, lambda: simulation.kill(simulation.coordinator.view.servers[0], 0.1))
    simulation.run()
    simulation.check()
    servers = simulation.coordinator.view.servers
    assert servers[0].index == 2 * 5, "each was followed by the one that stood by for it"
    assert {server.index % 2 for server in servers} == {0, 1}


@pytest.mark.parametrize("replicas", [0, 1])
def test_without_a_backup_nothing_is_copied(replicas: int) -> None:
    sent: list[str] = []
    spec = job(scale={"workers": 2, "shards": 2, "replicas": replicas})
    Simulation(spec, workload=workload(spec), on_send=lambda _, send: sent.append(type(send.message).__name__)).run()
    assert ("Copy" in sent) == bool(replicas)


def test_a_mesh_that_never_waits_loses_its_coordinator_and_its_shards() -> None:
    spec = mesh(2, 2, LATE, SPARSE, budget={"steps": 40}, scale={"workers": 2, "stages": 2, "shards": 2, "replicas": 1})
    faults = tuple(
        Fault(action="kill", where=where, nth=nth)
        for where, nth in (("coordinator.saved", 6), ("shard.closed", 4), ("shard.received", 3), ("stage.forward", 30))
    )
    simulation = Simulation(spec, faults=faults, max_time_s=600)

    def kill_shard() -> None:
        for server in simulation.coordinator.view.servers[:1]:
            simulation.kill(server, 0.1)

    for moment_s in (0.15, 0.8):
        simulation.after(moment_s, lambda: simulation.kill(COORDINATOR, 0.1))
        simulation.after(moment_s + 0.3, kill_shard)
    result = simulation.run()
    assert simulation.coordinator.finished
    assert simulation.saved_by
    assert "eval/loss" in result.metrics


def test_knobs_that_were_turned_survive_the_coordinator() -> None:
    spec = job(EVERY["selsync"], budget={"steps": 30})
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    simulation.after(0.1, lambda: simulation.turn(lr=0.02))
    simulation.after(0.1001, lambda: simulation.kill(COORDINATOR, 0.2))
    simulation.after(0.5, lambda: simulation.turn(delta=0.7))
    simulation.after(0.6, lambda: simulation.kill(COORDINATOR, 0.2))
    result = simulation.run()
    values = simulation.coordinator.knobs.values
    assert (values["lr"], values["delta"], simulation.coordinator.knobs.version) == (0.02, 0.7, 2)
    versions = [event.knob_version for event in result.events if event.kind == "decision"]
    assert versions == sorted(versions)


def test_a_shard_that_dies_in_a_checkpoint_costs_that_one_only() -> None:
    scale = {"workers": 2, "shards": 2, "replicas": 1}
    spec = job(EVERY["bsp"], budget={"steps": 20}, scale=scale, checkpoint={"every_rounds": 3})
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    simulation.run_until(lambda sim: sim.coordinator.checkpoints.number == 1 and sim.coordinator.checkpoints.is_writing)
    simulation.run_until(lambda sim: not sim.coordinator.checkpoints.is_writing)
    simulation.run_until(lambda sim: sim.coordinator.checkpoints.is_writing)
    simulation.kill(simulation.coordinator.view.servers[0], 0.1)
    simulation.run()
    assert simulation.coordinator.finished
    told = [event for event in simulation.ledger.events if "checkpoint" in event.kind]
    (failed,) = [event.data for event in told if event.kind == "checkpoint_failed"]
    assert (failed["who"], failed["why"]) == ("shard/0", "it died before its part was written")
    following = told[[event.data for event in told].index(failed) + 1]
    assert (following.kind, following.data["checkpoint"]) == ("checkpoint", failed["checkpoint"] + 1)


def test_all_shards_of_a_process_die_while_a_coordinator_asks() -> None:
    scale = {"workers": 2, "stages": 2, "shards": 2, "replicas": 1}
    spec = mesh(2, 2, "gpipe", budget={"steps": 12}, scale=scale)
    simulation = Simulation(spec, durable=True, max_time_s=300)
    simulation.run_until(lambda sim: sim.coordinator.steps_made == 4)
    simulation.kill(COORDINATOR, 0.05)
    simulation.run_until(lambda sim: COORDINATOR in sim.cores and sim.coordinator.is_asking)
    simulation.kill(shard(2), 0.1)
    simulation.run()
    assert simulation.coordinator.finished


# One that was succeeded and lives


def test_a_coordinator_that_was_succeeded_is_not_obeyed() -> None:
    spec = job(EVERY["bsp"], budget={"steps": 20}, scale={"workers": 2, "shards": 2, "replicas": 1})
    simulation = AuditedSimulation(spec, workload=workload(spec), durable=True, max_time_s=300)
    simulation.run_until(lambda sim: sim.coordinator.steps_made == 5)
    old = simulation.coordinator
    simulation.kill(COORDINATOR, 0.05)
    simulation.run_until(lambda sim: COORDINATOR in sim.cores and sim.coordinator.steps_made > 8)
    stale = m.Decision(view=99, step=9, sync=False, reason="old", knobs=old.knobs, round=3, final=True)
    for who in (worker(0), worker(1)):
        assert simulation.cores[who].handle(stale) == []
        assert simulation.cores[who].handle(m.NewView(view=View(number=99, members=(who,)))) == []
    assert simulation.cores[shard(0)].handle(m.NewView(view=View(number=99))) == []
    simulation.run()
    assert torch.equal(*(core.shared.visible for core in simulation.workers.values()))


BACKUP = Address(worker(0).role.SHARD, 0, 2)
PUSH = m.Pull(view=1, sender=worker(0), block=0, round=0, participants=None)
SAID = [Send(worker(0), m.Ack(block=0, round=0))]


def followed() -> tuple[Mirror, Following, list[m.Message]]:
    """Return a shard's mirror whose backup has been filled, the backup, and what that one has heard."""
    mirror, following, heard = Mirror(shard(0)), Following(BACKUP), list[m.Message]()
    (fill,) = mirror.appoint(BACKUP, 1, lambda: [b"all"])
    (told,) = following.fill(fill.message, lambda parts: None)
    covers = mirror.copied(told.message)
    assert [cover.to for cover in covers] == [BACKUP, COORDINATOR]
    return mirror, following, heard


def test_what_a_shard_says_waits_until_its_backup_has_heard_what_it_rests_on() -> None:
    mirror, following, heard = followed()
    (copy,) = mirror.pass_on(PUSH, SAID)
    assert copy.to == BACKUP
    assert mirror.pass_on(m.HasPush(view=1, sender=worker(0), block=0, round=0), SAID) == [], "nor what rests on it"
    (told,) = following.copy(copy.message, heard.append)
    assert heard == [PUSH]
    assert mirror.copied(told.message) == [*SAID, *SAID]
    assert mirror.copied(told.message) == [], "once"
    assert following.copy(copy.message, heard.append) == [told], "it is told again"
    assert heard == [PUSH], "and not heard again"


def test_a_backup_takes_in_bytes_of_any_length() -> None:
    state = {"pushes": [{"payload": b"", "extra": b"more"}], "values": torch.arange(3.0)}
    found = unpacked(packed(state))
    assert found["pushes"] == state["pushes"]
    assert torch.equal(found["values"], torch.arange(3.0))


def test_copies_that_come_out_of_order_are_heard_in_order() -> None:
    mirror, following, heard = followed()
    others = [m.Pull(view=1, sender=worker(0), block=0, round=round, participants=None) for round in range(3)]
    copies = [mirror.pass_on(other, [])[0].message for other in others]
    following.copy(copies[2], heard.append)
    following.copy(copies[0], heard.append)
    assert heard == others[:1]
    following.copy(copies[1], heard.append)
    assert heard == others


def test_a_shard_that_was_succeeded_falls_silent() -> None:
    mirror, following, heard = followed()
    following.close(2)  # the backup serves now
    (copy,) = mirror.pass_on(PUSH, SAID)
    assert following.copy(copy.message, heard.append) == []
    assert heard == []
    assert [send.to for send in mirror.again()] == [BACKUP], "it asks in vain"
    mirror.retire()
    assert mirror.again() == []


def test_what_was_held_for_a_backup_that_died_leaves() -> None:
    mirror, _, _ = followed()
    mirror.pass_on(PUSH, SAID)
    assert mirror.appoint(None, 2, list) == SAID
    assert mirror.pass_on(PUSH, SAID) == SAID
