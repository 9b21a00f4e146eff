"""What a job came to, with Ray Train's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.errors import JobFailed
from actors.storage.folder import MODEL, Folder, read_model
from actors.storage.journal import all_records
from raysync.events import Event
from raysync.ports import Runs

if TYPE_CHECKING:
    from pandas import DataFrame
    from ray.train import Checkpoint


@dataclass(frozen=True)
class Result:
    """The end of a job."""

    job: str
    state: str
    """SUCCEEDED, STOPPED or FAILED."""
    reason: str
    metrics: dict[str, float]
    """The last value of every metric."""
    path: str
    """The job's folder: events.jsonl, tensorboard, logs.txt, checkpoints, final."""
    error: JobFailed | None
    runs: Runs
    """What really ran: link, codecs, devices."""
    checkpoint_path: str | None
    """The last checkpoint that can be resumed from."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The trained model (`model.pt`, a state_dict); of a job that did not finish, its last checkpoint."""
        from ray.train import Checkpoint

        final = Folder(self.path).at("final")
        if final.size(MODEL) is not None:
            return Checkpoint(final.path, final.filesystem)
        if self.checkpoint_path is None:
            return None
        folder = Folder(self.checkpoint_path)
        return Checkpoint(folder.path, folder.filesystem)

    def model_state(self) -> dict[str, Any]:
        """Return the state_dict of the trained model."""
        return read_model(Folder(self.path).at("final"))

    def records(self) -> list[Event]:
        """Return everything that happened, in order."""
        return all_records(Folder(self.path))

    @property
    def metrics_dataframe(self) -> DataFrame:
        """One row per metrics event."""
        import pandas

        rows = [{"step": r.step, "time_s": r.time_s, **r.data} for r in self.records() if r.kind == "metrics"]
        return pandas.DataFrame(rows)
