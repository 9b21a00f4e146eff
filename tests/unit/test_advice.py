"""Fragile combinations are named before they run, with what to change; what is sound is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from raysync.advice import advice
from raysync.spec import parse_spec

ONEBIT = {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}
TOP = {"push": {"kind": "topk", "ratio": 0.01}}
MOMENTUM = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimizer": MOMENTUM, "compression": ONEBIT}, ["optimizer.momentum=0.9", "compression.pull to int8"]),
        ({"strategy": {"kind": "diloco"}, "compression": ONEBIT}, ["outer.momentum=0.9", "outer.momentum to 0"]),
        (
            {"strategy": {"kind": "selsync", "delta": 0.3}, "compression": TOP},
            ["delta=0.3", "ratio 0.01", "delta: auto"],
        ),
    ],
)
def test_what_is_fragile_is_said_with_a_remedy(fields: dict[str, Any], words: list[str]) -> None:
    (sentence,) = advice(parse_spec({"task": {"kind": "digits"}, **fields}))
    assert all(word in sentence for word in words)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"optimizer": MOMENTUM},
        {"optimizer": MOMENTUM, "compression": {"push": {"kind": "onebit"}}},
        {"strategy": {"kind": "selsync"}, "optimizer": MOMENTUM, "compression": ONEBIT},
        {"strategy": {"kind": "selsync"}, "compression": TOP},
        {"strategy": {"kind": "selsync", "delta": 0.05}, "compression": TOP},
        {"strategy": {"kind": "selsync", "delta": 0.3, "target_lssr": 0.8}, "compression": TOP},
        {"strategy": {"kind": "selsync", "delta": 0.3, "signal": {"kind": "fixed", "rate": 0.1}}, "compression": TOP},
        {"strategy": {"kind": "local_sgd"}, "compression": TOP},
    ],
)
def test_what_is_sound_needs_no_advice(fields: dict[str, Any]) -> None:
    assert advice(parse_spec({"task": {"kind": "digits"}, **fields})) == ()
