"""schemathesis over the whole API with what people and programs really get wrong: whatever is sent, no 5xx.

    python -m tests.bench.schema [CASES]

Every operation of the document gets cases that fit its schema and cases that do not; most are then bent: numbers become
0, -1, 10**30, NaN or words, query parameters appear that nobody knows, headers are long or hold such numbers. The
service is real, on loopback, around the still runtime. `tests/service/test_schema.py` runs a slice of it.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from raysync.spec import parse_spec
from tests.bench.record import record
from tests.service.test_schema import Target, schema

CASES = 5000
ODD = (
    0,
    -1,
    10**30,
    -(10**30),
    2**63,
    1e308,
    float("nan"),
    float("inf"),
    "NaN",
    "-1",
    "1e999",
    str(10**30),
    "",
    None,
    [],
)
GOOD_SPEC = {
    "name": "bent",
    "task": {"kind": "char_lm"},
    "strategy": {"kind": "selsync", "delta": 0.3, "max_interval": 50, "warmup_steps": 5},
    "compression": {"push": {"kind": "topk", "ratio": 0.01}, "pull": {"kind": "qsgd"}, "error_feedback": False},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "lr_schedule": {"kind": "cosine", "warmup_steps": 10},
    "data": {"batch_size": 8, "injection": {"alpha": 0.5, "beta": 0.5}},
    "scale": {"workers": 2, "max_workers": 4},
    "budget": {"steps": 100, "time_s": 60.0, "target": {"metric": "eval/loss", "value": 0.1}},
    "checkpoint": {"every_rounds": 10, "keep": 2},
}
HEADERS = ("If-Match", "If-None-Match", "Last-Event-ID", "Idempotency-Key", "X-Request-Id", "Accept")
LONG_BYTES = (1000, 8_000, 60_000, 70_000)
_LIMIT_BYTES = 65536


def main(arguments: list[str] | None = None) -> int:
    """Send cases and print how they were answered; 1 if one was answered with 5xx, or there were too few."""
    given_ones = arguments if arguments is not None else sys.argv[1:]
    wanted = int(given_ones[0]) if given_ones and given_ones[0].isdigit() else CASES
    with tempfile.TemporaryDirectory() as folder, patch("service.security.auth.MAX_FAILURES", 10**6):
        target = Target(Path(folder))
        try:
            answers, broken = run(target, wanted)
        finally:
            target.close()
    for line in broken[:20]:
        print(line, file=sys.stderr)
    total = answers.total()
    record("service.schema", cases=total, answers=dict(sorted(answers.items())), server_errors=len(broken))
    return int(bool(broken) or total < wanted)


def run(target: Target, wanted: int) -> tuple[Counter[str], list[str]]:
    """Return how often each status was answered, and every case that was answered with 5xx."""
    operations = [found.ok() for found in schema.get_all_operations()]
    answers: Counter[str] = Counter()
    broken: list[str] = []
    _bend_good_ones(target, answers, broken)
    each = max(0, wanted - answers.total()) // (2 * len(operations)) + 1
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _sent(operation.as_strategy(generation_mode=mode), each, target, answers, broken)
            except Unsatisfiable:  # it takes nothing, so nothing can be wrong: it is called rightly, and bent
                _sent(operation.as_strategy(), each, target, answers, broken)
    return answers, broken


def _bend_good_ones(target: Target, answers: Counter[str], broken: list[str]) -> None:
    """Send bodies that are right but for one number, each number in turn: chance alone seldom gets so far."""
    control = f"/api/v1/jobs/{target.running}"
    full = {"spec": json.loads(parse_spec(GOOD_SPEC).model_dump_json()), "pip": [], "on_cluster_loss": "fail"}
    bodies = [("POST", "/api/v1/jobs", full), ("PUT", f"{control}/workers", {"count": 2})]
    bodies += [("PATCH", f"{control}/knobs", {"values": {"delta": 0.5}, "expected_version": 1, "dry_run": True})]
    bodies += [("PATCH", f"{control}/knobs", {"values": {"workers": 2}, "dry_run": True})]
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    for method, path, body in bodies:
        for place in _numbers(body):
            for odd in ODD:
                data = json.dumps(_with(body, place, odd))
                answer = target.session.request(
                    method, target.server.url + path, data=data, headers=headers, timeout=30
                )
                answers[str(answer.status_code)] += 1
                if answer.status_code >= 500:
                    broken.append(f"{answer.status_code} {method} {path}: {'.'.join(map(str, place))} = {odd}")


def _sent(strategy: Any, count: int, target: Target, answers: Counter[str], broken: list[str]) -> None:
    chance = random.Random(7)

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def send(case: Any) -> None:
        _one(case, target, chance, answers, broken)

    sent = answers.total()
    while answers.total() - sent < count:  # what takes nothing has one case only; it is bent anew each time
        send()


def _one(case: Any, target: Target, chance: random.Random, answers: Counter[str], broken: list[str]) -> None:
    if "id" in (case.path_parameters or {}) and chance.random() < 0.7:
        is_stream = "stream" in case.path
        case.path_parameters["id"] = target.finished if is_stream or chance.random() < 0.5 else target.running
    request, long_bytes = bent(case.as_transport_kwargs(base_url=target.server.url), chance)
    if case.path == "/api/v1/stream":
        request["params"].setdefault("jobs", target.finished)  # a stream of all jobs has no end
    request["headers"]["Authorization"] = f"Bearer {target.token}"
    try:
        status = str(target.session.request(**request, timeout=30).status_code)
    except (requests.ConnectionError, requests.exceptions.InvalidHeader) as error:
        # Too long a header may end the connection before the answer is read; others never get out of here.
        if long_bytes <= _LIMIT_BYTES and not isinstance(error, requests.exceptions.InvalidHeader):
            broken.append(f"{case.method} {case.path}: no answer ({error})")
        status = "ended" if long_bytes else "not sent"
    answers[status] += 1
    if status.startswith("5"):
        broken.append(f"{status} {json.dumps(request, default=str)[:2000]}")


def bent(request: dict[str, Any], chance: random.Random) -> tuple[dict[str, Any], int]:
    """Return a request with something odd in it, most of the time, and how long its longest header is."""
    request = {**request, "headers": dict(request.get("headers") or {}), "params": dict(request.get("params") or {})}
    long_bytes = 0
    if "json" in request:
        body = request.pop("json")
        request["data"] = json.dumps(_bent_value(body, chance) if chance.random() < 0.6 else body)
        request["headers"]["Content-Type"] = "application/json"
    if request["params"] and chance.random() < 0.5:
        name = chance.choice(sorted(request["params"]))
        request["params"][name] = str(chance.choice(ODD))
    if chance.random() < 0.2:
        request["params"][chance.choice(("owner", "nonsense", "limit[]", "ä", ""))] = str(chance.choice(ODD))
    if chance.random() < 0.2:
        long_bytes = chance.choice(LONG_BYTES)
        request["headers"][chance.choice(("X-Long", *HEADERS))] = "9" * long_bytes
    if chance.random() < 0.2:
        odd = str(chance.choice(ODD))
        request["headers"][chance.choice(HEADERS)] = chance.choice((odd, f'"{odd}"', f'W/"{odd}", "1"'))
    return request, long_bytes


def _bent_value(value: Any, chance: random.Random) -> Any:
    """Return JSON with one value of it, a number rather than anything else, made odd."""
    places = _numbers(value) or [place for place, _ in _places(value, ())]
    return _with(value, chance.choice(places), chance.choice(ODD)) if places else chance.choice(ODD)


def _numbers(value: Any) -> list[tuple[Any, ...]]:
    """Return where in some JSON there are numbers."""
    found = _places(value, ())
    return [place for place, leaf in found if isinstance(leaf, int | float) and not isinstance(leaf, bool)]


def _places(value: Any, at: tuple[Any, ...]) -> Any:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*at, name), child
        yield from _places(child, (*at, name))


def _with(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[place[0]] = _with(value[place[0]], place[1:], odd)
    return changed


if __name__ == "__main__":
    sys.exit(main())
