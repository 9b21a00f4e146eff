"""No person meets a regular expression: whatever is of the wrong shape is answered with what would be right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli import app
from tests.service.conftest import SPEC, World

ROOT = Path(__file__).parents[2]
CUSTOM = {**SPEC, "task": {"kind": "custom", "entrypoint": "my_module.MyTask"}}
WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", "/jobs", {"json": {"spec": {**SPEC, "name": "My Job"}}}, "at most 63 small letters"),
    ("POST", "/jobs", {"json": {"spec": CUSTOM}}, "such as my_package.my_module:MyTask"),
    ("POST", "/jobs", {"json": {"spec": SPEC, "package": "mine"}}, "POST /packages answers it"),
    ("POST", "/jobs", {"json": {"spec": SPEC, "pip": ["--index-url=x"]}}, "such as numpy>=2"),
    ("POST", "/jobs", {"json": {"spec": SPEC, "resume_from": "/tmp/checkpoint_000003"}}, "--resume of a run without"),
    ("POST", "/jobs", {"json": {"spec": SPEC}, "headers": {"Idempotency-Key": "a b"}}, "without spaces"),
    ("GET", "/jobs?cursor=%24", {}, "next_cursor"),
    ("GET", "/jobs/No_Such!", {}, "looks like digits-1a2b3c4d"),
    ("GET", "/jobs/x/events?kind=1", {}, "such as state"),
    ("GET", "/jobs/x/logs?actor=%2F", {}, "worker/0"),
]


@pytest.mark.parametrize(("method", "path", "request_", "words"), WRONG, ids=[row[3] for row in WRONG])
def test_the_answer_is_a_sentence(world: World, method: str, path: str, request_: dict[str, Any], words: str) -> None:
    answer = world.call(method, f"/api/v1{path}", **request_)
    assert answer.status_code == 422, answer.text
    (field,) = answer.json()["errors"]
    assert words in field["message"]
    assert not re.search(r"\[\w-\w|\^|\\", field["message"]), "no regular expression"
    assert words in answer.json()["detail"]


def test_the_schema_still_has_the_shapes(world: World) -> None:
    schema = world.call("GET", "/openapi.json").json()
    resume_from = schema["components"]["schemas"]["JobCreate"]["properties"]["resume_from"]["anyOf"][0]
    assert re.match(resume_from["pattern"], "digits-1a2b3c4d/checkpoint_000003")
    assert not re.match(resume_from["pattern"], "/tmp/x")


def test_no_part_of_the_program_lets_pydantic_word_a_pattern() -> None:
    sources = [path for name in ("raysync", "service", "actors") for path in (ROOT / name).rglob("*.py")]
    assert len(sources) > 100
    worded = [str(path) for path in sources if re.search(r"\bpattern=", path.read_text())]
    assert worded == [], "use raysync.value.Shape, which comes with a sentence"


def test_a_path_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["submit", "--resume-from", "/tmp/x/checkpoint_000003"])
    assert found.exit_code == 2
    assert "--resume-from /tmp/x/checkpoint_000003: name a job or one of its checkpoints" in found.stderr
    assert CliRunner().invoke(app, ["submit"]).exit_code == 2
