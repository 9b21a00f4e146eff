"""Between a control plane and its runtime: errors arrive as what they were, and nothing else is made of them."""

from __future__ import annotations

import msgspec
import pytest

from actors.api.fit import join
from actors.errors import NoCluster
from raysync import errors
from raysync.ports import check_ray_address
from raysync.questions import Answer, failed, raised
from service.settings import Settings


def carried(error: Exception) -> errors.RaysyncError:
    packed = msgspec.msgpack.encode(failed(7, error), enc_hook=str)
    answer = msgspec.msgpack.decode(packed, type=Answer)
    assert answer.number == 7
    return raised(answer)


@pytest.mark.parametrize(
    "error",
    [
        errors.SpecError(
            (errors.FieldProblem("strategy.delta", 0.3, "wrong"), errors.FieldProblem("seed", None, "missing"))
        ),
        errors.KnobError("delta", -1.0, "must be positive"),
        errors.KnobConflict(1, 2),
        errors.NotRunning("job", "PENDING", "why"),
        errors.CheckpointError("path", "problem"),
        errors.StorageError("path", "problem"),
        errors.RuntimeLost("gone"),
    ],
)
def test_errors_arrive_as_what_they_were(error: errors.RaysyncError) -> None:
    again = carried(error)
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize("error", [KeyError("x"), OSError("disk full"), RuntimeError("anything")])
def test_other_errors_arrive_as_words(error: Exception) -> None:
    again = carried(error)
    assert isinstance(again, errors.RuntimeFailed)
    assert (again.kind, again.text) == (type(error).__name__, str(error))


@pytest.mark.parametrize("name", ["FieldProblem", "annotations", "NamedTuple", "__loader__", "nonsense", ""])
def test_a_name_that_is_no_error_makes_none(name: str) -> None:
    assert isinstance(raised(Answer(1, None, name or "x", ("text",))), errors.RuntimeFailed)


def test_a_ray_client_address_is_refused_everywhere_and_says_what_to_do() -> None:
    assert Settings(ray_address="10.0.0.1:6379").ray_address == check_ray_address("10.0.0.1:6379") == "10.0.0.1:6379"
    with pytest.raises(ValueError, match="ray start --address"):
        Settings(ray_address="ray://10.0.0.1:10001")
    with pytest.raises(NoCluster, match="num-cpus=0"):
        join("ray://10.0.0.1:10001")


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(NoCluster, match=r"no process answers there \(Connection refused\)"):
        join("127.0.0.1:1")
