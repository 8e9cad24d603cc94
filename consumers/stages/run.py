"""The stage run: the harness works in the session's runtime, and its model calls go to the proxy.

In: a ticket with a runtime. Out: `RunFinished`, sent when no process of the harness lives, however the harness ended. Its log, the
files that it keeps and its changes (`patch`) become artifacts. The session's key is made here, after the Grant. It is only in the
harness's environment: never on a command line, in a log line or in an artifact.

A harness that ends with an exit code has worked and is evaluated, unless a failure of the engine or a proxy ended it (`model_failure`).
Such a failure, like a harness that can't be started, is none of the agent's: the error has kind `infra` or `input`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import structlog

from consumers.harnesses import agent_files, context_window
from consumers.harnesses.base import Harness, Launch, harness_of
from consumers.runtimes.base import LOG_LIMIT, Exec, ExecResult, ModelAccess, Runtime, SandboxError
from consumers.stages import artifacts, patch
from consumers.stages.budget import Budget, BudgetExceededError
from consumers.stages.claim_runner import Claim, StageFact
from consumers.stages.model_failure import model_failure
from consumers.stages.patient_blobs import WAIT_S, fetch
from consumers.stages.worker_context import WorkerContext
from topics.environment.keys import BACKSTOP_S, KeyClaims, Limits, Signer, issued_at
from topics.environment.redaction import redacted
from topics.environment.settings import Settings
from topics.events import RunFinished
from topics.types.errors import InputError, Kind, NotReadyError, SessionError
from topics.types.session import Stage, Status, task_id_of
from topics.types.task import TaskRequest

OUTPUT_LIMIT = 1000
"""Characters of the harness's output that an error repeats: enough for its last lines, and facts stay small."""

log = structlog.get_logger()


def require(settings: Settings) -> Signer:
    """The signer of session keys. Raises NotReadyError if a setting of every run is missing, so that such a worker doesn't start."""
    if settings.proxy_url is None:
        raise NotReadyError("POLAR_PROXY_URL isn't set; a run worker must know where its harnesses reach the proxy")
    try:
        return Signer.from_file(settings.keys_path)
    except (FileNotFoundError, ValueError) as error:
        raise NotReadyError(
            f"no keys to sign with: {error}; copy the fleet's keys file, or set POLAR_KEYS_FILE"
        ) from None


class Run:
    """See `claim_runner.Work`."""

    needs_grant: ClassVar[bool] = True

    def __init__(self, context: WorkerContext, claim: Claim) -> None:
        self._context = context
        self._claim = claim
        self._runtime: Runtime | None = None
        self._lost: list[str] = []
        """Names of artifacts that couldn't be made."""
        self._warning: str | None = None
        """As in `RunFinished`."""

    async def do(self) -> StageFact:
        ticket = self._claim.ticket
        task = await self._claim.task(self._context.blobs)
        # Not in the run's budget: a slow bucket would be a time-out of an agent that never started.
        await fetch(self._context.blobs, [file for _, file in task.agent.files()], WAIT_S)
        budget = self._context.run_budget(ticket.budget_s)
        access = self._access(task)
        self._runtime = await self._context.attach(ticket.runtime, self._claim.id, task.runtime)
        access = await self._sized(access, task)
        try:
            agent, self._warning = context_window.fitted(task.agent, access.context)
            harness = harness_of(agent)
            launch = await budget.within(self._set_up(harness, self._runtime, task, access))
        except BudgetExceededError:
            return self._fact(None, {}, [])
        before: patch.Snapshot | None = None
        with self._patch_lost():
            before = await patch.snapshot(self._runtime)
        program = self._program(self._runtime, task, access, harness, launch)
        result = await self._launch(self._runtime, task, program, budget)
        found = await self._found(self._runtime, result, launch, before)
        kept = await artifacts.stored(self._context.blobs, self._claim.id, found, budget.remaining_s)
        lost = [*self._lost, *(name for name in found if name not in kept)]
        failure = None if result.exceeded else await model_failure(access.proxy_url, access.key, result.exit_code)
        if failure is not None:
            error = SessionError(Stage.RUN.value, Kind.INFRA, "model_failed", failure, retryable=True)
            return self._claim.fact(
                status=Status.FAILED,
                exit_code=result.exit_code,
                error=error,
                artifacts=kept or None,
                warning=self._warning,
            )
        return self._fact(result.exit_code, kept, lost, redacted(result.output_end)[-OUTPUT_LIMIT:], result.exceeded)

    async def tidy(self, fact: StageFact | None) -> None:
        """Remove the runtime after a run that won't be evaluated. A run without a result was revoked: its session may need the runtime."""
        is_void = isinstance(fact, RunFinished) and fact.error and fact.error.kind in (Kind.INFRA, Kind.INPUT)
        if is_void and self._runtime is not None:
            await self._runtime.remove()

    def _access(self, task: TaskRequest) -> ModelAccess:
        """Sign the session's key."""
        settings, grant = self._context.settings, self._claim.grant
        signer = require(settings)
        assert settings.proxy_url is not None, "required"
        assert grant is not None, "a run starts with its Grant"
        now = int(time.time())
        key = signer.mint(
            KeyClaims(
                session_id=grant.session_id,
                attempt=grant.attempt,
                claim_id=grant.claim_id,
                expires_at=now + int(self._claim.ticket.budget_s) + BACKSTOP_S,
                issued_at=issued_at(self._claim.granted_ms),
                namespace=settings.namespace,
                mode=task.mode,
                sampling=task.effective_sampling().model_dump(exclude_none=True),
                limits=Limits(**task.limits.model_dump(exclude_none=True)),
                log_partition=grant.log_partition or 0,
                log_offset=grant.log_offset or 0,
            )
        )
        return ModelAccess(settings.proxy_url.rstrip("/"), key, task.agent.model_name)

    async def _sized(self, access: ModelAccess, task: TaskRequest) -> ModelAccess:
        """With the context of the model's engine, for a harness that compacts by it."""
        if not context_window.has_window(task.agent):
            return access
        context = await context_window.engines_context_in_time(access)
        if context is None and context_window.WINDOW not in task.agent.settings:
            log.warning(
                "the engine's context length is unknown; the harness uses its default",
                action="context.unknown",
                claim=self._claim.id,
                harness=task.agent.name,
                model=access.model_name,
            )
        return replace(access, context=context)

    async def _set_up(self, harness: Harness, runtime: Runtime, task: TaskRequest, access: ModelAccess) -> Launch:
        await harness.install()
        instruction = runtime.home / "instruction.txt"
        await runtime.write_file(instruction, task.instruction.encode())
        await agent_files.place(runtime, harness, task.agent, self._context.blobs)
        return await harness.prepare(runtime, runtime.reached_at(access), instruction)

    def _program(
        self, runtime: Runtime, task: TaskRequest, access: ModelAccess, harness: Harness, launch: Launch
    ) -> Exec:
        session_id = self._claim.ticket.session_id
        variables = {
            "POLAR_SESSION_ID": session_id,
            "POLAR_TASK_ID": task_id_of(session_id),
            "POLAR_INSTRUCTION_FILE": str(runtime.home / "instruction.txt"),
        }
        return Exec(
            launch.command,
            cwd=launch.cwd,
            env=runtime.reached_at(access).env | variables | dict(launch.env) | task.agent.env,
            stdin=str(launch.stdin) if launch.stdin else None,
            log="agent.log",
            model=access,
            tools=harness.tools,
            has_gpus=True,
        )

    async def _launch(self, runtime: Runtime, task: TaskRequest, program: Exec, budget: Budget) -> ExecResult:
        async with budget.alarm() as spent:
            try:
                return await runtime.exec(program, stop=spent)
            except InputError as error:
                if task.agent.custom_shell is None:
                    raise
                raise InputError("agent.custom_shell.cwd", program.cwd, error.reason) from error

    async def _found(
        self, runtime: Runtime, result: ExecResult, launch: Launch, before: patch.Snapshot | None
    ) -> dict[str, bytes]:
        """The log, the files that the harness keeps and the patch, by artifact name."""
        found = {artifacts.AGENT_LOG: await asyncio.to_thread(result.output)}
        for name, path in launch.keep.items():
            try:
                if file := await artifacts.newest_file(runtime, path):
                    found[name] = await runtime.read_file(file, LOG_LIMIT)
            except FileNotFoundError:
                continue  # the harness ended before it wrote the file
            except (OSError, InputError, SandboxError) as error:
                log.warning(
                    "artifact not kept", action="artifact.lost", claim=self._claim.id, name=name, why=str(error)
                )
        with self._patch_lost():
            if before and (changed := await patch.changes(runtime, before)):
                found[artifacts.PATCH] = changed
        return found

    @contextmanager
    def _patch_lost(self) -> Iterator[None]:
        """Name the patch among what is lost if it can't be made."""
        try:
            yield
        except patch.PatchLostError:
            self._lost.append(artifacts.PATCH)

    def _fact(
        self, exit_code: int | None, kept: dict[str, str], lost: list[str], output: str = "", exceeded: str = ""
    ) -> StageFact:
        """`exit_code` None: the run's budget was used up, or a limit of its sandbox was `exceeded`. `output`: the end of the harness's
        output, as part of a sentence."""
        status, error = Status.COMPLETED, None
        if exceeded:
            status = Status.FAILED
            error = SessionError(Stage.RUN.value, Kind.AGENT, "limit_exceeded", f"{exceeded} {output}")
        elif exit_code is None:
            message = f"the harness worked longer than timeouts.run = {self._claim.ticket.budget_s:g} s"
            status, error = Status.TIMED_OUT, SessionError(Stage.RUN.value, Kind.BUDGET, "timeout", message)
        elif exit_code != 0:
            message = f"the harness ended with exit code {exit_code} (artifact {artifacts.AGENT_LOG}); {output}"
            status, error = Status.FAILED, SessionError(Stage.RUN.value, Kind.AGENT, "exit_code", message)
        return self._claim.fact(
            status=status,
            exit_code=exit_code,
            error=error,
            artifacts=kept or None,
            lost_artifacts=lost or None,
            warning=self._warning,
        )
