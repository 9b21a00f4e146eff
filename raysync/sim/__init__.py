"""The engine on a virtual clock."""

from __future__ import annotations

from raysync.sim.faults import Fault, random_faults
from raysync.sim.network import Network, Pace
from raysync.sim.simulation import SimResult, Simulation

__all__ = ["Fault", "Network", "Pace", "SimResult", "Simulation", "random_faults"]
