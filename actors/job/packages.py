"""Getting code to the nodes: the user's into the workers, raysync's own into every actor where it is asked for.

Ray uploads local folders only for a whole driver; here they are uploaded for the actors that need them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

import raysync
from actors.shell.process import SMALL_ENV
from raysync.control.roles import Traits
from raysync.errors import FieldProblem, SpecError

_OWN = ("raysync", "actors", "service", "tune_configs")
ALLOWED = ("working_dir", "py_modules", "pip", "uv", "conda", "env_vars", "excludes", "config")


class Environments(msgspec.Struct, frozen=True):
    """The runtime environments of the three kinds of actors."""

    own: dict[str, Any] = {}
    """of those that run only our code, the controller among them"""
    small: dict[str, Any] = {}
    """of those of them that do not compute"""
    user: dict[str, Any] = {}
    """of those that run the user's code"""

    def of(self, traits: Traits) -> dict[str, Any]:
        """Return the environment of a role."""
        if traits.runs_user_code:
            return self.user
        return self.own if traits.computes else self.small


def prepare(runtime_env: dict[str, Any] | None, ship_code: bool, is_warm: bool = False) -> Environments:
    """Check the user's environment, upload what is local, return one environment per kind of actor; Ray must run.

    Where processes wait for the job (`is_warm`), those that do not compute are told from the others.
    """
    asked = dict(runtime_env or {})
    check_environment(asked)
    own = [str(Path(raysync.__file__).parent), str(Path(__file__).parents[1])] if ship_code else []
    servers = _upload({"py_modules": own}) if own else {}
    if own:
        asked["py_modules"] = [*own, *asked.get("py_modules", [])]
    small = {**servers, **(SMALL_ENV if is_warm else {})}
    return Environments(servers, small, _upload(asked) if asked else {})


def check_environment(env: dict[str, Any]) -> None:
    """Raise `SpecError` if an environment cannot be what it should; needs no Ray."""
    unknown = sorted(set(env) - set(ALLOWED))
    if unknown:
        raise SpecError(
            (FieldProblem(f"runtime_env.{unknown[0]}", env[unknown[0]], f"known here: {', '.join(ALLOWED)}"),)
        )
    for module in env.get("py_modules") or []:
        if isinstance(module, str | Path) and "://" not in str(module) and not Path(module).exists():
            raise SpecError((FieldProblem("runtime_env.py_modules", str(module), "there is no such package or file"),))
    folder = env.get("working_dir")
    if folder is None or "://" in str(folder):
        return
    path = Path(str(folder))
    if not path.is_dir() and not (path.is_file() and path.suffix in (".zip", ".jar")):
        raise SpecError((FieldProblem("runtime_env.working_dir", str(folder), "there is no such folder"),))
    hidden = [name for name in _OWN if (path / name).is_dir() or (path / f"{name}.py").is_file()]
    if hidden:
        remedy = (
            f"it holds {hidden[0]!r}, which would hide raysync's own package of that name in a worker: rename yours"
        )
        raise SpecError((FieldProblem("runtime_env.working_dir", str(folder), remedy),))


def _upload(env: dict[str, Any]) -> dict[str, Any]:
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    with tempfile.TemporaryDirectory() as scratch:
        env = upload_py_modules_if_needed(env, include_gitignore=True, scratch_dir=scratch)
        env = upload_working_dir_if_needed(env, include_gitignore=True, scratch_dir=scratch)
    env.pop("excludes", None)
    return env
