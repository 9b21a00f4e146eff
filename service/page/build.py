"""Fetches the page's libraries while raysync is built or installed, also in place; without a network it only says so.

setuptools loads this file alone, without the packages around it: see `tool.setuptools.cmdclass` in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


def _fetched() -> None:
    """Fetch the libraries; an installation without them is complete but for what the page shows."""
    fetch = _module("fetch")
    try:
        fetch.fetch()
    except (fetch.FetchError, OSError) as error:
        print(f"raysync's page has no libraries yet ({error}): `python -m service.page.fetch` gets them later")


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_raysync_page_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class BuildPy(build_py):
    """`build_py` that has the page's libraries to copy."""

    def run(self) -> None:
        """Fetch them, then build."""
        _fetched()
        self.__dict__.pop("data_files", None)  # which files there are was looked up before
        super().run()


class SDist(sdist):
    """`sdist` that has the page's libraries to pack."""

    def run(self) -> None:
        """Fetch them, then pack."""
        _fetched()
        super().run()
