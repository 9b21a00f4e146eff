"""What tells Ray's processes apart before they are actors: those that compute import torch, the others stay small."""

from __future__ import annotations

from typing import Any

KIND = "RAYSYNC_PROCESS"
"""The variable that says what a process is for."""
COMPUTING = "computing"
PRELOAD = {"RAY_preload_python_modules": "actors.preload"}
"""What the environment of a node needs for its processes to import before they are asked for."""


def for_computing(env: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime environment as processes that compute have it."""
    return {**env, "env_vars": {**(env.get("env_vars") or {}), KIND: COMPUTING}}
