"""The runtime's questions between two processes: asked by name, answered with a value or an error, no pickle.

A question is a method of `raysync.runtime.Runtime`. Its signature says what its arguments and its answer are made into
on the other side; an error travels by its class name and its facts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

import msgspec

from raysync import errors
from raysync.errors import RaysyncError, RuntimeFailed
from raysync.runtime import Runtime


class Greeting(msgspec.Struct, frozen=True):
    """The runtime's first word: the cluster it has joined, or why it could not."""

    cluster: str | None
    problem: str | None = None


class Ask(msgspec.Struct, frozen=True):
    """A question to the runtime."""

    number: int
    method: str
    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """Its answer: a value, or an error."""

    number: int
    value: Any = None
    error: str | None = None
    """The class of an error of raysync's, or any other name."""
    facts: tuple[Any, ...] = ()
    """What the error is made of; for a class that is not raysync's, its text."""


def failed(number: int, error: Exception) -> Answer:
    """Return an error as an answer."""
    if _known(type(error).__name__) is type(error):
        return Answer(number, None, type(error).__name__, error.args)
    return Answer(number, None, type(error).__name__, (str(error),))


def raised(answer: Answer) -> RaysyncError:
    """Return the error an answer stands for."""
    known = _known(answer.error or "")
    if known is not None:
        facts = answer.facts
        if known is errors.SpecError:
            facts = (tuple(errors.FieldProblem(*problem) for problem in facts[0]),)
        return known(*facts)
    return RuntimeFailed(str(answer.error), str(answer.facts[0]) if answer.facts else "")


def _known(name: str) -> type[RaysyncError] | None:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, RaysyncError) else None


class Question(NamedTuple):
    """One method of the runtime, as it is asked from another process."""

    method: str
    signature: inspect.Signature
    types: Mapping[str, Any]
    """Of the arguments, and of the answer by the name `return`."""

    @classmethod
    def of(cls, method: Callable[..., Any]) -> Question:
        """Return the question a method of `Runtime` stands for."""
        return cls(method.__name__, inspect.signature(method), get_type_hints(method))

    def ask(self, number: int, *args: Any, **kwargs: Any) -> Ask:
        """Return the question with its arguments, by name."""
        bound = self.signature.bind(None, *args, **kwargs)
        return Ask(number, self.method, dict(list(bound.arguments.items())[1:]))

    def arguments(self, ask: Ask) -> dict[str, Any]:
        """Return the arguments as what they were before they were sent."""
        return {name: msgspec.convert(value, self.types[name]) for name, value in ask.arguments.items()}

    def answer(self, answer: Answer) -> Any:
        """Return what was answered, or raise the error it stands for."""
        if answer.error is not None:
            raise raised(answer)
        return msgspec.convert(answer.value, self.types["return"])


QUESTIONS = {name: Question.of(getattr(Runtime, name)) for name in sorted(Runtime.__abstractmethods__)}
"""All there are; whatever else is asked for is refused."""
