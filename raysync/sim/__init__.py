"""The engine on a virtual clock: the same cores as on Ray, a modelled network, and faults on purpose.

Import the names below. `simulation` is the host, `faults` where and how it may be broken; a new fault is an action
there, and the random schedules of `make faults` draw it.
"""

from __future__ import annotations

from raysync.sim.faults import Fault, random_faults
from raysync.sim.ledger import SimResult
from raysync.sim.network import Network, Pace
from raysync.sim.simulation import Simulation

__all__ = ["Fault", "Network", "Pace", "SimResult", "Simulation", "random_faults"]
