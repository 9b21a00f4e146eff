"""The runtime's questions are declared once: whoever asks or answers them has the declared signature."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import msgspec
import pytest

from actors.gateway import Gateway, answered
from raysync.control.reconcile import Life
from raysync.errors import RuntimeFailed
from raysync.knobs import Knobs
from raysync.ports import ActorStatus, JobStatus, Launch
from raysync.questions import QUESTIONS, Answer, Ask, Question
from raysync.runtime import Runtime
from service.jobs.projection import runs_of
from service.runtime.gateway import GatewayRuntime
from service.runtime.port import AsyncRuntime
from tests.bench.still_gateway import SteadyGateway
from tests.service.conftest import SPEC
from tests.service.still_runtime import StillRuntime, status_of


@pytest.mark.parametrize("kind", [Gateway, SteadyGateway, AsyncRuntime, GatewayRuntime, StillRuntime])
@pytest.mark.parametrize("method", sorted(QUESTIONS.keys() - {"ping"}))
def test_every_runtime_has_every_question_as_it_was_declared(kind: type, method: str) -> None:
    assert inspect.signature(getattr(kind, method)) == inspect.signature(getattr(Runtime, method))
    assert inspect.iscoroutinefunction(getattr(kind, method)) is issubclass(kind, AsyncRuntime)
    assert getattr(kind, method).__doc__


class Wired(StillRuntime):
    """Asks a gateway in this process, over the real bytes."""

    launch, status, turn = AsyncRuntime.launch, AsyncRuntime.status, AsyncRuntime.turn

    def __init__(self, gateway: Runtime) -> None:
        super().__init__()
        self._gateway = gateway

    async def _ask(self, question: Question, *args: Any, **kwargs: Any) -> Any:
        ask = msgspec.msgpack.decode(msgspec.msgpack.encode(question.ask(7, *args, **kwargs)), type=Ask)
        return question.answer(msgspec.msgpack.decode(answered(self._gateway, ask), type=Answer))


def test_arguments_and_answers_arrive_as_what_they_were() -> None:
    runtime = Wired(SteadyGateway(1.0))
    order = Launch(job="x", spec=msgspec.json.encode(SPEC).decode(), storage="/none", knobs=None)

    async def asked() -> JobStatus:
        assert await runtime.launch(order) == "steady"
        knobs = await runtime.turn("x", {"delta": float("inf")}, None, dry_run=False, by="me")
        assert (type(knobs), knobs.values["delta"]) == (Knobs, float("inf"))
        return await runtime.status(job="x")

    status = asyncio.run(asked())
    assert (type(status), status.state, status.knobs.version) == (JobStatus, "RUNNING", 1)


def test_a_status_arrives_before_there_is_a_link_and_whatever_a_user_measures() -> None:
    knobs = Knobs(0, {})
    status = status_of("x", "PENDING", "it waits", knobs, knobs)
    early = msgspec.structs.replace(
        status, metrics={"eval/best": True, "eval/name": "x"}, runs=msgspec.structs.replace(status.runs, link=None)
    )
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(Answer(7, early)), type=Answer)
    assert QUESTIONS["status"].answer(told) == early


@pytest.mark.parametrize("method", ["__init__", "_found", "nonsense", ""])
def test_nothing_but_questions_is_answered(method: str) -> None:
    answer = msgspec.msgpack.decode(answered(SteadyGateway(1.0), Ask(7, method, {})), type=Answer)
    with pytest.raises(RuntimeFailed, match="no method"):
        QUESTIONS["ping"].answer(answer)


def test_the_books_tell_of_each_actor_where_it_is_and_what_it_said() -> None:
    knobs = Knobs(0, {})
    status = status_of("x", "RUNNING", "it trains", knobs, knobs)
    actor = ActorStatus(life=Life.ALIVE, node="n", node_id="i", pid=7, facts={"device": "cpu"})
    there = runs_of(msgspec.structs.replace(status, actors={"worker/0": actor}))
    said = {"device": "cpu"}
    gone = runs_of(
        msgspec.structs.replace(status, runs=msgspec.structs.replace(status.runs, actors={"worker/0": said}))
    )
    assert there["actors"] == {
        "worker/0": {"node": "n", "node_id": "i", "pid": 7, "life": Life.ALIVE.value, "device": "cpu"}
    }
    assert (gone["link"], gone["actors"]) == ("still", {"worker/0": said})
