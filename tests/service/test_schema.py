"""schemathesis over the whole document, all checks: whatever is sent, no 5xx and no answer the document does not have."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings, strategies
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode

from service.client import Client
from service.store.job_filter import JobFilter
from tests.service.conftest import tokens_for, until
from tests.service.still_runtime import StillRuntime
from tests.service.test_client import JOB, Server, started
from tests.service.test_packages import GOOD
from tests.service.test_routes import DOCUMENT

CASES_PER_OPERATION = 30
WANTED_CASES = 2000
_cases: Counter[str] = Counter()

schemathesis.openapi.media_type("application/zip", strategies.binary(max_size=300) | strategies.just(GOOD))
load_all_checks()
ALL_CHECKS = CHECKS.get_all()
CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {
            # Some rules join several fields (min_workers <= workers): JSON Schema cannot say them, the answer is 422.
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", "401", "403", "404", "409", "412", "413", "422", "429"]
            },
            "negative_data_rejection": {"expected-statuses": ["400", "401", "403", "404", "405", "409", "412", "413", "415", "416", "422"]},
        },
        "generation": {"allow-x00": True},
    }
)  # fmt: skip


class Target:
    """A real server with a job in every condition a request may meet."""

    def __init__(self, folder: Path) -> None:
        self.runtime = StillRuntime()
        self.server = Server(folder, self.runtime)
        self.token = tokens_for(self.server.store)["admin"]
        self.client = Client(self.server.url, self.token)
        self.running = started(self.client, self.runtime)
        self.session = requests.Session()
        self._finished = ""

    def close(self) -> None:
        """End everything."""
        self.client.close()
        self.session.close()
        self.server.stop()

    @property
    def finished(self) -> str:
        """A job that has ended; a new one if the last was removed."""
        books = self.server.store.jobs
        if not any(job.id == self._finished for job in books.page(200, which=JobFilter(states=("SUCCEEDED",)))):
            self._finished = self.client.submit(JOB).id
            until(lambda: self._finished in self.runtime.alive)
            self.runtime.tell(self._finished, "metrics", {"train/loss": 1.0}, step=1)
            self.runtime.enter(self._finished, "SUCCEEDED")
            until(lambda: books.get(self._finished).is_terminal)
        return self._finished


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "service.security.auth.MAX_FAILURES", 10**6
        )  # a check sends wrong tokens, and wants 401 every time
        target = Target(Path(folder))
        global _token
        _token = target.token
        yield target
        target.close()


schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
_token = ""


@schema.auth(refresh_interval=None)
class Bearer:
    """Sends the admin's token, unless a check leaves it out on purpose."""

    def get(self, case: Any, context: Any) -> str:
        return _token

    def set(self, case: Any, data: str, context: Any) -> None:
        case.headers["Authorization"] = f"Bearer {data}"


@schema.parametrize()
@settings(
    max_examples=CASES_PER_OPERATION,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_the_service(case: Any, target: Target) -> None:
    _aim(case, target)
    _cases[f"{case.method} {case.path}"] += 1
    case.call_and_validate(base_url=target.server.url, session=target.session, checks=ALL_CHECKS)


def _aim(case: Any, target: Target) -> None:
    """Point two of three requests with a possible id at a job that is there; streams only at one that has ended."""
    if case.path == "/api/v1/stream" and not {"jobs", "studies"} & {*(case.query or {})}:
        case.query = {**(case.query or {}), "jobs": target.finished}  # a stream of all jobs has no end
    parameters = case.path_parameters or {}
    if "id" not in parameters or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    turn = _cases[f"{case.method} {case.path}"] % 3
    if turn < 2:
        parameters["id"] = target.running if turn == 0 and "stream" not in case.path else target.finished


def test_that_were_enough_cases_of_every_operation() -> None:
    assert _cases.total() >= WANTED_CASES, _cases
    assert len(_cases) >= 20
