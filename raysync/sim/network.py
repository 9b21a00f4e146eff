"""The simulated world: how long a step takes, and when a message arrives.

Every host has one way in and one way out, each used by one message at a time; latency is added once per message.
"""

from __future__ import annotations

import math
import random

from pydantic import Field

from raysync.address import Address
from raysync.pipeline.base import Kind
from raysync.spec import Transport
from raysync.value import Value

_AT_ONCE = Transport()


class Network(Value):
    """Bandwidth and latency of the hosts; a core's address is its host, unless `hosts` says otherwise."""

    bandwidth_bits_per_s: float = Field(default=100e6, gt=0)
    latency_s: float = Field(default=0.001, ge=0)
    host_bandwidth_bits_per_s: dict[str, float] = Field(default_factory=dict)
    """Hosts with a bandwidth of their own, for example {"worker/0": 10e6}."""
    hosts: dict[str, str] = Field(default_factory=dict)
    """Cores that share a host, for example {"shard/0": "worker/0"}; messages inside a host take no time."""
    has_lanes: bool = False
    """Messages without a payload go beside those with one, as on connections of their own; else they queue behind."""
    latencies_s: dict[str, float] = Field(default_factory=dict)
    """Hosts that are further from all others, for example {"server": 0.05}."""


class Pace(Value):
    """How long workers compute: pure in (seed, worker, step)."""

    step_s: float = Field(default=0.02, ge=0)
    jitter: float = Field(default=0.0, ge=0)
    """Standard deviation of the logarithm of a step's duration."""
    slow: dict[int, float] = Field(default_factory=dict)
    """Workers, or pipelines, that take a multiple of the time at every step."""
    forward_s: float = Field(default=0.005, ge=0)
    """What a stage takes for the forward pass of a microbatch."""
    backward_s: float = Field(default=0.01, ge=0)
    """What it takes for the backward pass, a repeated forward pass included."""
    slow_stages: dict[int, float] = Field(default_factory=dict)
    """Stages that take a multiple of the time, in every pipeline."""
    hiccup_share: float = Field(default=0.0, ge=0, le=1)
    """Share of steps, of any worker, that take `hiccup_factor` times as long."""
    hiccup_factor: float = Field(default=10.0, ge=1)

    write_s: float = Field(default=0.05, ge=0)
    """What writing a core's part of a checkpoint takes, on average: between half of it and half as much again."""

    def write_s_of(self, seed: int, address: Address, checkpoint: int) -> float:
        """Return how long a core's part of a checkpoint takes to write, while it goes on."""
        return self.write_s * random.Random(f"write/{seed}/{address}/{checkpoint}").uniform(0.5, 1.5)

    def duration_s(self, seed: int, worker: int, step: int) -> float:
        """Return how long a worker takes for a step."""
        generator = random.Random(f"pace/{seed}/{worker}/{step}")
        factor = generator.lognormvariate(0, self.jitter) if self.jitter else 1.0
        if generator.random() < self.hiccup_share:
            factor *= self.hiccup_factor
        return self.step_s * factor * self.slow.get(worker, 1.0)

    def pass_s(self, seed: int, address: Address, kind: Kind, step: int, microbatch: int) -> float:
        """Return how long a stage takes for an operation; the optimizer's step is part of the backward pass."""
        if kind is Kind.STEP:
            return 0.0
        generator = random.Random(f"pace/{seed}/{address}/{kind.value}/{step}/{microbatch}")
        factor = generator.lognormvariate(0, self.jitter) if self.jitter else 1.0
        factor *= self.slow.get(address.index, 1.0) * self.slow_stages.get(address.stage, 1.0)
        return factor * (self.forward_s if kind is Kind.FORWARD else self.backward_s)


class Wires:
    """When each host's way in and out is free again."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._out_free_s: dict[str, float] = {}
        self._in_free_s: dict[str, float] = {}

    def arrival_s(
        self,
        sender: str,
        receiver: str,
        size_bytes: int,
        now_s: float,
        own: Transport = _AT_ONCE,
        is_control: bool = False,
    ) -> float:
        """Return when a message sent now arrives, and occupy both ends until then; `own` are the sender's limits."""
        source, target = (self._network.hosts.get(address, address) for address in (sender, receiver))
        if source == target:
            return now_s
        lane = "/control" if is_control and self._network.has_lanes else ""
        way_out, way_in = source + lane, target + lane
        start_s = max(now_s, self._out_free_s.get(way_out, 0.0))
        sent_s = start_s + 8 * size_bytes / min(self._bandwidth(source), 1e6 * (own.limit_mbit or math.inf))
        far = self._network.latencies_s
        latency_s = max(self._network.latency_s, far.get(source, 0.0), far.get(target, 0.0))
        latency_s += own.latency_ms / 1e3
        begin_s = max(start_s + latency_s, self._in_free_s.get(way_in, 0.0))
        arrival_s = max(sent_s + latency_s, begin_s + 8 * size_bytes / self._bandwidth(target))
        self._out_free_s[way_out], self._in_free_s[way_in] = sent_s, arrival_s
        return arrival_s

    def _bandwidth(self, host: str) -> float:
        return self._network.host_bandwidth_bits_per_s.get(host, self._network.bandwidth_bits_per_s)
