"""`--set field=value`: fields of a job specification given on the command line, on top of its file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from raysync.spec import JobSpec

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of the job, such as strategy.delta=0.5 or labels.team=vision; may be repeated.",
    ),
]


def spec_with(path: Path, sets: Sequence[str] | None) -> JobSpec:
    """Return the job a file describes, with these fields set; `-` is what comes in on stdin."""
    from raysync.spec import parse_text, read_spec

    if not sets:
        return parse_text(sys.stdin.buffer.read(), "stdin") if str(path) == "-" else read_spec(path)
    source = "stdin" if str(path) == "-" else str(path)
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    data = _loaded(content)
    if not isinstance(data, dict):
        return parse_text(content, source)  # it says what is wrong
    return parse_text(json.dumps(with_fields(data, sets), default=str).encode(), source)


def with_fields(data: dict[str, Any], sets: Sequence[str] | None) -> dict[str, Any]:
    """Return a specification with fields set; what is not there on the way to one is made."""
    for text in sets or ():
        path, value = assignment(text)
        data = _set(data, path.split("."), value, path)
    return data


def assignment(text: str) -> tuple[str, Any]:
    """Return the path and the value that `field=value` names."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise typer.BadParameter(f"--set {text}: write field=value, such as strategy.delta=0.5")
    return path.strip(), _value(value)


def _set(data: dict[str, Any], names: list[str], value: Any, path: str) -> dict[str, Any]:
    first, rest = names[0], names[1:]
    if not rest:
        return {**data, first: value}
    inner = data.get(first)
    if inner is not None and not isinstance(inner, dict):
        raise typer.BadParameter(f"--set {path}: {first!r} is {inner!r}, which has no fields; set it as a whole")
    return {**data, first: _set(inner or {}, rest, value, path)}


def _value(text: str) -> Any:
    """Return what a value means as YAML: a number, true, a word, a list; inf is a number."""
    if text.strip().lower() in ("inf", "infinity"):
        return "Infinity"
    with contextlib.suppress(ValueError):
        return json.loads(text)  # also 1e-3, which is a word in YAML
    found = _loaded(text.encode())
    return text if found is None and text.strip() not in ("null", "~", "") else found


def _loaded(content: bytes) -> Any:
    import yaml

    from raysync.spec import load_yaml

    try:
        return load_yaml(content)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
