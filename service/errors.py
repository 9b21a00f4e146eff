"""Errors of the service; `service.http.problems` says which HTTP status each becomes."""

from __future__ import annotations

from raysync.errors import FieldProblem, RaysyncError


class DatabaseError(RaysyncError, ValueError):
    """A database that cannot be used."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return f"database {self.what}: {self.problem}"


class DatabaseUnavailable(RaysyncError, ConnectionError):
    """A database that does not answer now; nothing of what was asked has been written."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the database does not answer now ({self.problem}); try again in a moment"


class NotFound(RaysyncError, LookupError):
    """Nothing has this id."""

    def __init__(self, what: str, id: str) -> None:
        super().__init__(what, id)
        self.what, self.id = what, id

    def __str__(self) -> str:
        return f"there is no {self.what} {self.id!r}"


class WrongState(RaysyncError, RuntimeError):
    """Something a job cannot do in the state it is in."""

    def __init__(self, job: str, state: str, remedy: str) -> None:
        super().__init__(job, state, remedy)
        self.job, self.state, self.remedy = job, state, remedy

    def __str__(self) -> str:
        return f"job {self.job} is {self.state}: {self.remedy}"


class KeyReused(RaysyncError, ValueError):
    """An Idempotency-Key that came before with another body."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"Idempotency-Key {self.key!r} was used for another job; send a new key with a new body"


class KeyOfRemoved(RaysyncError):
    """An Idempotency-Key whose job was removed."""

    def __init__(self, key: str, job: str) -> None:
        super().__init__(key, job)
        self.key, self.job = key, job

    def __str__(self) -> str:
        return f"Idempotency-Key {self.key!r} made job {self.job}, which was removed; send a new key for a new job"


class PreconditionFailed(RaysyncError):
    """An If-Match that does not match any more."""

    def __init__(self, expected: str, current: str) -> None:
        super().__init__(expected, current)
        self.expected, self.current = expected, current

    def __str__(self) -> str:
        return f"If-Match says {self.expected}, the knobs are at {self.current}: read them again and repeat the change"


class BadRequest(RaysyncError, ValueError):
    """A request whose field cannot be what it is."""

    def __init__(self, field: str, remedy: str) -> None:
        super().__init__(field, remedy)
        self.field, self.remedy = field, remedy

    def __str__(self) -> str:
        return f"{self.field}: {self.remedy}"


class BodyInvalid(RaysyncError, ValueError):
    """A request body whose fields are wrong."""

    def __init__(self, problems: tuple[FieldProblem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        first = self.problems[0]
        return f"{first.field}: {first.remedy}"


class RangeRefused(RaysyncError, ValueError):
    """A Range that no part of a file is."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size

    def __str__(self) -> str:
        return f"the file has {self.size} bytes; send one range inside it, such as bytes=0-{max(0, self.size - 1)}"


class NotJson(RaysyncError, ValueError):
    """A request body that is no JSON."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the body is not JSON: {self.problem}"


class PackageError(RaysyncError, ValueError):
    """A package that is refused."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"package refused: {self.problem}"


class EntrypointRefused(RaysyncError, ValueError):
    """A custom task whose code may not run here."""

    def __init__(self, entrypoint: str, remedy: str) -> None:
        super().__init__(entrypoint, remedy)
        self.entrypoint, self.remedy = entrypoint, remedy

    def __str__(self) -> str:
        return f"entrypoint {self.entrypoint!r}: {self.remedy}"


class TooLarge(RaysyncError, ValueError):
    """A request body beyond the limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"the body is larger than {self.limit_bytes} bytes"


class WrongMediaType(RaysyncError, ValueError):
    """A body of a kind the service does not read."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(found, wanted)
        self.found, self.wanted = found, wanted

    def __str__(self) -> str:
        return f"Content-Type is {self.found or 'missing'}; send {self.wanted}"


class Unauthorized(RaysyncError, PermissionError):
    """No token, or one that is not valid any more."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem}; send `Authorization: Bearer TOKEN`, made with `raysync token create NAME`"


class Forbidden(RaysyncError, PermissionError):
    """A token whose role does not reach, or a request from where none may come."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class UserCodeRefused(RaysyncError, PermissionError):
    """A job that brings code, at a service that takes none."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field

    def __str__(self) -> str:
        return (
            f"{self.field}: this service runs no code of its users (--no-user-code): no packages, no pip, no custom "
            "tasks; choose a built-in task, or a service that was started without it"
        )


class TooManyFailures(RaysyncError, PermissionError):
    """Too many wrong tokens from one address."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s

    def __str__(self) -> str:
        return f"too many wrong tokens from this address; try again in {self.wait_s} s"


class TooManyStreams(RaysyncError):
    """A caller with more open streams than one may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"this token has {self.limit} streams open, as many as it may: end some of them first"


class FolderTaken(RaysyncError):
    """A data folder another service runs on."""

    def __init__(self, folder: str, holder: str) -> None:
        super().__init__(folder, holder)
        self.folder, self.holder = folder, holder

    def __str__(self) -> str:
        return (
            f"a raysync service of {self.folder} runs already ({self.holder}); the command line finds it by itself. "
            "For another one give --data and --port"
        )


class AddressTaken(RaysyncError):
    """An address the service cannot listen at."""

    def __init__(self, host: str, port: int, problem: str) -> None:
        super().__init__(host, port, problem)
        self.host, self.port, self.problem = host, port, problem

    def __str__(self) -> str:
        return f"cannot serve at {self.host}:{self.port} ({self.problem}): give another --port, or another --host"


class UnsafeBinding(RaysyncError, ValueError):
    """A service that would be open to others in a way its operator has not asked for."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem
