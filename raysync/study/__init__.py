"""Studies: searches over the fields of a job. Here is what they are and what comes of them, without Ray: the space
(`space`), the specification (`study_spec`), trials (`trial`), the front (`front`) and the answer (`outcome`).
"""

from __future__ import annotations

from raysync.study.outcome import Outcome, Pick, outcome
from raysync.study.space import Dimension, Point
from raysync.study.study_spec import StudySpec, parse_study, read_study
from raysync.study.trial import Kind, Seen, State, Trial

__all__ = [
    "Dimension",
    "Kind",
    "Outcome",
    "Pick",
    "Point",
    "Seen",
    "State",
    "StudySpec",
    "Trial",
    "outcome",
    "parse_study",
    "read_study",
]
