"""The error tree. Constructors take facts, messages are made from them, and errors pickle by their facts."""

from __future__ import annotations

from typing import NamedTuple


class RaysyncError(Exception):
    """Base of every error raysync raises on purpose."""


class FieldProblem(NamedTuple):
    """One thing wrong with a job specification: where, what was given, what would be right."""

    field: str
    value: object
    remedy: str

    def __str__(self) -> str:
        given = f"got {self.value!r}; " if self.value is not None else ""
        return f"{self.field}: {given}{self.remedy}"


class SpecError(RaysyncError, ValueError):
    """A job specification that cannot be run as written."""

    def __init__(self, problems: tuple[FieldProblem, ...], what: str = "the job specification") -> None:
        super().__init__(problems, what)
        self.problems, self.what = problems, what

    def __str__(self) -> str:
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return f"{count} in {self.what}:\n" + "\n".join(f"  {problem}" for problem in self.problems)


class KnobError(RaysyncError, ValueError):
    """A knob the job does not have, or a value its strategy cannot take."""

    def __init__(self, knob: str, value: object, remedy: str) -> None:
        super().__init__(knob, value, remedy)
        self.knob, self.value, self.remedy = knob, value, remedy

    def __str__(self) -> str:
        return f"knob {self.knob}={self.value!r}: {self.remedy}"


class KnobConflict(RaysyncError):
    """The knobs were turned by another caller since this one last looked."""

    def __init__(self, expected: int, current: int) -> None:
        super().__init__(expected, current)
        self.expected, self.current = expected, current

    def __str__(self) -> str:
        return f"knobs are at version {self.current}, not {self.expected}: read them again and repeat the change"


class TaskError(RaysyncError, ValueError):
    """A task that cannot be built or trained as it is; says what the task must provide."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(task, problem)
        self.task, self.problem = task, problem

    def __str__(self) -> str:
        return f"task {self.task}: {self.problem}"


class PayloadError(RaysyncError, ValueError):
    """Bytes that are not a payload of this codec, or values that may not become one."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"payload refused: {self.problem}"


class Diverged(RaysyncError, ArithmeticError):
    """Training that has left the finite numbers: where, when, and what was seen first."""

    def __init__(self, worker: int, step: int, problem: str, too_many: str = "") -> None:
        super().__init__(worker, step, problem, too_many)
        self.worker, self.step, self.problem, self.too_many = worker, step, problem, too_many
        """`too_many` says how many batches were skipped before, where some were."""

    def __str__(self) -> str:
        before = f"; {self.too_many}" if self.too_many else ""
        remedy = "lower the learning rate, or look at the samples of that step"
        return f"worker {self.worker}, step {self.step}: {self.problem}{before}; {remedy}"


class ProtocolError(RaysyncError, RuntimeError):
    """A message that no correct peer sends: two versions of raysync, or a bug."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class BrokenPlan(RaysyncError, ValueError):
    """A pipeline's plan cannot be carried out."""


class Deadlock(RaysyncError, RuntimeError):
    """The simulator saw no progress within its bounds; carries the seed that shows it again."""

    def __init__(self, seed: int, why: str) -> None:
        super().__init__(seed, why)
        self.seed, self.why = seed, why

    def __str__(self) -> str:
        return f"no progress: {self.why} (seed {self.seed})"


class NotRunning(RaysyncError, RuntimeError):
    """A job asked for something it can do only while it trains; one that has ended never will again."""

    def __init__(self, job: str, state: str, reason: str) -> None:
        super().__init__(job, state, reason)
        self.job, self.state, self.reason = job, state, reason

    def __str__(self) -> str:
        if self.state in ("SUCCEEDED", "FAILED", "STOPPED"):
            remedy = "it has ended; submit it again with resume_from to go on from its last checkpoint"
        else:
            remedy = "try again once it runs"
        return f"job {self.job} is {self.state}: {self.reason}; {remedy}"


class StorageError(RaysyncError, OSError):
    """A place for a job's folder that cannot be used."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"storage {self.path}: {self.problem}; give a folder you may write to, or a URI such as s3://bucket/x"


class CheckpointError(RaysyncError, ValueError):
    """A checkpoint that cannot be written, read, or continued from."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"checkpoint {self.path}: {self.problem}"


class RuntimeLost(RaysyncError, ConnectionError):
    """The cluster that runs the jobs does not answer."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the Ray cluster cannot be reached now: {self.problem}; jobs on it run on, try again in a moment"


class RuntimeFailed(RaysyncError, RuntimeError):
    """The runtime raised an unexpected exception."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text

    def __str__(self) -> str:
        return f"the runtime failed with {self.kind}: {self.text}"
