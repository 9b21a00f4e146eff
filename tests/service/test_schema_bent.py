"""A slice of `python -m tests.bench.schema`: odd numbers, unknown parameters and long headers never make a 5xx."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.schema import run
from tests.service.test_schema import Target


@pytest.mark.slow
def test_no_bent_request_breaks_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.security.auth.MAX_FAILURES", 10**6)
    target = Target(tmp_path)
    try:
        answers, broken = run(target, 1000)
    finally:
        target.close()
    assert not broken, broken[0]
    assert answers.total() >= 1000
    assert {"200", "422", "431"} <= set(answers), answers
