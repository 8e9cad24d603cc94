"""A finished session as OpenTelemetry spans: one root, a child for each stage whose times are known, one for each model call.

Pure. Names of `gen_ai.*` attributes are those of OpenTelemetry's semantic conventions 1.41.1, the last release that describes them (they
have no stable version yet); what they lack is `polar.*`. Ids are hashes of names, so a session gives the same spans whenever it is sent.
A time that no record has isn't invented: a stage without a report of its end has no span, and tools have none, because only the harness
knows when they ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from polar.export.otlp import contents
from polar.export.sessions import ExportedCall, ExportedSession
from topics.types import session as sessions
from topics.types.completion import CallOutcome
from topics.types.session import Stage
from topics.types.trajectory import Trajectory

SCHEMA = "https://opentelemetry.io/schemas/1.41.1"
SCOPE = InstrumentationScope("polar", schema_url=SCHEMA)
SERVICE = "polar"
"""The service's name; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES replace it."""
NS_PER_MS = 1_000_000

CONVERSATION = "gen_ai.conversation.id"
"""The attribute of every span that has the session's id."""

Fields = Mapping[str, AttributeValue | None]
"""Attributes; those that are None are left out."""


@dataclass(frozen=True)
class StageReport:
    """A worker's report that a stage ended."""

    stage: Stage
    attempt: int
    ended_ms: int
    """Unix ms: the time of the report's record."""
    duration_ms: int
    """On the worker's clock."""


@dataclass(frozen=True)
class Origin:
    """The Kafka cluster and namespace of sessions. Two clusters or namespaces may use the same session ids."""

    cluster: str
    namespace: str

    def trace_id(self, session_id: str) -> int:
        return self._hashed(16, "trace", session_id)

    def span_id(self, session_id: str, *name: str) -> int:
        """`name`: empty for the root, else the kind of span and its own name."""
        return self._hashed(8, "span", session_id, *name)

    def _hashed(self, size: int, *names: str) -> int:
        """Not 0, which OpenTelemetry reserves. Each name's length comes first, so no two lists of names are the same bytes."""
        digest = hashlib.sha256()
        for name in (self.cluster, self.namespace, *names):
            encoded = name.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return int.from_bytes(digest.digest()[:size], "big") or 1


def resource(origin: Origin) -> Resource:
    """The resource attributes of all spans. Those of the environment replace ours."""
    named = Resource.create({"service.name": SERVICE, "polar.namespace": origin.namespace})
    return named.merge(OTELResourceDetector().detect())


@dataclass(frozen=True)
class _Draft:
    """A span without what all spans of its session share."""

    key: tuple[str, ...]
    """The kind of span and its own name, for its id; empty for the root."""
    name: str
    kind: SpanKind
    start_ms: int
    end_ms: int
    fields: Fields
    failed: str | None
    """The code of an error; None: there was none."""


class Tracer:
    """Makes the spans of sessions of one origin."""

    def __init__(self, origin: Origin, *, with_contents: bool) -> None:
        self._origin = origin
        self._resource = resource(origin)
        self._with_contents = with_contents

    def spans(self, session: ExportedSession, reports: Iterable[StageReport], emitted_ms: int) -> list[ReadableSpan]:
        """The session's spans, root first. `emitted_ms`: Unix ms of the trajectory's record, which is the time of a session without any
        stage or call."""
        trajectory = session.trajectory
        stages = [self._stage(trajectory, report) for report in _last_stages(trajectory, reports)]
        calls = [self._call(call) for call in session.calls]
        parts = [*stages, *calls]
        start = min((part.start_ms for part in parts), default=emitted_ms)
        end = max((part.end_ms for part in parts), default=emitted_ms)
        made = partial(self._made, trajectory.session_id)
        root = made(self._root(trajectory, start, end), None)
        of_stages = [made(stage, root) for stage in stages]
        run = next((span for span in of_stages if span.name == Stage.RUN.value), root)
        return [root, *of_stages, *(made(call, run) for call in calls)]

    def _made(self, session_id: str, draft: _Draft, parent: ReadableSpan | None) -> ReadableSpan:
        context = SpanContext(
            self._origin.trace_id(session_id),
            self._origin.span_id(session_id, *draft.key),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        fields = {CONVERSATION: session_id, **draft.fields, "error.type": draft.failed}
        return ReadableSpan(
            name=draft.name,
            context=context,
            parent=None if parent is None else parent.context,
            resource=self._resource,
            attributes={field: value for field, value in fields.items() if value is not None},
            kind=draft.kind,
            status=Status(StatusCode.UNSET if draft.failed is None else StatusCode.ERROR),
            start_time=draft.start_ms * NS_PER_MS,
            end_time=draft.end_ms * NS_PER_MS,
            instrumentation_scope=SCOPE,
        )

    def _root(self, trajectory: Trajectory, start_ms: int, end_ms: int) -> _Draft:
        error = trajectory.error
        failed = None
        if trajectory.status is not sessions.Status.COMPLETED:
            failed = error.code if error is not None else trajectory.status.value.lower()
        fields: Fields = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _provider(call.engine for call in trajectory.calls),
            "gen_ai.agent.name": trajectory.harness,
            "polar.task_id": trajectory.task_id,
            "polar.sample_index": trajectory.sample_index,
            "polar.num_samples": trajectory.num_samples,
            "polar.attempt": trajectory.attempt,
            "polar.run": trajectory.run,
            "polar.mode": trajectory.mode,
            "polar.label": trajectory.label,
            "polar.status": trajectory.status.value,
            "polar.reward": trajectory.reward,
            "polar.reward_reason": trajectory.reward_reason if self._with_contents else None,
            "polar.error_stage": None if error is None else error.stage,
            "polar.error_kind": None if error is None else error.kind.value,
            "polar.trainable_tokens": trajectory.stats.trainable_tokens,
            "polar.init_queued_ms": trajectory.accounting.init_queued_ms,
            "polar.run_queued_ms": trajectory.accounting.run_queued_ms,
            "polar.evaluate_queued_ms": trajectory.accounting.evaluate_queued_ms,
            "polar.attempts_lost": trajectory.accounting.attempts_lost,
        }
        name = f"invoke_agent {trajectory.harness}"
        return _Draft((), name, SpanKind.INTERNAL, start_ms, end_ms, fields, failed)

    def _stage(self, trajectory: Trajectory, report: StageReport) -> _Draft:
        stage = report.stage.value
        error = trajectory.error
        failed = error.code if error is not None and error.stage == stage else None
        fields: Fields = {
            "polar.stage": stage,
            "polar.attempt": report.attempt,
            "polar.reward": trajectory.reward if report.stage is Stage.EVALUATE else None,
        }
        start_ms = report.ended_ms - report.duration_ms
        return _Draft(("stage", stage), stage, SpanKind.INTERNAL, start_ms, report.ended_ms, fields, failed)

    def _call(self, exported: ExportedCall) -> _Draft:
        call, record, sampling = exported.call, exported.record, exported.call.sampling
        is_answered = call.outcome == CallOutcome.ANSWERED
        model = None if record is None else record.model_requested
        versions = [span.version for span in call.policy_spans]
        fields: Fields = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _provider([call.engine]),
            "gen_ai.request.model": model,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": None if sampling.top_k is None else float(sampling.top_k),
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.stop_sequences": sampling.stop if sampling.stop and self._with_contents else None,
            "gen_ai.request.stream": True if record is not None and record.stream else None,
            "gen_ai.response.model": call.model_served,
            "gen_ai.response.id": call.call_id if is_answered else None,
            "gen_ai.response.finish_reasons": None if call.finish_reason is None else [call.finish_reason],
            "gen_ai.usage.input_tokens": call.prompt_tokens if is_answered else None,
            "gen_ai.usage.output_tokens": call.sampled_tokens if is_answered else None,
            "polar.call_id": call.call_id,
            "polar.parent_call_id": call.parent,
            "polar.kind": call.kind,
            "polar.branch": call.branch,
            "polar.dialect": call.dialect,
            "polar.outcome": call.outcome,
            "polar.policy_version": call.policy_version,
            "polar.policy_versions": versions or None,
            "polar.publication": call.publication,
            "polar.reward": call.reward,
            "polar.client": call.client,
            **(contents.attributes(exported) if self._with_contents else {}),
        }
        failed = None if is_answered else call.error_code or call.outcome
        name = "chat" if model is None else f"chat {model}"
        key = ("call", call.call_id)
        # A clock that was set back may complete a call before it was received.
        end_ms = max(call.received_at, call.completed_at)
        return _Draft(key, name, SpanKind.CLIENT, call.received_at, end_ms, fields, failed)


def _provider(engines: Iterable[str]) -> str:
    """The engine's name in the proxy's settings; the conventions demand a provider, and a model of one's own has no other."""
    return next((engine for engine in engines if engine), SERVICE)


def _last_stages(trajectory: Trajectory, reports: Iterable[StageReport]) -> list[StageReport]:
    """The reports of the trajectory's own stages, in the order of stages.

    Of several reports of a stage, such as those of workers that had lost their claim, it is the newest whose duration the trajectory has.
    """
    accounting = trajectory.accounting
    durations = {
        Stage.INIT: accounting.init_ms,
        Stage.RUN: accounting.run_ms,
        Stage.EVALUATE: accounting.evaluate_ms,
    }
    newest = {
        report.stage: report
        for report in sorted(reports, key=lambda report: report.ended_ms)
        if report.attempt == trajectory.attempt and report.duration_ms == durations[report.stage]
    }
    return [newest[stage] for stage in Stage if stage in newest]
