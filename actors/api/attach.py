"""`attach`: makes an ordinary training loop semi-synchronous, in place of DDP.

    def loop(config):
        model, optimizer = Net(), torch.optim.SGD(...)
        sync = attach(model, optimizer, strategy={"kind": "selsync", "delta": 0.3}, compression={...})
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()        # steps here, and synchronises when the strategy says so
        sync.finish()               # one last synchronisation: loops of equally many steps end with the same model

Rank 0 starts the coordinator and the shards as Ray actors; they end with it. Bytes take the direct link.
"""

from __future__ import annotations

import secrets
from types import MethodType
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from actors.api.attached import START_S, Attached
from actors.errors import NoLink
from actors.job.actor_group import NAMESPACE
from actors.link.base import Contact
from actors.link.direct import DirectLink
from actors.shell.core_actor import Assignment
from actors.shell.versions import this_code
from raysync.address import COORDINATOR, Address, shard, worker
from raysync.control.roles import ROLES, found
from raysync.errors import FieldProblem, SpecError, TaskError
from raysync.spec import JobSpec, parse_spec

if TYPE_CHECKING:
    import torch

_FOREVER = 2**31 - 1
_SENT_BYTES = 1 << 28
"""Frozen parameters and integer buffers up to here are made equal; larger ones are only compared."""
_MARK, _SCHEDULED = "_attached_by_raysync", "_wrapped_by_lr_sched"
_FIELDS, _SCALE = {"outer", "inner_state", "scale"}, {"block_bytes"}


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    strategy: Any = None,
    compression: Any = None,
    shards: int = 1,
    seed: int = 0,
    **fields: Any,
) -> Attached:
    """Make the loop that calls `optimizer.step()` semi-synchronous; call it once on every worker of a TorchTrainer.

    Args:
        model: The model, not wrapped in DDP. Its parameters become views into one vector; all start from rank 0's.
        optimizer: Any torch optimizer over the model's parameters. It steps on the workers; only `ssp` steps on the
            server, and takes over the settings of an SGD, Adam or AdamW.
        strategy: As in a job specification, for example {"kind": "selsync", "delta": 0.3}; bsp by default.
        compression: As in a job specification, for example {"push": {"kind": "onebit"}, "pull": {"kind": "onebit"}}.
        shards: How many shards the parameter server has.
        seed: For codecs that draw at random.
        fields: Further fields of a job specification: outer, inner_state (keep or reset), and scale.block_bytes.

    """
    from raysync.engine.training.attached import AttachedReplica

    if hasattr(optimizer.step, _MARK):
        raise TaskError("attached", "this optimizer is attached already; attach it once")
    rank, world_size = _world()
    spec = _spec(optimizer, strategy, compression, shards, seed, world_size, fields)
    replica = AttachedReplica(spec, model, optimizer)
    link_key, servers = _servers(spec, rank, model)
    ip = ray.util.get_node_ip_address()
    address = worker(rank)
    link = DirectLink(address, link_key, ip)
    hellos = ray.get([actor.hello.remote() for actor in servers.values()], timeout=START_S)
    book = {name: Contact(None, hello.endpoint) for name, hello in zip(servers, hellos, strict=True)}
    without = [
        f"{name}: {hello.endpoint_problem}" for name, hello in zip(servers, hellos, strict=True) if not hello.endpoint
    ]
    if without:
        raise NoLink(without[0])
    link.connect(book)
    everyone = {**book, address: Contact(None, link.endpoint)}
    ray.get([actor.introduce.remote("direct", everyone) for actor in servers.values()], timeout=START_S)
    attached = Attached(spec, rank, replica, link, servers)
    _stand_in(optimizer, attached)
    return attached


def _stand_in(optimizer: torch.optim.Optimizer, attached: Attached) -> None:
    """Put `attached.step` where the optimizer's step is: a method, as learning-rate schedulers made later expect, and
    with the mark that those made before look for.
    """

    def step(optimizer: Any, closure: Any = None) -> Any:
        optimizer._opt_called = True
        return attached.step(closure)

    setattr(step, _MARK, True)
    if hasattr(optimizer.step, _SCHEDULED):
        setattr(step, _SCHEDULED, True)
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]


def _spec(
    optimizer: Any, strategy: Any, compression: Any, shards: int, seed: int, workers: int, fields: dict[str, Any]
) -> JobSpec:
    from raysync.engine.exchange import exchange_of
    from raysync.engine.training.attached import server_rule

    ignored = sorted(fields.keys() - _FIELDS)
    ignored += sorted(f"scale.{name}" for name in fields.get("scale", {}).keys() - _SCALE)
    if ignored:
        remedy = f"attach cannot honour it; it takes {', '.join(sorted(_FIELDS - {'scale'}))} and scale.block_bytes"
        raise SpecError(tuple(FieldProblem(name, None, remedy) for name in ignored))
    kind = dict(strategy or {"kind": "bsp"})
    if kind["kind"] == "bsp":
        kind = {**kind, "relay": True}
    if kind.get("local_epochs") is not None or (kind["kind"] == "fedavg" and kind.get("sync_every") is None):
        remedy = "attach does not see your data: say how many steps with sync_every"
        raise SpecError((FieldProblem("strategy.local_epochs", kind.get("local_epochs"), remedy),))
    data: dict[str, Any] = {
        "name": "attached",
        "task": {"kind": "custom", "entrypoint": "attached:loop"},
        "strategy": kind,
        "compression": compression or {},
        "data": {"batch_size": 1},
        "budget": {"steps": _FOREVER},
        "eval": {"every": _FOREVER},
        "seed": seed,
        **fields,
    }
    data["scale"] = {**fields.get("scale", {}), "workers": workers, "shards": shards, "replicas": 0}
    spec = parse_spec(data)
    if exchange_of(spec).server_steps:
        data["optimizer"] = server_rule(optimizer).model_dump()
    return parse_spec(data)


def _world() -> tuple[int, int]:
    from ray.train import get_context

    context = get_context()
    return context.get_world_rank(), context.get_world_size()


def _servers(spec: JobSpec, rank: int, model: torch.nn.Module) -> tuple[bytes, dict[Address, Any]]:
    """Start the coordinator and the shards on rank 0, and find them on the others; there, take over what of rank 0's
    model is not trained.
    """
    from ray.train.collective import broadcast_from_rank_zero

    from raysync.engine.training.untrained import Untrained

    names = [COORDINATOR, *map(shard, range(spec.scale.shards))]
    made: dict[Address, Any] = {}
    untrained = Untrained(model)
    if rank == 0:
        group, key = f"attached-{secrets.token_hex(6)}", secrets.token_bytes(32)
        base = Assignment(group, (), spec.model_dump_json(), key, this_code(), ".")
        for name in names:
            kind = found(ROLES[name.role].shell)
            assignment = msgspec.structs.replace(base, addresses=(name,))
            made[name] = kind.options(name=f"{group}:{name}", namespace=NAMESPACE, num_cpus=0).remote(assignment, None)
        ray.get([actor.ping.remote() for actor in made.values()], timeout=START_S)
        values = ray.put(untrained.values()) if untrained.size_bytes <= _SENT_BYTES else None
        _KEPT.extend([*made.values(), values])
        told = group, key, untrained.digest, values
    group, key, digest, values = broadcast_from_rank_zero(told if rank == 0 else None)
    if rank == 0:
        return key, made
    if untrained.digest != digest and values is None:
        raise TaskError("attached", untrained.why_differs)
    if untrained.digest != digest:
        untrained.load(ray.get(values, timeout=START_S))
    return key, {name: ray.get_actor(f"{group}:{name}", namespace=NAMESPACE) for name in names}


_KEPT: list[Any] = []
"""Rank 0's handles: an actor ends with the last handle of its owner."""
