"""A run whose truth is known: the story, and beside it all that the views of weights, processes, texts and errors tell of.

Version 7 is published at -10 s, 8 at 39 s, and at 95 s version 6, a rollback. `talk` (claude_code, of the run `day`, 1 sample) has three
calls. The first lists files by a tool. While the second is sampled, the weights change. The third begins with an edited history, so it is
a branch. An engine scores both of its traces again. The process worker-0 is killed at 10 s, worker-1 leaves at 90 s, and
worker-2 and proxy-1 run on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tests.analytics.story import NOON, Told, call, stages, story, submitted
from topics.completions import RefusedRequest
from topics.dead_letters import Letter, Replay
from topics.events import InitFinished
from topics.fleet import PolicyVersion, Rollback
from topics.types.completion import Completion, MessageDelta, PolicySpan, TokenDelta
from topics.types.errors import Kind, SessionError
from topics.types.session import Stage, Status
from topics.types.tokens import pack_ids, pack_logprobs
from topics.types.trajectory import Call, Node, Stats, Trace, Trajectory
from topics.verifications import Verification
from topics.workers import Heartbeat, StageSlots

READ = pack_ids(np.arange(100, 120, dtype=np.int32))
SAMPLED = pack_ids(np.arange(200, 210, dtype=np.int32))
LOGPROBS = pack_logprobs(np.full(10, -0.5, np.float32))
SPANS = [PolicySpan(7, 0, 4, 0), PolicySpan(8, 4, 10, 1)]
USE = {"id": "use-1", "type": "function", "function": {"name": "list_files", "arguments": '{"path": "."}'}}


def known_run() -> list[Told]:
    """Seconds after NOON, and the record, in the order of the log."""
    first = [(at, _published(record)) for at, record in story()]
    return sorted([*first, *_talk(), *_fleet(), *_processes(), *_letters(), *_broken()], key=lambda one: one[0])


def _published(record: object) -> object:
    """The story's calls, of which the first publication sampled all."""
    return msgspec.structs.replace(record, publication=0) if isinstance(record, Completion) else record


def _talk() -> Iterator[Told]:
    yield 100, submitted("talk", 1, "claude_code", "day")
    yield from stages("talk.0", 100)
    system = {"role": "system", "content": "You mend code."}
    task = {"role": "user", "content": [{"type": "text", "text": "Mend it."}, {"type": "image_url", "image_url": {}}]}
    use = {"role": "assistant", "content": None, "tool_calls": [USE]}
    result = {"role": "tool", "tool_call_id": "use-1", "content": "a.py"}
    done = {"role": "assistant", "content": "All tests pass.", "reasoning": "It was a typo."}
    edited = {"role": "user", "content": "Mend it. (Shortened.)"}
    again = {"role": "assistant", "content": "Done."}
    calls = [
        _call(0, [system, task], use, publication=0),
        _call(1, [result], done, base=("talk.0-1-0", 3, 30), policy_spans=SPANS, publication=0),
        _call(2, [edited], again, base=("talk.0-1-1", 1, 10), policy_version=8, publication=1),
    ]
    yield from ((106.0 + number, one) for number, one in enumerate(calls))
    placed = [
        _placed(calls[0], branch="root"),
        _placed(calls[1], parent="talk.0-1-0"),
        _placed(calls[2], parent="talk.0-1-0", branch="edited_history"),
    ]
    # The third call shares ten tokens with the first one's prompt. Its last four tokens are masked.
    nodes = [
        Node(-1, READ[:40]),
        Node(0, READ[40:]),
        Node(1, SAMPLED, LOGPROBS, 0),
        Node(2, READ),
        Node(3, SAMPLED, LOGPROBS, 1),
        Node(0, READ),
        Node(5, SAMPLED[:24], LOGPROBS[:24], 2),
        Node(6, SAMPLED[24:], LOGPROBS[24:], 2, masked="filtered_grammar"),
    ]
    traces = [Trace("talk.0/talk.0-1-1", 4, [2, 4], reward=1.0), Trace("talk.0/talk.0-1-2", 7, [6], reward=1.0)]
    stats = Stats(3, 3, 2, 90, 30, 26, {"filtered_grammar": 4}, {"edited_history": 1})
    yield (
        118,
        Trajectory(
            "talk.0", "talk", 0, 1, 1, Status.COMPLETED, "prefix_merging", "claude_code", 1.0, None, nodes, placed, traces, stats,
            metadata=b'{"repository": "other"}', run="day",
        ),
    )  # fmt: skip
    first = np.full(20, -0.75, np.float32)
    first[19] = np.nan
    scored = pack_logprobs(first), pack_logprobs(np.full(6, -0.5, np.float32))
    fields: dict[str, Any] = {
        "engine": "default",
        "server": "http://engine",
        "verified_at": NOON + 120_000,
        "limit": 0.1,
    }
    yield (
        120,
        Verification(
            "talk.0", traces[0].trace_id, tokens=19, median=0.25, p99=0.25, largest=0.25, over=19, logprobs=scored[0],
            policy_version=7, publication=0, unscored={"unsupported": 1}, **fields,
        ),
    )  # fmt: skip
    yield (
        120,
        Verification(
            "talk.0", traces[1].trace_id, tokens=6, median=0.0, p99=0.0, largest=0.0, over=0, logprobs=scored[1],
            policy_version=8, publication=1, **fields,
        ),
    )  # fmt: skip


def _call(turn: int, sent: list[Any], answer: Any, base: tuple[str, int, int] | None = None, **more: Any) -> Completion:
    """A call of `talk.0`; `base`: which call it shares how many messages and tokens with."""
    name, messages, tokens = base or (None, 0, 0)
    _, made = call(
        "talk.0",
        turn,
        106 + turn,
        prompt=TokenDelta(READ, tokens, name),
        messages=MessageDelta(msgspec.json.encode(sent), messages, name),
        sampled=SAMPLED,
        logprobs=LOGPROBS,
        answer=msgspec.json.encode(answer),
        **more,
    )
    return made


def _placed(one: Completion, **tree: Any) -> Call:
    facts = {"policy_spans": one.policy_spans, "publication": one.publication, "engine": one.engine}
    prompt = one.prompt.shared + 20
    return Call(
        one.call_id, one.kind, one.outcome, one.dialect, one.received_at, one.completed_at, prompt, 10,
        policy_version=one.policy_version, **tree | facts,
    )  # fmt: skip


def _fleet() -> Iterator[Told]:
    yield -10, PolicyVersion(7)
    yield 39, PolicyVersion(8)
    yield 95, PolicyVersion(6, "large", rollbacks=[Rollback(6, 8, engine="large")])


def _processes() -> Iterator[Told]:
    def slots(free: int) -> list[StageSlots]:
        return [StageSlots(Stage.INIT, "default", 4, 4, []), StageSlots(Stage.RUN, "default", 8, free, [])]

    yield -5, Heartbeat("worker-0", "worker", "left", 11, slots(8))
    yield 10, Heartbeat("worker-0", "worker", "left", 11, slots(7))
    yield 15, Heartbeat("worker-1", "worker", "right", 12, slots(8))
    yield 90, Heartbeat("worker-1", "worker", "right", 12, slots(6), leaving=True)
    yield 91, Heartbeat("worker-1", "worker", "right", 12, slots(8), leaving=True)
    yield 30, Heartbeat("worker-2", "worker", "left", 14, slots(8))
    yield 395, Heartbeat("worker-2", "worker", "left", 14, slots(5))
    for at in (20, 400):
        obstacle = "no engine answers"
        yield at, Heartbeat("proxy-1", "proxy", "right", 13, address="http://right:8080", calls=2, obstacle=obstacle)


def _letters() -> Iterator[Told]:
    def letter(reason: str, field: str) -> Letter:
        return Letter(0, 0, b"t", b"{bad}", reason, field, "fanout", "polar.tasks", 0, 5)

    yield 60, letter("harness: there is no such harness", "harness")
    yield 61, letter("not JSON", "")
    yield 65, Replay(0, "polar.tasks[0]@9", NOON + 65_000)
    refused = RefusedRequest("mend.1", 1, "mend.1-1-run", NOON, "POST", "/foo", 404, "not_found", "no such path")
    yield 66, refused
    yield 67, msgspec.structs.replace(refused, requests=4)


def _broken() -> Iterator[Told]:
    """The first attempt at `torn.0` can't make its runtime, and the second runs."""
    yield 130, submitted("torn", 1, "shell")
    error = SessionError("init", Kind.INFRA, "image", "the image has no shell")
    failed = InitFinished("torn-init", "torn.0", 1, "torn.0-1-init", error=error)
    yield 132, failed
    yield 132.5, failed  # sent again
    yield from list(stages("torn.0", 133, attempt=2))[:3]
