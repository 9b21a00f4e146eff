"""The import direction, and what a decision may not touch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORBIDDEN = {
    "raysync": {"ray", "fastapi", "actors", "service", "tune_configs", "time", "threading", "asyncio", "os", "socket"},
    "actors": {"fastapi", "service", "tune_configs"},
    "service": {"ray", "torch", "actors", "tune_configs"},
    "tune_configs": {"fastapi", "service"},
}
"""What each package must not import; three files are excepted."""

EXCEPTED = {
    "service/cli/local_run.py",  # the composition root that knows the runtime
    "service/cli/local_tune.py",  # the same for studies
    "raysync/__init__.py",  # the one door: it names what lives elsewhere, and brings it when it is asked for
}


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", FORBIDDEN)
def test_package_imports_only_downwards(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*.py") if str(path.relative_to(ROOT)) not in EXCEPTED]
    assert files
    wrong = {str(path.relative_to(ROOT)): found for path in files if (found := _imports(path) & FORBIDDEN[package])}
    assert not wrong


@pytest.mark.parametrize(
    "module",
    [
        "raysync",
        "raysync.spec",
        "raysync.knobs",
        "service.cli.progress",
        "service.cli",
        "service.server.serve",
        "service.client",
        "actors",
    ],
)
def test_specification_needs_neither_torch_nor_ray(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'ray', 'sklearn'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_algorithms_need_no_web_framework() -> None:
    code = "import sys, raysync, raysync.spec; print('fastapi' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "False"


def test_one_door_leads_to_what_people_type() -> None:
    code = "import actors, service.client, raysync.spec as spec; from raysync import *; "
    code += "print(fit is actors.fit, submit is actors.submit, attach is actors.attach, Job is actors.Job, "
    code += "Result is actors.Result, Client is service.client.Client, AsyncClient is service.client.AsyncClient, "
    code += "JobSpec is spec.JobSpec, read_spec is spec.read_spec)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(answer.stdout.split()) == {"True"}


def _room(name: str) -> str:
    """Return the package a dotted name lies in; at the top of a package, the module itself."""
    parts = name.split(".")
    while len(parts) > 1 and not (ROOT / "/".join(parts)).is_dir() and not (ROOT / f"{'/'.join(parts)}.py").exists():
        parts.pop()
    is_module = (ROOT / f"{'/'.join(parts)}.py").exists()
    return ".".join(parts[:-1] if is_module and len(parts) > 2 else parts)


def _rooms_needed(path: Path) -> set[str]:
    """Return what a file needs when it is imported: not what only type checkers or functions import."""
    needed = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in FORBIDDEN:
            needed |= {_room(f"{node.module}.{alias.name}") for alias in node.names}
    return needed


def test_there_is_no_cycle_of_packages() -> None:
    needs: dict[str, set[str]] = {}
    for package in FORBIDDEN:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            room = _room(name)
            needs.setdefault(room, set()).update(_rooms_needed(path) - {room})
    while needs:
        free = {room for room, others in needs.items() if not others & needs.keys()}
        assert free, f"these need each other: { {room: sorted(o & needs.keys()) for room, o in needs.items()} }"
        needs = {room: others for room, others in needs.items() if room not in free}
