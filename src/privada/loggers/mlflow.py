"""Parameters and metrics for MLflow."""

import re
from collections.abc import Mapping
from typing import Any

from privada.core.validation import printable_text
from privada.loggers.logger import Logger, require
from privada.train.callbacks import TrainingEvent

_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")


class MLflow(Logger):
    """Logs the settings of a run as parameters and its figures as metrics of an MLflow run.

    Needs MLflow or its small form: `pip install 'privada[loggers]'`.

    Args:
        experiment: the name of the experiment, which is created if there is none.
        tracking_uri: where MLflow keeps runs; by default as MLflow is set up.
        run_name: what the run is called; by default the name that the ledger has.
        run_id: an MLflow run to log to, such as `mlflow.active_run().info.run_id`, instead of a new
            one; it is not ended.
        every: how many steps lie between two that are logged; by default there are fifty.

    Guarantee: as for `Logger`: all metrics of a run have the time at which training began. MLflow
    itself notes when a run began and ended.

    Edge cases: a database, such as "sqlite:///runs.db", needs more than the small form of MLflow
    has: pip install mlflow. Characters that MLflow does not take in a name become underscores, as
    in "R_2". A run that was interrupted has the status FAILED. Each `fit` makes a run of its own,
    unless there is a `run_id`.

    Example:
        >>> import privada as pv
        >>> logger = pv.loggers.MLflow("patients", tracking_uri="sqlite:///runs.db", every=20)
        >>> logger.every
        20
    """

    def __init__(
        self,
        experiment: str = "privada",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
        every: int | None = None,
    ) -> None:
        super().__init__(every=every)
        self.experiment = printable_text("experiment", experiment)
        for name, value in (
            ("tracking_uri", tracking_uri),
            ("run_name", run_name),
            ("run_id", run_id),
        ):
            if value is not None:
                printable_text(name, value)
        self._uri, self._name, self._given = tracking_uri, run_name, run_id
        self.run_id = run_id
        self._client: Any = None
        require("mlflow", "pv.loggers.MLflow")

    def begin(self, event: TrainingEvent) -> None:
        """Begin a run, and log the settings."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        if self._given is None:
            found = self._client.get_experiment_by_name(self.experiment)
            experiment = (
                self._client.create_experiment(self.experiment)
                if found is None
                else found.experiment_id
            )
            name = self._name or str(event.settings["run"])
            self.run_id = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in event.settings.items():
            self._client.log_param(self.run_id, key, value)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Log each figure."""
        for name, value in figures.items():
            self._client.log_metric(
                self.run_id,
                _NOT_IN_NAMES.sub("_", name),
                value,
                timestamp=int(1000 * self.began),
                step=step,
            )

    def end(self, event: TrainingEvent) -> None:
        """End the run, if it was begun here."""
        if self._client is not None and self._given is None and self.run_id is not None:
            status = "FINISHED" if event.finished else "FAILED"
            self._client.set_terminated(self.run_id, status=status)
        self._client = None
