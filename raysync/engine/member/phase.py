"""The phases of a worker: what it is waiting for."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a worker is waiting for."""

    NEW = "new"
    """to be started"""
    JOINING = "joining"
    """a welcome"""
    FETCHING = "fetching"
    """the state of every block"""
    READY = "ready"
    """the host, to compute a step"""
    LANDING = "landing"
    """the means that are in the air, before all meet; the round that is, before the next begins"""
    ACKING = "acking"
    """acknowledgements of its pushes, where they are applied on arrival"""
    DECIDING = "deciding"
    """the decision about its step"""
    SYNCING = "syncing"
    """the updates of a round"""
    HANDING = "handing"
    """acknowledgements of the residuals it hands over"""
    PARTING = "parting"
    """the coordinator's word that its farewell was heard"""
    GONE = "gone"
    """nothing any more"""
