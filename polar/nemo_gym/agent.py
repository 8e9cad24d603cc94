"""NeMo Gym's agent server whose rollouts are sessions of Polar (`nemo_gym/base_responses_api_agent.py`, nemo-gym 0.7.0).

`/run` takes a row and returns its result, with the tokens that NeMo RL trains. `/v1/responses` takes a row's request alone; the resources
server (`resources.py`) has the reward of its response. The agent's tools and its model are Polar's: it asks no server of NeMo Gym.

A client that disconnects leaves its session running, since it may ask again with the same rollout id and must find one trajectory. After
the deadline the session is cancelled.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException
from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from polar.nemo_gym.connection import Connection
from polar.nemo_gym.results import SESSION, overdue, result
from polar.nemo_gym.rollouts import RUN, task_of
from polar.trainer.exporters.segments import Branches
from topics.types.session import session_id_of

try:
    from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
    from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
    from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
    from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
except ImportError as error:
    raise ImportError(f"polar.nemo_gym needs NeMo Gym: pip install nemo-gym==0.7.0 ({error})") from None


class PolarAgentConfig(BaseResponsesAPIAgentConfig):  # type: ignore[misc]
    """The agent's part of a NeMo Gym config."""

    run: str
    """A name for this collection or training: with the row's rollout id it is the task's id."""
    task: dict[str, Any]
    """A template, as for `polar tasks import`: the harness, the evaluator, the sandbox. `{{field}}` are the row's fields."""
    data: str | None = None
    """The system's folder; None: as for `polar.Client`, by POLAR_* variables."""
    deadline_s: float = Field(default=7200.0, gt=0, allow_inf_nan=False)
    """From a request to its answer, with the time that a session waits for a worker."""
    branches: Branches = "refuse"
    """A session with several traces: a masked result, or only its longest trace is trained."""

    @field_validator("run")
    @classmethod
    def _named(cls, value: str) -> str:
        if re.fullmatch(RUN, value) is None:
            raise ValueError(f"must match {RUN}")
        return value


class PolarRunRequest(BaseRunRequest):  # type: ignore[misc]
    """A row, with fields for the task's template beside its request."""

    model_config = ConfigDict(extra="allow")


class PolarVerifyResponse(BaseVerifyResponse):  # type: ignore[misc]
    """A row's result, with `polar_session_id`, and `polar_status` of a session that ended."""

    model_config = ConfigDict(extra="allow")


class PolarAgent(SimpleResponsesAPIAgent):  # type: ignore[misc]
    """See the module."""

    config: PolarAgentConfig
    ray_enabled = False
    _connection: Connection = PrivateAttr()

    def setup_webserver(self) -> FastAPI:
        """The package's routes, and one connection to Polar. Raises InputError for settings that name no system."""
        self._connection = Connection(self.config.data)
        return self._connection.close_with(super().setup_webserver())

    async def run(self, body: PolarRunRequest) -> PolarVerifyResponse:
        """One rollout of a row. The same `_ng_rollout_id`, or the same indices, give the same trajectory, with no second run.

        HTTP 422 for a row that is refused, 503 if Polar can't be reached.
        """
        row = body.model_dump(mode="json", exclude_unset=True, by_alias=True)
        made = await self._result(row, _rollout_id(body))
        answer: PolarVerifyResponse = PolarVerifyResponse.model_validate(made)
        return answer

    async def responses(self, body: Annotated[NeMoGymResponseCreateParamsNonStreaming, Body()]) -> NeMoGymResponse:
        """The response of a new session, whose id is in its metadata. HTTP 502 if the session has none to train, else as `run`."""
        request = body.model_dump(mode="json", exclude_unset=True)
        made = await self._result({"responses_create_params": request}, None)
        if made.get("mask_sample"):
            raise HTTPException(502, made["failure_reason"])
        return NeMoGymResponse.model_validate({**made["response"], "metadata": {SESSION: made[SESSION]}})

    async def _result(self, row: Mapping[str, Any], rollout_id: str | None) -> dict[str, Any]:
        due = asyncio.get_running_loop().time() + self.config.deadline_s
        async with self._connection.rollouts(due) as rollouts:
            request = task_of(row, self.config.task, run=self.config.run, rollout_id=rollout_id)
            try:
                trajectory = await rollouts.run(request, due)
            except TimeoutError as error:
                return overdue(row, session_id_of(request.task_id, 0), str(error))
        return result(row, trajectory, self.config.branches)


def _rollout_id(body: PolarRunRequest) -> str | None:
    try:
        found: str | None = maybe_rollout_id_from_run_body(body)
    except (TypeError, ValueError) as error:  # a TypeError is of an attempt index that is no number
        raise HTTPException(422, str(error)) from None
    return found
