"""`attach`: makes an ordinary training loop semi-synchronous, in place of DDP.

    def loop(config):
        model, optimizer = Net(), torch.optim.SGD(...)
        sync = attach(model, optimizer, strategy={"kind": "selsync", "delta": 0.3}, compression={...})
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()        # steps here, and synchronises when the strategy says so
        sync.finish()               # one last synchronisation: everybody ends with the same model (not with ssp)

Rank 0 starts the coordinator and the shards as Ray actors; they end with it. Bytes take the direct link.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError

from actors.coordinator import CoordinatorActor
from actors.core_actor import Assignment
from actors.crew import NAMESPACE
from actors.errors import JobFailed, NoLink
from actors.host import Host
from actors.link.base import Contact
from actors.link.direct import DirectLink
from actors.shard import ShardActor
from actors.versions import this_code
from raysync.engine import messages as m
from raysync.errors import Problem, SpecError
from raysync.knobs import Knobs
from raysync.spec import JobSpec, parse_spec

if TYPE_CHECKING:
    import torch

_FOREVER = 2**31 - 1
_START_S = 120.0
_CHECK_EVERY_S = 15.0
_IDLE_S = 120.0
"""How long the first worker waits for others that do not move."""


class Attached:
    """A loop's tie to the others. `finish` ends it with a last synchronisation; `turn` turns knobs for all."""

    def __init__(self, spec: JobSpec, rank: int, replica: Any, link: DirectLink, servers: Mapping[str, Any]) -> None:
        from raysync.engine.worker import Phase, Worker

        self._phase, self._servers, self._link = Phase, dict(servers), link
        self.replica = replica
        self.core = Worker(rank, spec, replica.workload, replica=replica)
        self._seat = _LoopSeat(self)
        self._host = Host(link, {self.core.address: self._seat})
        self._is_finished = False
        self._checked_s = time.monotonic()
        self._run_until_ready()  # joined, and with the same parameters as everybody

    @property
    def metrics(self) -> dict[str, float]:
        """How far the worker is, and the payload bytes it has sent and received."""
        return {
            "step": float(self.core.step),
            "comm/bytes_up": float(self.core.bytes_up),
            "comm/bytes_down": float(self.core.bytes_down),
            "sync/rounds": float(max(self.core.exchange.rounds, default=-1) + 1),
        }

    def turn(self, **changes: Any) -> Knobs:
        """Turn knobs for all workers, such as delta=0.5; they take effect at one step for everybody."""
        return ray.get(self._servers[m.COORDINATOR].turn.remote(changes, None), timeout=_START_S)  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Synchronise a last time and leave; whoever trains on does so without this worker. Rank 0 stays to the end."""
        if self._is_finished:
            return
        self._is_finished = True
        self.replica.is_resting = True
        self.core.leave()
        while not self._seat.done:
            self._host.turn()
            self._check_servers()
        self._link.flush(5.0)
        self._link.close(1.0)
        if self.core.id == 0:
            self._end_servers()

    def _end_servers(self) -> None:
        """Wait until the others have left too, as long as they move on, and end what they needed."""
        step, moved_s = -1, time.monotonic()
        while time.monotonic() - moved_s < _IDLE_S:
            progress = ray.get(self._servers[m.COORDINATOR].progress.remote(-1, 0.2), timeout=_START_S)
            if progress.all_left:
                break
            if progress.next_step != step:
                step, moved_s = progress.next_step, time.monotonic()
        ray.get([actor.halt.remote() for actor in self._servers.values()], timeout=_START_S)
        for actor in self._servers.values():
            ray.kill(actor)

    def step(self, closure: Any = None) -> Any:
        """Stand where the optimizer's step stood."""
        loss = None
        if closure is not None:
            import torch

            with torch.enable_grad():
                loss = closure()
            self.replica.loss = float(loss)
        if self._is_finished:
            return self.replica.step_of_the_loop() if loss is None else loss
        self._seat.may_compute = True
        self._run_until_ready()
        return loss

    def _run_until_ready(self) -> None:
        while self._seat.may_compute or self.core.phase is not self._phase.READY:
            if self._seat.done:
                return
            self._host.turn()
            self._check_servers()

    def _check_servers(self) -> None:
        """Raise if the coordinator or a shard has died: nobody brings it back, and waiting for it would never end."""
        if time.monotonic() - self._checked_s < _CHECK_EVERY_S:
            return
        self._checked_s = time.monotonic()
        for name, actor in self._servers.items():
            try:
                ray.get(actor.ping.remote(), timeout=_START_S)
            except (RayActorError, GetTimeoutError) as error:
                raise JobFailed("attached", f"{name} is gone ({type(error).__name__}); start the run again") from error

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.finish()


class _LoopSeat:
    """The worker core as the host sees it: it computes only when the loop has."""

    def __init__(self, attached: Attached) -> None:
        self._attached, self.may_compute = attached, False

    @property
    def core(self) -> Any:
        return self._attached.core

    def handle(self, message: m.Message) -> list[m.Send]:
        return self.core.handle(message)  # type: ignore[no-any-return]

    def retry(self) -> list[m.Send]:
        return self.core.retry()  # type: ignore[no-any-return]

    def settle(self) -> None:
        pass

    @property
    def is_ready(self) -> bool:
        phase = type(self.core.phase)
        if self.core.phase is phase.READY:
            return self.may_compute or self._attached.replica.is_resting
        return self.core.phase is phase.NEW

    def work(self) -> list[m.Send]:
        if self.core.phase is type(self.core.phase).NEW:
            return self.core.start()  # type: ignore[no-any-return]
        self.may_compute = False
        return self.core.compute()  # type: ignore[no-any-return]

    @property
    def done(self) -> bool:
        return self.core.phase is type(self.core.phase).GONE


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
        fields: Further fields of a job specification: outer, inner_state, scale.

    """
    from raysync.engine.attached import AttachedReplica

    rank, world_size = _world()
    spec = _spec(optimizer, strategy, compression, shards, seed, world_size, fields)
    replica = AttachedReplica(spec, model, optimizer)
    link_key, servers = _servers(spec, rank)
    ip = ray.util.get_node_ip_address()
    address = m.worker_address(rank)
    link = DirectLink(address, link_key, ip)
    hellos = ray.get([actor.hello.remote() for actor in servers.values()], timeout=_START_S)
    book = {name: Contact(None, hello.endpoint) for name, hello in zip(servers, hellos, strict=True)}
    without = [
        f"{name}: {hello.endpoint_problem}" for name, hello in zip(servers, hellos, strict=True) if not hello.endpoint
    ]
    if without:
        raise NoLink(without[0])
    link.connect(book)
    everyone = {**book, address: Contact(None, link.endpoint)}
    ray.get([actor.introduce.remote("direct", everyone) for actor in servers.values()], timeout=_START_S)
    attached = Attached(spec, rank, replica, link, servers)
    optimizer.step = attached.step  # type: ignore[method-assign]
    return attached


def _spec(
    optimizer: Any, strategy: Any, compression: Any, shards: int, seed: int, workers: int, fields: dict[str, Any]
) -> JobSpec:
    from raysync.engine.attached import server_rule

    kind = dict(strategy or {"kind": "bsp"})
    if kind["kind"] == "bsp":
        kind = {**kind, "relay": True}
    if kind.get("local_epochs") is not None or (kind["kind"] == "fedavg" and kind.get("sync_every") is None):
        remedy = "attach does not see your data: say how many steps with sync_every"
        raise SpecError((Problem("strategy.local_epochs", kind.get("local_epochs"), remedy),))
    data: dict[str, Any] = {
        "name": "attached",
        "task": {"kind": "custom", "entrypoint": "attached:loop"},
        "strategy": kind,
        "compression": compression or {},
        "data": {"batch_size": 1},
        "budget": {"steps": _FOREVER},
        "eval_every": _FOREVER,
        "seed": seed,
        **fields,
    }
    data["scale"] = {**fields.get("scale", {}), "workers": workers, "shards": shards}
    spec = parse_spec(data)
    if spec.strategy.asynchronous:
        data["optimizer"] = server_rule(optimizer).model_dump()
    return parse_spec(data)


def _world() -> tuple[int, int]:
    from ray.train import get_context

    context = get_context()
    return context.get_world_rank(), context.get_world_size()


def _servers(spec: JobSpec, rank: int) -> tuple[bytes, dict[str, Any]]:
    """Start the coordinator and the shards on rank 0, and find them on the others."""
    from ray.train.collective import broadcast_from_rank_zero

    names = [m.COORDINATOR, *map(m.shard_address, range(spec.scale.shards))]
    made: dict[str, Any] = {}
    if rank == 0:
        group, key = f"attached-{secrets.token_hex(6)}", secrets.token_bytes(32)
        base = Assignment(group, (), spec.model_dump_json(), key, this_code(), ".")
        for name in names:
            kind: Any = CoordinatorActor if name == m.COORDINATOR else ShardActor
            assignment = msgspec.structs.replace(base, addresses=(name,))
            made[name] = kind.options(name=f"{group}:{name}", namespace=NAMESPACE, num_cpus=0).remote(assignment, None)
        ray.get([actor.ping.remote() for actor in made.values()], timeout=_START_S)
        _KEPT.update(made)
    group, key = broadcast_from_rank_zero((group, key) if rank == 0 else None)
    if rank == 0:
        return key, made
    return key, {name: ray.get_actor(f"{group}:{name}", namespace=NAMESPACE) for name in names}


_KEPT: dict[str, Any] = {}
"""Rank 0's handles: an actor ends with the last handle of its owner."""
