"""The stage run: the harness works in the session's runtime, its model calls going to the proxy.

In: a ticket with a runtime. Out: `RunFinished`, sent when no process of the harness lives, however it ended; its log, what else it
keeps and what it changed (`patch`) as artifacts. The session's key is minted here, at the Grant, and stands in the harness's
environment alone: never on a command line, in a log line or in an artifact.

A harness that ends with an exit code has worked, and is evaluated. One that can't be started is no work of an agent: that is an error
of kind `input` or `infra`.
"""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

import structlog

from consumers.harnesses.base import Launch, ModelAccess, harness_of
from consumers.runtimes.base import LOG_LIMIT, Exec, ExecResult, Runtime, RuntimeFault
from consumers.runtimes.newest import newest
from consumers.stages import artifacts, patch
from consumers.stages.budget import Budget, Overrun
from consumers.stages.claims import Claim
from consumers.stages.worker_context import Site
from topics.control import Grant
from topics.environment.keys import BACKSTOP_S, KeyClaims, Limits, Signer, redacted
from topics.environment.settings import Settings
from topics.events import Fact, RunFinished
from topics.types.errors import InputError, Kind, NotReady, SessionError
from topics.types.session import Stage, Status, task_id_of
from topics.types.task import TaskRequest

SAID_LIMIT = 1000
"""Characters of its output that an error repeats."""

log = structlog.get_logger()


def require(settings: Settings) -> Signer:
    """What every run needs of this worker's settings. Raises NotReady, so that a worker that lacks it doesn't start."""
    if settings.proxy_url is None:
        raise NotReady("POLAR_PROXY_URL isn't set; a run worker must know where its harnesses reach the proxy")
    try:
        return Signer.from_file(settings.keys_path)
    except (FileNotFoundError, ValueError) as error:
        raise NotReady(f"no keys to sign with: {error}; copy the fleet's keys file, or set POLAR_KEYS_FILE") from None


class Run:
    needs_grant: ClassVar[bool] = True

    def __init__(self, site: Site, claim: Claim) -> None:
        self._site = site
        self._claim = claim
        self._runtime: Runtime | None = None

    async def do(self) -> Fact:
        ticket = self._claim.ticket
        grant = await self._claim.granted()
        task = self._claim.task(self._site.blobs)
        budget = self._site.run_budget(ticket.budget_s)
        access = self._access(task, grant)
        self._runtime = await self._site.attach(ticket.runtime, self._claim.id, task.runtime)
        try:
            launch = await budget.within(self._set_up(self._runtime, task, access))
        except Overrun:
            return self._fact(None, {})
        before = await patch.snapshot(self._runtime)
        result = await self._launch(self._runtime, task, access, launch, budget)
        kept = await self._keep(self._runtime, result, launch, before)
        return self._fact(result.exit_code, kept, redacted(result.said)[-SAID_LIMIT:])

    async def tidy(self, fact: Fact | None) -> None:
        """After a run that won't be evaluated the runtime has no use; one that was taken from us may have."""
        void = isinstance(fact, RunFinished) and fact.error and fact.error.kind in (Kind.INFRA, Kind.INPUT)
        if void and self._runtime is not None:
            await self._runtime.remove()

    def _access(self, task: TaskRequest, grant: Grant) -> ModelAccess:
        """Mint the key."""
        settings = self._site.settings
        signer = require(settings)
        assert settings.proxy_url is not None, "required"
        now = int(time.time())
        key = signer.mint(
            KeyClaims(
                session_id=grant.session_id,
                attempt=grant.attempt,
                claim_id=grant.claim_id,
                expires_at=now + int(self._claim.ticket.budget_s) + BACKSTOP_S,
                issued_at=now,
                mode=task.mode,
                sampling=task.effective_sampling().model_dump(exclude_none=True),
                limits=Limits(**task.limits.model_dump(exclude_none=True)),
                log_partition=grant.log_partition or 0,
                log_offset=grant.log_offset or 0,
            )
        )
        return ModelAccess(settings.proxy_url.rstrip("/"), key, task.agent.model_name)

    async def _set_up(self, runtime: Runtime, task: TaskRequest, access: ModelAccess) -> Launch:
        harness = harness_of(task.agent)
        await harness.install()
        instruction = runtime.home / "instruction.txt"
        await runtime.write_file(instruction, task.instruction.encode())
        return await harness.prepare(runtime, access, instruction)

    async def _launch(
        self, runtime: Runtime, task: TaskRequest, access: ModelAccess, launch: Launch, budget: Budget
    ) -> ExecResult:
        session_id = self._claim.ticket.session_id
        ours = {
            "POLAR_SESSION_ID": session_id,
            "POLAR_TASK_ID": task_id_of(session_id),
            "POLAR_INSTRUCTION_FILE": str(runtime.home / "instruction.txt"),
        }
        what = Exec(
            launch.command,
            cwd=launch.cwd,
            env=access.env | ours | dict(launch.env) | task.agent.env,
            stdin=str(launch.stdin) if launch.stdin else None,
            log="agent.log",
        )
        async with budget.alarm() as spent:
            try:
                return await runtime.exec(what, stop=spent)
            except InputError as error:
                if task.agent.custom_shell is None:
                    raise
                raise InputError("agent.custom_shell.cwd", launch.cwd, error.reason) from error

    async def _keep(
        self, runtime: Runtime, result: ExecResult, launch: Launch, before: patch.Snapshot | None
    ) -> dict[str, str]:
        """Blob references of the log, of what the harness keeps and of its changes, by artifact name."""
        found = {artifacts.AGENT_LOG: await asyncio.to_thread(result.output)}
        for name, path in launch.keep.items():
            try:
                if there := await newest(runtime, path):
                    found[name] = await runtime.read_file(there, LOG_LIMIT)
            except FileNotFoundError:
                continue  # a harness that ended early
            except (OSError, InputError, RuntimeFault) as error:
                log.warning(
                    "artifact not kept", action="artifact.lost", claim=self._claim.id, name=name, why=str(error)
                )
        if before and (changed := await patch.changes(runtime, before)):
            found[artifacts.PATCH] = changed
        return await artifacts.stored(self._site.blobs, self._claim.id, found)

    def _fact(self, exit_code: int | None, kept: dict[str, str], said: str = "") -> RunFinished:
        """`exit_code` None: we ended it, since its time was up. `said`: the end of its output."""
        claim, ticket = self._claim, self._claim.ticket
        status, error = Status.COMPLETED, None
        if exit_code is None:
            message = f"the harness worked longer than timeouts.run = {ticket.budget_s:g} s"
            status, error = Status.TIMED_OUT, SessionError(Stage.RUN.value, Kind.BUDGET, "timeout", message)
        elif exit_code != 0:
            message = f"the harness ended with exit code {exit_code} (artifact {artifacts.AGENT_LOG}); {said}"
            status, error = Status.FAILED, SessionError(Stage.RUN.value, Kind.AGENT, "exit_code", message)
        return RunFinished(
            claim.finished_id,
            ticket.session_id,
            ticket.attempt,
            claim.id,
            status,
            exit_code=exit_code,
            error=error,
            artifacts=kept or None,
            duration_ms=claim.elapsed_ms,
        )
