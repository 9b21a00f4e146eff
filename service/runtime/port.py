"""The port to whatever carries the jobs: the questions of `raysync.runtime`, to be awaited.

`service.runtime.gateway` is the real one; tests have one that trains nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from raysync.questions import QUESTIONS, Question
from raysync.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Awaited(Protocol[P, T_co]):
    """A question as a method to be awaited, with the arguments and the answer it was declared with."""

    def __get__(self, runtime: AsyncRuntime, owner: type[AsyncRuntime]) -> Callable[P, Coroutine[Any, Any, T_co]]:
        """Return the method of one runtime."""


def awaited(declared: Callable[Concatenate[Any, P], T]) -> Awaited[P, T]:
    """Return a question of `Runtime` as a method of `AsyncRuntime`."""
    question = QUESTIONS[declared.__name__]

    @wraps(declared, updated=())  # not that it is abstract
    async def asked(self: AsyncRuntime, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(question, *args, **kwargs)

    return cast(Awaited[P, T], asked)


class AsyncRuntime(ABC):
    """Every call is bounded, and raises `RuntimeLost` while no cluster answers."""

    launch = awaited(Runtime.launch)
    jobs = awaited(Runtime.jobs)
    look = awaited(Runtime.look)
    records = awaited(Runtime.records)
    written_records = awaited(Runtime.written_records)
    status = awaited(Runtime.status)
    turn = awaited(Runtime.turn)
    checkpoint = awaited(Runtime.checkpoint)
    stop = awaited(Runtime.stop)
    forget = awaited(Runtime.forget)
    checkpoints = awaited(Runtime.checkpoints)
    log = awaited(Runtime.log)
    files = awaited(Runtime.files)
    piece = awaited(Runtime.piece)

    @property
    @abstractmethod
    def cluster(self) -> str | None:
        """The name of the cluster that answers now."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where a cluster is looked for: the same after a restart, whichever cluster answers there."""

    @property
    @abstractmethod
    def problem(self) -> str:
        """Why none does."""

    @property
    @abstractmethod
    def unreachable_s(self) -> float:
        """For how long none has."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to look for a cluster."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it; jobs run on."""

    @abstractmethod
    async def _ask(self, question: Question, *args: Any, **kwargs: Any) -> Any:
        """Return the runtime's answer to a question."""
