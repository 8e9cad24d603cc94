"""MLflow: a run of an experiment, found again by its tag `polar.run`. MLFLOW_TRACKING_URI and the other variables of MLflow hold.

A server writes the values of a point in one transaction. A folder (`MLFLOW_ALLOW_FILE_STORE`) writes one file after the other, so after a
crash some curves may have a point that others lack; `written` tells each curve's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from polar.export.metrics.curves import Point
from polar.export.metrics.sinks.base import SinkError

TAG = "polar.run"


class MLflow:
    """A run of an experiment."""

    def __init__(self, experiment: str, run: str) -> None:
        """Finds the run, or makes it. Raises SinkError."""
        try:
            self._client = MlflowClient()
            found = self._client.get_experiment_by_name(experiment)
            experiment_id = self._client.create_experiment(experiment) if found is None else found.experiment_id
            # Names of runs have no quotes (`topics.types.ids.RUN`).
            known = self._client.search_runs(
                [experiment_id], filter_string=f"tags.`{TAG}` = '{run}'", order_by=["start_time ASC"], max_results=1
            )
            made = known[0] if known else self._client.create_run(experiment_id, run_name=run, tags={TAG: run})
        except MlflowException as error:
            raise SinkError(f"MLflow doesn't answer: {error}") from error
        self._run_id = made.info.run_id
        self.address = f"{self._client.tracking_uri}: experiment {experiment}, run {run}"

    def written(self) -> Mapping[str, int]:
        """As `Sink.written`."""
        try:
            names = self._client.get_run(self._run_id).data.metrics
            histories = {name: self._client.get_metric_history(self._run_id, name) for name in names}
        except MlflowException as error:
            raise SinkError(f"MLflow doesn't answer: {error}") from error
        return {name: max(one.timestamp for one in history) for name, history in histories.items()}

    def write(self, point: Point) -> None:
        """As `Sink.write`."""
        metrics = [Metric(name, value, point.at_ms, point.step) for name, value in point.values.items()]
        try:
            self._client.log_batch(self._run_id, metrics=metrics)
        except MlflowException as error:
            raise SinkError(f"MLflow doesn't take points: {error}") from error

    def close(self) -> None:
        """As `Sink.close`. A run whose points may still come stays as it is; otherwise MLflow's own page ends it."""
