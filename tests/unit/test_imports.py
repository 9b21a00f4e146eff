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
"""What each package must not import; the service's composition root is excepted below."""

COMPOSITION_ROOTS = {"service/running.py"}


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
    files = [path for path in (ROOT / package).rglob("*.py") if str(path.relative_to(ROOT)) not in COMPOSITION_ROOTS]
    assert files
    wrong = {str(path.relative_to(ROOT)): found for path in files if (found := _imports(path) & FORBIDDEN[package])}
    assert not wrong


@pytest.mark.parametrize(
    "module",
    ["raysync.spec", "raysync.knobs", "raysync.progress", "service.cli", "service.serve", "service.client", "actors"],
)
def test_specification_needs_neither_torch_nor_ray(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'ray', 'sklearn'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "[]"
