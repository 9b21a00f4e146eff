"""Addresses: values that survive text and both ways of writing plain data, and refuse what is none."""

from __future__ import annotations

import pickle
import random
from typing import Any, ClassVar

import msgspec
import pytest

from raysync.address import COORDINATOR, EVALUATOR, Address, Role, shard, worker
from raysync.engine.plain import dump, load

EXAMPLES = {
    "coordinator": COORDINATOR,
    "evaluator": EVALUATOR,
    **{f"{role}/{index}": Address(role, 0, index) for role in (Role.SHARD, Role.WORKER) for index in (0, 7, 1024)},
    **{f"{role}/{stage}/3": Address(role, stage, 3) for role in (Role.SHARD, Role.WORKER) for stage in (1, 12)},
    **{f"stage/{number}/3": Address(Role.STAGE, number, 3) for number in (0, 1, 12)},
}


def test_every_role_has_examples() -> None:
    assert {address.role for address in EXAMPLES.values()} == {*Role}


@pytest.mark.parametrize("text", EXAMPLES)
def test_text_and_address_say_the_same(text: str) -> None:
    address = EXAMPLES[text]
    assert str(address) == text
    assert Address.parse(text) == address
    assert Address.parse(str(address)).role is address.role
    if address.role is not Role.STAGE:
        assert address.spoken == text.replace("/", " ")


def test_the_short_names_are_the_addresses_of_stage_zero() -> None:
    assert (worker(3), shard(3)) == (Address(Role.WORKER, 0, 3), Address(Role.SHARD, 0, 3))
    assert worker(3) != shard(3)
    assert worker(3) != Address(Role.WORKER, 3, 0)


@pytest.mark.parametrize(
    "text",
    ["", "/", "nobody", "nobody/1", "Worker/1", " worker/1", "worker/", "worker//1", "worker/-1", "worker/+1", "worker/x"]
    + ["worker/1.0", "worker/1 ", "worker/1\n", "worker/1_0", "worker/0x1", "worker/²", "worker/١", "worker/1/2/3", "worker 1"]
    + ["worker", "coordinator/3", "evaluator/0", "worker/0/3", "worker/007"],
)  # fmt: skip
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        Address.parse(text)


def test_order_is_by_role_then_stage_then_number() -> None:
    ordered = [COORDINATOR, EVALUATOR, *map(shard, range(12)), *map(worker, range(120)), Address(Role.WORKER, 1, 0)]
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert sorted(shuffled) == ordered, "2 comes before 10"
    assert min(worker(10), worker(9)) == worker(9)


def test_equal_addresses_are_one_key_wherever_they_come_from() -> None:
    ways = [
        worker(300),
        Address(Role.WORKER, 0, 300),
        Address.parse("worker/300"),
        pickle.loads(pickle.dumps(worker(300))),
        msgspec.msgpack.decode(msgspec.msgpack.encode(worker(300)), type=Address),
    ]
    assert len({*ways}) == 1
    assert {worker(300): "found"}[ways[-1]] == "found"
    assert len({COORDINATOR, worker(0), shard(0), worker(1)}) == 4
    with pytest.raises(AttributeError):
        worker(0).index = 1  # type: ignore[misc]


class Owner:
    """Has an attribute of every shape in which cores save addresses."""

    FIELDS: ClassVar[dict[str, Any]] = {
        "rounds": dict[Address, int],
        "who": list[Address],
        "some": tuple[Address, ...] | None,
    }

    def __init__(self) -> None:
        self.rounds = {address: number for number, address in enumerate(EXAMPLES.values())}
        self.who, self.some = [*EXAMPLES.values()], (COORDINATOR, worker(1))


def test_msgpack_carries_them_as_values_and_as_keys() -> None:
    owner = Owner()
    for kind, value in ((dict[Address, int], owner.rounds), (list[Address], owner.who), (Address, worker(2))):
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
        assert found == value
        assert type(found) is type(value)


def test_plain_data_carries_them_as_values_and_as_keys() -> None:
    owner, again = Owner(), Owner()
    again.rounds, again.who, again.some = {}, [], None
    load(again, Owner.FIELDS, pickle.loads(pickle.dumps(dump(owner, Owner.FIELDS))))
    assert (again.rounds, again.who, again.some) == (owner.rounds, owner.who, owner.some)
    assert again.rounds[worker(7)] == owner.rounds[worker(7)]
