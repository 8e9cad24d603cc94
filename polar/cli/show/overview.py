"""The sections of the overview: head, calls as a tree, traces, artifacts."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from polar.cli.output import counted
from polar.cli.show.page import ID, Page, duration
from polar.show.artifacts import size_of, text_of
from polar.show.story import CallStory, Story
from topics.environment.blobs import BlobStore
from topics.types.session import Accounting, Phase, Stage, Status
from topics.types.tokens import count
from topics.types.trajectory import Trace, Trajectory, path

TRACEBACK = "evaluator_traceback"
"""The artifact of an evaluation that raised (`consumers.stages.artifacts`), which is printed: nobody else can say what went wrong."""
TRACEBACK_LINES = 60
STATUS_STYLES = {
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.TIMED_OUT: "yellow",
    Status.CANCELLED: "yellow",
}
CALLS = [
    "call", "kind", "outcome", "error", "branch", "not trained", ">prompt", ">shared", ">sampled", ">latency", "finish", ">policy",
    "tools called", ID,
]  # fmt: skip


def draw_head(page: Page, story: Story) -> None:
    session, plan = story.session, story.task.plan
    status = session.status if session.phase is Phase.ENDED else None
    state, style = (status.value, STATUS_STYLES[status]) if status else (session.phase.value, "cyan")
    reward = "no reward" if session.reward is None else f"reward {session.reward:.4g}"
    page.line((session.session_id, "bold"), "  ", (state, style), "  ", reward)
    facts = [f"task {story.task.task_id}", f"sample {session.sample_index} of {story.task.num_samples}"]
    if plan is not None:
        facts += [f"harness {plan.harness}", f"builder {plan.builder}", f"mode {plan.mode}"]
        facts += [f"output {plan.output}"] if plan.output else []
        facts += [f"run {plan.run}"] if plan.run else []
    facts += [f"label {session.label}"] if session.label else []
    facts.append(f"attempt {session.attempt}")
    page.line(", ".join(facts), indent=2)
    if client := next((call.call.client for call in story.calls if call.call.client), None):
        page.line(f"client {client}", indent=2)
    if session.exit_code:
        page.line(f"the harness ended with exit code {session.exit_code}", indent=2)
    error = (story.trajectory.error if story.trajectory else None) or session.error
    for one in filter(None, dict.fromkeys((error, session.evaluation_error))):
        page.line((f"{one.stage} {one.kind.value}/{one.code}:", "red"), indent=2)
        page.shortened(one.message, 6)
    if session.reward_reason is not None and session.evaluation_error is None:
        page.line("the evaluator's reason:", indent=2)
        page.shortened(session.reward_reason, 6)
    if session.unenforced:
        page.line((f"runtime {session.backend}, without: {', '.join(session.unenforced)}", "yellow"), indent=2)
    if session.run_warning is not None:
        page.line((session.run_warning, "yellow"), indent=2)
    page.line(_times(session.accounting), indent=2)
    page.line(_counts(story), indent=2)
    for note in story.notes:
        page.line((note, "yellow"), indent=2)


def _times(spent: Accounting) -> str:
    ms = msgspec.structs.asdict(spent)
    times = (f"{stage} {duration(ms[f'{stage}_ms'])} (queued {duration(ms[f'{stage}_queued_ms'])})" for stage in Stage)
    return "time: " + ", ".join(times)


def _counts(story: Story) -> str:
    outcomes = Counter(call.call.outcome for call in story.calls)
    sampled = sum(call.call.sampled_tokens for call in story.calls)
    words = f"calls: {counted(outcomes) or 'none'}; {sampled:,} tokens sampled"
    if story.trajectory is None:
        return words
    stats = story.trajectory.stats
    noun = "trace" if stats.traces == 1 else "traces"
    return f"{words}, {stats.trainable_tokens:,} of them trainable in {stats.traces} {noun}"


def draw_calls(page: Page, story: Story) -> None:
    """One line per call, in tree order: a continuation stands below its parent; a branch is indented and comes first."""
    page.heading("Calls")
    if not story.calls:
        page.line("none", indent=2)
        return
    page.table(CALLS, (_cells(story, call, depth) for call, depth in in_tree_order(story.calls)))


def _cells(story: Story, told: CallStory, depth: int) -> list[object]:
    call = told.call
    disowned = f"disowned ({told.disowned})" if told.disowned else None
    return [
        "  " * depth + str(told.number),
        call.kind,
        f"{call.outcome}, late" if told.is_late else call.outcome,
        call.error_code,
        call.branch,
        told.masked or disowned,
        call.prompt_tokens,
        told.shared_tokens,
        call.sampled_tokens,
        duration(call.completed_at - call.received_at),
        call.finish_reason,
        call.policy_version,
        _tallied(story.tool_calls(told)),
        call.call_id,
    ]


def _tallied(names: list[str]) -> str | None:
    """`bash, edit ×3`; None where there are none."""
    return ", ".join(name if n == 1 else f"{name} ×{n}" for name, n in Counter(names).items()) or None


def in_tree_order(calls: list[CallStory]) -> Iterator[tuple[CallStory, int]]:
    """Each call once, after its parent, with how far in it stands.

    The child that most calls go on from, the latest of equals, continues its parent's line; the others come before it, a step further in.
    """
    known = {call.call.call_id for call in calls}
    children: defaultdict[str | None, list[CallStory]] = defaultdict(list)
    for call in calls:
        children[call.call.parent if call.call.parent in known else None].append(call)
    sizes: Counter[str] = Counter()
    for call in reversed(calls):  # a parent is logged before its children
        sizes[call.call.call_id] += 1 + sum(sizes[child.call.call_id] for child in children[call.call.call_id])
    todo = [(call, 0) for call in reversed(children[None])]
    while todo:
        call, depth = todo.pop()
        yield call, depth
        below = children[call.call.call_id]
        if below:
            trunk = max(below, key=lambda child: (sizes[child.call.call_id], child.number))
            todo.append((trunk, depth))
            todo += [(child, depth + 1) for child in reversed(below) if child is not trunk]


def draw_traces(page: Page, story: Story) -> None:
    page.heading("Traces")
    trajectory = story.trajectory
    if trajectory is None:
        page.line("not out", indent=2)
        return
    if trajectory.traces:
        columns = ["up to call", "kind", ">tokens", ">trainable", ">calls", ">reward", "finish", ID]
        page.table(columns, (_trace_cells(story, trajectory, trace) for trace in trajectory.traces))
    else:
        page.line("none", indent=2)
    masked = trajectory.stats.masked_tokens
    if masked:
        page.line(f"sampled, and not trained: {counted({f'tokens {why}': n for why, n in masked.items()})}", indent=2)
    if trajectory.stats.drift:
        page.line(f"drift: {counted(trajectory.stats.drift)}", indent=2)
    if trajectory.stats.late_calls:
        page.line(f"{trajectory.stats.late_calls} calls came too late", indent=2)


def _trace_cells(story: Story, trajectory: Trajectory, trace: Trace) -> list[object]:
    nodes = path(trajectory, trace.leaf)
    last = trajectory.nodes[trace.leaf].call
    return [
        None if last is None else story.number_of(trajectory.calls[last].call_id),
        trace.kind,
        sum(count(trajectory.nodes[node].tokens) for node in nodes),
        sum(count(trajectory.nodes[node].tokens) for node in trace.trains),
        len({trajectory.nodes[node].call for node in nodes} - {None}),
        trace.reward,
        trace.finish_reason,
        trace.trace_id,
    ]


def draw_artifacts(page: Page, story: Story, blobs: BlobStore, command: str) -> None:
    """The session's artifacts. `command` shows the session."""
    page.heading("Artifacts")
    if not story.artifacts:
        page.line("none", indent=2)
        return
    rows = (
        [name, _bytes(blobs, ref), f"{command} --artifact {shlex.quote(name)}"] for name, ref in story.artifacts.items()
    )
    page.table(["artifact", ">size", "print it"], rows)
    if (ref := story.artifacts.get(TRACEBACK)) is not None and (text := text_of(blobs, ref)) is not None:
        page.line()
        page.line((f"{TRACEBACK}:", "red"), indent=2)
        page.shortened(text, TRACEBACK_LINES)


def _bytes(blobs: BlobStore, ref: str) -> str:
    size = size_of(blobs, ref)
    return "not in this store" if size is None else f"{size:,} B"
