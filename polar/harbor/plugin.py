"""The plug-in for Harbor's jobs: opens a session as a trial's environment starts, and closes it with the trial's reward.

Harbor's process may be killed at any time. The session of a running trial then ends at its TTL, so the trial has one trajectory. A trial
that Harbor retries has a session for each try.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

from polar.harbor import trials
from polar.harbor.captured import Captured, environments
from polar.sessions import Mode, Session, SessionRefusedError, close_session
from topics.environment import keys
from topics.environment.settings import load
from topics.types.errors import InputError, NotReadyError

if TYPE_CHECKING:
    from harbor.job import Job
    from harbor.models.job.result import JobResult
    from harbor.models.trial.config import AgentConfig
    from harbor.trial.hooks import TrialHookEvent

TTL_S = 86_400.0
"""The longest that a session may have: Harbor's own timeouts end a trial, and a TTL that passes before takes its reward."""
CLOSE_S = 60.0
"""How long a reward waits for a proxy that doesn't answer."""
CLOSE_AGAIN_S = 1.0
WITHOUT_MODEL = ("oracle", "nop")
"""Agents of Harbor's that call no model. Their reward counts without a call."""

logger = logging.getLogger(__name__)


class Plugin:
    """For `harbor run --plugin polar.harbor:Plugin --plugin-kwarg NAME=VALUE`.

    `data`: Polar's data folder; None is the one that `polar` would find. `proxy_url`: the proxy's address as trials reach it, without a
    path; None is the address that the proxy announces. `ttl_s`: how long a session may live. `reward`: which of a verifier's rewards
    counts.

    Raises InputError for a bad address.
    """

    def __init__(
        self,
        data: str | None = None,
        proxy_url: str | None = None,
        ttl_s: float = TTL_S,
        mode: Mode = "train",
        reward: str = trials.REWARD,
    ) -> None:
        self._settings = load(None if data is None else Path(data))
        self._proxy_url = None if proxy_url is None else _proxy_url(proxy_url)
        self._ttl_s = float(ttl_s)
        self._mode: Mode = mode
        self._reward = reward
        self._open: dict[UUID, Session] = {}

    async def on_job_start(self, job: Job) -> None:
        """Watch the job's trials. Raises InputError for an agent whose calls would not be captured."""
        for agent in job.config.agents:
            _check(agent)
        self._job = job
        job.on_environment_started(self._open_session)
        job.on_trial_ended(self._close_session)

    async def on_job_end(self, job_result: JobResult) -> None:
        """Close the sessions of trials that ended without their hook, without a reward."""
        del job_result
        while self._open:
            trial_id, session = self._open.popitem()
            environments.pop(trial_id, None)
            await _close(session, None, force=False)

    async def _open_session(self, trial: TrialHookEvent) -> None:
        """As the environment starts, not as the trial does: what is raised there fails the trial, which Harbor may retry, not the job."""
        config = self._job.config
        agent = trial.config.agent
        task_id = trials.task_id(
            str(self._job.id), trial.task_name, str(trial.config.task.get_task_id()), agent.concurrency_key
        )
        try:
            session = await self._opened(task_id, config.n_attempts, trial.trial_name)
        except SessionRefusedError as error:
            if error.code != "taken":
                raise
            # A retry, or a resumed job: an earlier session of the trial has a sample.
            session = await self._opened(f"{task_id}-{trial.trial_id.hex[:12]}", 1, trial.trial_name)
        self._open[trial.trial_id] = session
        environments[trial.trial_id] = (
            session.env if self._proxy_url is None else keys.environment(self._proxy_url, session.key)
        )

    async def _opened(self, task_id: str, samples: int, label: str) -> Session:
        return await asyncio.to_thread(
            Session.open,
            settings=self._settings,
            task_id=task_id,
            samples=samples,
            ttl_s=self._ttl_s,
            mode=self._mode,
            run=trials.run(self._job.config.job_name),
            label=label,
        )

    async def _close_session(self, trial: TrialHookEvent) -> None:
        session = self._open.pop(trial.trial_id, None)
        environments.pop(trial.trial_id, None)
        if session is None:
            return
        verified = trial.result.verifier_result
        rewards = None if verified is None else verified.rewards
        reward = trials.reward(rewards, self._reward)
        if rewards and reward is None:
            logger.warning("%s: none of the rewards %s is a number named %r", trial.trial_name, rewards, self._reward)
        await _close(session, reward, force=trial.config.agent.name in WITHOUT_MODEL)


def _proxy_url(url: str) -> str:
    parts = urlsplit(url.rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
        raise InputError(
            "proxy_url", url, "must be the proxy's URL without a path, such as http://host.docker.internal:8080"
        )
    return url.rstrip("/")


def _check(agent: AgentConfig) -> None:
    """Raise InputError if the agent's calls would not be captured."""
    if agent.name in WITHOUT_MODEL:
        return
    from harbor.agents.factory import AgentFactory

    if issubclass(AgentFactory.get_agent_class_from_config(agent), Captured):
        return
    name = agent.import_path or agent.name
    raise InputError(
        "agent",
        name,
        f"its calls would not be captured: use polar.harbor:{agent.name or 'NAME'}, or the mixin Captured",
    )


async def _close(session: Session, reward: float | None, *, force: bool) -> None:
    """Close it, and never raise: what a hook raises at a trial's end stops Harbor's whole job."""
    deadline = asyncio.get_running_loop().time() + CLOSE_S
    while True:
        try:
            await asyncio.to_thread(close_session, session.settings, session.session_id, reward, force=force)
        except SessionRefusedError as error:
            logger.warning("the reward %s of %s doesn't count: %s", reward, session.session_id, error)
        except NotReadyError as error:
            if asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(CLOSE_AGAIN_S)
                continue
            logger.warning(
                "the reward %s of %s is lost, its session ends at its TTL: %s", reward, session.session_id, error
            )
        return
