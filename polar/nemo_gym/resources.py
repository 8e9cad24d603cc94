"""NeMo Gym's resources server: its verifier is the evaluator that Polar already asked (`nemo_gym/base_resources_server.py`, 0.7.0).

An evaluator needs the sandbox of its session. So `/verify` answers for responses of `agent.py` alone, by the session that they name; a
response that another agent made is refused. `/seed_session` does nothing, as the package's own does: a session begins with its task.
"""

import asyncio
from typing import ClassVar

from fastapi import FastAPI, HTTPException
from pydantic import ConfigDict, Field, PrivateAttr

from polar.nemo_gym.connection import Connection
from polar.nemo_gym.results import SESSION, result
from polar.trainer.exporters.segments import Branches

try:
    from nemo_gym.base_resources_server import (
        BaseResourcesServerConfig,
        BaseVerifyRequest,
        BaseVerifyResponse,
        ReverifyMode,
        SimpleResourcesServer,
    )
except ImportError as error:
    raise ImportError(f"polar.nemo_gym needs NeMo Gym: pip install nemo-gym==0.7.0 ({error})") from None


class PolarResourcesConfig(BaseResourcesServerConfig):  # type: ignore[misc]
    """The server's part of a NeMo Gym config."""

    # A reward is read from the log, so asking again changes nothing.
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS

    data: str | None = None
    """The system's folder; None: as for `polar.Client`, by POLAR_* variables."""
    deadline_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """For finding a session's trajectory."""
    branches: Branches = "refuse"
    """As for the agent."""


class PolarVerifyRequest(BaseVerifyRequest):  # type: ignore[misc]
    """A row with its response, or a result."""

    model_config = ConfigDict(extra="allow")


class PolarVerified(BaseVerifyResponse):  # type: ignore[misc]
    """The request with its reward."""

    model_config = ConfigDict(extra="allow")


class PolarResourcesServer(SimpleResourcesServer):  # type: ignore[misc]
    """See the module."""

    config: PolarResourcesConfig
    ray_enabled = False
    _connection: Connection = PrivateAttr()

    def setup_webserver(self) -> FastAPI:
        """The package's routes, and one connection to Polar. Raises InputError for settings that name no system."""
        self._connection = Connection(self.config.data)
        return self._connection.close_with(super().setup_webserver())

    async def verify(self, body: PolarVerifyRequest) -> PolarVerified:
        """The result of the session that the request names in `polar_session_id`, or its response in `metadata`.

        HTTP 422 without such a session, 503 if Polar can't be reached.
        """
        row = body.model_dump(mode="json", exclude_unset=True, by_alias=True)
        session_id = row.get(SESSION) or (row["response"].get("metadata") or {}).get(SESSION)
        if not isinstance(session_id, str):
            raise HTTPException(
                422, f"{SESSION}: the response names no session of Polar, whose evaluator could reward it"
            )
        due = asyncio.get_running_loop().time() + self.config.deadline_s
        try:
            async with self._connection.rollouts(due) as rollouts:
                trajectory = await rollouts.ended(session_id, due)
        except TimeoutError:
            raise HTTPException(503, f"{session_id}: no trajectory within {self.config.deadline_s:g} s") from None
        answer: PolarVerified = PolarVerified.model_validate(result(row, trajectory, self.config.branches))
        return answer
