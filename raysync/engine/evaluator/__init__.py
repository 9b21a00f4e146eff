"""The evaluator core: judges models beside the training. Import `Evaluator` from here."""

from raysync.engine.evaluator.evaluator import Evaluator

__all__ = ["Evaluator"]
