"""The table of a job's processes: where each is, how it is, how fast, and how often it was replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.address import Address
from raysync.events import ActorStarted
from service.http.schemas import ActorPublic
from service.security.redaction import redacted
from service.store import JobRow


def actors_of(row: JobRow, starts: Mapping[str, Sequence[ActorStarted]]) -> list[ActorPublic]:
    """Return the processes of a job: what they said of themselves last, and every time each has come up."""
    told: dict[str, dict[str, Any]] = row.runs.get("actors") or {}
    return [_actor(name, told.get(name, {}), starts.get(name, ())) for name in sorted({*told, *starts}, key=_order)]


def _actor(name: str, said: Mapping[str, Any], starts: Sequence[ActorStarted]) -> ActorPublic:
    facts = {**({"node": starts[-1].node, "pid": starts[-1].pid} if starts else {}), **said}
    address, step_s = _address(name), _number(facts.get("step_s"))
    return ActorPublic(
        name=name,
        role=name.partition("/")[0],
        index=address.index if address is not None and "/" in name else None,
        stage=address.stage if address is not None and name.count("/") > 1 else None,
        node=redacted(str(facts["node"])) if facts.get("node") else None,
        pid=facts.get("pid"),
        life=facts.get("life"),
        device=facts.get("device"),
        threads=facts.get("torch_threads"),
        busy_ratio=_number(facts.get("busy_ratio")),
        compute_s=step_s,
        steps_per_s=1 / step_s if step_s else None,
        restarts=max(0, len(starts) - 1),
        memory_bytes=facts.get("peak_rss_bytes"),
        sent_bytes=facts.get("network_bytes_sent"),
    )


def _address(name: str) -> Address | None:
    try:
        return Address.parse(name)
    except ValueError:
        return None


def _order(name: str) -> tuple[str, Any]:
    address = _address(name)
    return (name.partition("/")[0], (address.index, address.stage) if address is not None else (0, 0))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
