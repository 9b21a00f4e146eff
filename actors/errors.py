"""Errors of the runtime; like all of raysync's they are made of facts and pickle by them."""

from __future__ import annotations

from raysync.errors import RaysyncError


class PeerLost(RaysyncError, ConnectionError):
    """A peer has taken no bytes for longer than the link waits."""

    def __init__(self, peer: str, waited_s: float) -> None:
        super().__init__(peer, waited_s)
        self.peer, self.waited_s = peer, waited_s

    def __str__(self) -> str:
        return (
            f"{self.peer} took nothing for {self.waited_s:.1f} s: it is gone, unreachable, or holds another job's key"
        )


class UnknownPeer(RaysyncError, LookupError):
    """The link has not been told where this peer is reached."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.peer = peer

    def __str__(self) -> str:
        return f"{self.peer} has not been introduced to this link"


class NoLink(RaysyncError, ConnectionError):
    """An actor without a direct link where nothing else will do."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"attach needs the direct link, and there is none at {self.problem}"


_JOIN_REMEDY = (
    "Is it running there (ray start --head) and is this the cluster's token "
    "(RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token)?"
)


class NoCluster(RaysyncError, ConnectionError):
    """A Ray cluster that cannot be joined."""

    def __init__(self, address: str, problem: str, remedy: str = _JOIN_REMEDY) -> None:
        super().__init__(address, problem, remedy)
        self.address, self.problem, self.remedy = address, problem, remedy

    def __str__(self) -> str:
        return f"could not join the Ray cluster at {self.address}: {self.problem}. {self.remedy}".rstrip()


class NotConnected(RaysyncError, RuntimeError):
    """A job was to be started or found, and this process is connected to no Ray."""

    def __str__(self) -> str:
        return (
            "this process is not connected to a Ray: call ray.init(address=...) first ('local' starts one), or use "
            "fit(), which starts or joins one by itself"
        )


class JobFailed(RaysyncError, RuntimeError):
    """A job that ended without a result; `cause` is what its code raised, or the sentence that explains it."""

    def __init__(self, job: str, cause: str) -> None:
        super().__init__(job, cause)
        self.job, self.cause = job, cause

    def __str__(self) -> str:
        return f"job {self.job} failed: {self.cause}"


class VersionSkew(RaysyncError, RuntimeError):
    """A node runs other code than the driver."""

    def __init__(self, node: str, differences: tuple[str, ...]) -> None:
        super().__init__(node, differences)
        self.node, self.differences = node, differences

    def __str__(self) -> str:
        return (
            f"node {self.node} differs from the driver: {'; '.join(self.differences)}. Install the same raysync on "
            "every node, or ship the driver's: fit(..., ship_code=True), or --ship-code on the command line"
        )
