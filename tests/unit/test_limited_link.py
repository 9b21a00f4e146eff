"""A link held to a rate: what it holds back, in which order, and that a limit can be lifted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from actors.errors import UnknownPeer
from actors.link.base import Envelope
from actors.link.limited import LimitedLink
from raysync.address import Address, worker
from raysync.engine import messages as m
from raysync.sim import Network, Pace, Simulation
from raysync.spec import Transport
from tests.jobs import job, workload

NEAR, FAR = worker(1), worker(2)


class Recorder:
    """A link that notes when it was given what, and lets the clock run while it is asked to wait."""

    kind = "recorder"

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sent: list[tuple[float, Address, int]] = []
        self.forgotten: list[Address] = []
        self.unknown: set[Address] = set()

    def send(self, to: Address, message: m.Message) -> None:
        if to in self.unknown:
            raise UnknownPeer(str(to))
        self.sent.append((round(self.now_s - 100, 3), to, message.payload_bytes))

    def receive(self, timeout_s: float) -> list[Envelope]:
        self.now_s += timeout_s
        return []

    def forget(self, names: Any) -> None:
        self.forgotten += names

    def connect(self, book: Mapping[Address, Any]) -> None: ...

    def wake(self) -> None: ...

    def probe(self, peers: list[Address], timeout_s: float) -> list[Address]:
        return []

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, linger_s: float = 0.0) -> None: ...


def update(size_bytes: int) -> m.Update:
    """Return a message that weighs so much, its head included."""
    return m.Update(block=0, round=1, payload_kind="displacement", payload=bytes(size_bytes - 96))


def made(limit_mbit: float | None, latency_ms: float = 0.0) -> tuple[LimitedLink, Recorder]:
    below = Recorder()
    link = LimitedLink(below, now_s=lambda: below.now_s)
    link.limits(Transport(limit_mbit=limit_mbit, latency_ms=latency_ms))
    return link, below


def run(link: LimitedLink, below: Recorder, until_s: float) -> list[tuple[float, Address, int]]:
    while below.now_s - 100 < until_s - 1e-9:
        link.receive(min(1.0, until_s - (below.now_s - 100)))
    link.receive(0.0)
    return below.sent


def test_without_a_limit_everything_leaves_at_once() -> None:
    link, below = made(None)
    for size in (1000, 5_000_000):
        link.send(NEAR, update(size))
    assert [at for at, _, _ in below.sent] == [0, 0]


def test_messages_leave_when_a_line_of_that_rate_would_have_carried_them() -> None:
    """8 Mbit/s is a megabyte per second; all peers share the line."""
    link, below = made(8.0)
    for to, size in ((NEAR, 500_000), (FAR, 250_000), (NEAR, 250_000)):
        link.send(to, update(size))
    assert below.sent == [], "nothing arrives before it has gone through"
    assert [(at, to) for at, to, _ in run(link, below, 0.6)] == [(0.5, NEAR)]
    assert [(at, to) for at, to, _ in run(link, below, 5.0)] == [(0.5, NEAR), (0.75, FAR), (1.0, NEAR)]
    link.send(FAR, update(1_000_000))
    assert run(link, below, 7.0)[-1][:2] == (6.0, FAR), "a line that was idle has saved nothing up"


def test_messages_arrive_later_by_the_latency_and_do_not_wait_for_each_other() -> None:
    link, below = made(None, latency_ms=20)
    link.send(NEAR, update(1_000))
    below.now_s += 0.005
    link.send(FAR, update(1_000))
    assert below.sent == []
    assert [(at, to) for at, to, _ in run(link, below, 1.0)] == [(0.02, NEAR), (0.025, FAR)]

    link, below = made(8.0, latency_ms=500)
    for _ in range(2):
        link.send(NEAR, update(250_000))
    assert [at for at, _, _ in run(link, below, 3.0)] == [0.75, 1.0], "the line is free while messages fly"
    link.send(FAR, update(1_000))
    below.now_s += 0.01
    assert not link.flush(0.1), "still in the air"


def test_a_limit_may_be_lifted_or_changed_while_messages_wait() -> None:
    link, below = made(8.0)
    for _ in range(3):
        link.send(NEAR, update(1_000_000))
    run(link, below, 1.0)
    link.limits(Transport(limit_mbit=16.0))
    assert [at for at, _, _ in run(link, below, 1.6)] == [1.0, 1.5]
    link.limits(Transport())
    link.send(FAR, update(1_000))
    assert [(at, to) for at, to, _ in run(link, below, 1.7)[2:]] == [(1.6, NEAR), (1.6, FAR)], "in order all the same"
    link.send(FAR, update(1_000))
    assert len(below.sent) == 5


def test_what_is_held_for_who_is_gone_is_dropped() -> None:
    link, below = made(8.0)
    link.send(NEAR, update(500_000))
    link.send(FAR, update(500_000))
    link.forget([NEAR])
    assert run(link, below, 3.0) == [(0.5, FAR, 499_904)]
    assert below.forgotten == [NEAR]


def test_a_peer_that_is_gone_when_its_message_is_due_ends_no_loop() -> None:
    link, below = made(8.0)
    below.unknown = {NEAR}
    link.send(NEAR, update(500_000))
    link.send(FAR, update(500_000))
    assert run(link, below, 3.0) == [(1.0, FAR, 499_904)]


def test_what_is_said_again_while_it_waits_is_sent_once() -> None:
    link, below = made(8.0)
    message = update(500_000)
    for to in (NEAR, NEAR, FAR):
        link.send(to, message)
    assert [to for _, to, _ in run(link, below, 3.0)] == [NEAR, FAR]


def test_last_words_leave_within_their_bound_or_are_said_to_be_left() -> None:
    link, below = made(8.0)
    link.send(NEAR, update(1_000))
    link.send(NEAR, update(60_000_000))
    below.now_s += 0.01
    assert not link.flush(0.05)
    assert [size for _, _, size in below.sent] == [1_000 - 96]
    link, below = made(8.0)
    link.send(NEAR, update(1_000))
    below.now_s += 0.01
    assert link.flush(0.05)


def test_the_simulator_adds_a_jobs_latency() -> None:
    fast = Network(bandwidth_bits_per_s=1e12, latency_s=0.0)
    took_s = []
    for latency_ms in (0.0, 20.0):
        spec = job({"kind": "bsp"}, transport={"latency_ms": latency_ms})
        simulation = Simulation(spec, workload=workload(spec), pace=Pace(step_s=0.0), network=fast)
        simulation.run()
        took_s.append(simulation.now_s)
    assert took_s[0] < 0.001
    assert took_s[1] >= 30 * 2 * 0.02, "there and back in every round"


@pytest.mark.parametrize("limit_mbit", [None, 0.5])
def test_the_simulator_holds_a_job_to_its_limit(limit_mbit: float | None) -> None:
    """37 numbers both ways to 4 workers, 30 rounds; the knob lifts the limit half-way."""
    spec = job({"kind": "bsp"}, transport={"limit_mbit": limit_mbit})
    fast = Network(bandwidth_bits_per_s=1e12, latency_s=0.0)
    simulation = Simulation(spec, workload=workload(spec), pace=Pace(step_s=0.0), network=fast)
    simulation.run_until(lambda sim: sim.coordinator.steps_made >= 15)
    half_s = simulation.now_s
    simulation.turn(limit_mbit=None)
    simulation.run()
    if limit_mbit is None:
        assert simulation.now_s < 0.001
    else:
        assert half_s > 0.05
        assert simulation.now_s - half_s < 0.3 * half_s
