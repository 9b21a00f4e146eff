"""Methods for both clients out of one declaration.

A method is declared as a function that returns the request to make, a `Call` or a `Stream`. On a blocking client it
returns what the service answers, on an asynchronous one what is to be awaited; its arguments and its docstring are
those of the declaration.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from service.client.call import Call
from service.client.stream import Stream

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Sender(ABC):
    """Makes requests, and waits for the answer."""

    @abstractmethod
    def _send(self, call: Call[T]) -> T:
        """Return the answer to a call."""

    @abstractmethod
    def _read(self, stream: Stream[T]) -> Iterator[T]:
        """Yield what a stream tells, to its end."""


class AsyncSender(ABC):
    """Makes requests whose answers are awaited."""

    @abstractmethod
    async def _send(self, call: Call[T]) -> T:
        """Return the answer to a call."""

    @abstractmethod
    def _read(self, stream: Stream[T]) -> AsyncIterator[T]:
        """Yield what a stream tells, to its end."""


class Method(Protocol[P, T_co]):
    """A call as a method, by the client it is looked up on."""

    @overload
    def __get__(self, client: Sender, owner: type) -> Callable[P, T_co]: ...
    @overload
    def __get__(self, client: AsyncSender, owner: type) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


class StreamMethod(Protocol[P, T_co]):
    """A stream as a method, by the client it is looked up on."""

    @overload
    def __get__(self, client: Sender, owner: type) -> Callable[P, Iterator[T_co]]: ...
    @overload
    def __get__(self, client: AsyncSender, owner: type) -> Callable[P, AsyncIterator[T_co]]: ...


def sends(declared: Callable[Concatenate[Any, P], Call[T]]) -> Method[P, T]:
    """Return a method that makes the declared call."""

    @_described(declared, "{}")
    def send(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._send(declared(self, *args, **kwargs))

    return cast(Method[P, T], send)


def streams(declared: Callable[Concatenate[Any, P], Stream[T]]) -> StreamMethod[P, T]:
    """Return a method that reads the declared stream."""

    @_described(declared, "Iterator[{}]")
    def read(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._read(declared(self, *args, **kwargs))

    return cast(StreamMethod[P, T], read)


def _described(declared: Callable[..., Any], returns: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name and describe a method as it was declared, but for what it returns: what the request's type is made with."""

    def described(method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(declared)
        answer = str(signature.return_annotation).partition("[")[2].removesuffix("]")
        method = wraps(declared)(method)
        method.__dict__["__signature__"] = signature.replace(return_annotation=returns.format(answer))
        return method

    return described
