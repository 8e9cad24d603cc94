"""Finished sessions in a lake, made with the proxy's writer of deltas and the real builder: what they say is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from analytics.lake import rows
from analytics.lake.manifest import Lake
from analytics.lake.rows import Row
from analytics.writing.flush import flush
from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from tests.consumers.token_tree.transcripts import build_record, completion
from topics.calls.delta import MessageIndex, PromptIndex, Spelled
from topics.completions import Build
from topics.environment.settings import Settings
from topics.types.completion import JUDGE, Completion
from topics.types.tokens import pack_ids, unpack_ids
from topics.types.trajectory import Trajectory

Message = dict[str, Any]
NOON = 1_790_000_000_000
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


class Talk:
    """One session, call by call. A token is a number of the caller's choice: nothing here tokenizes."""

    def __init__(self, session_id: str = "t.0", **build: Any) -> None:
        """`build`: fields of its Build, such as `reward`, `metadata` and `artifacts`."""
        task_id, _, sample = session_id.rpartition(".")
        fields = {"session_id": session_id, "task_id": task_id, "sample_index": int(sample), **build}
        self.build: Build = build_record(**fields)
        self.calls: list[Completion] = []
        self._messages, self._prompts = MessageIndex(), PromptIndex()
        self._tools: dict[str | None, Sequence[Any]] = {None: []}

    def call(
        self,
        messages: list[Message],
        prompt: list[int],
        sampled: list[int],
        answer: Message | None = None,
        tools: Sequence[Any] = (),
        **fields: Any,
    ) -> Message:
        """A call with its whole prompt, and its answer; gives the answer back."""
        session_id = self.build.session_id
        call_id = f"{session_id}-{len(self.calls)}"
        said = {"role": "assistant", "content": f"answer {len(self.calls)}"} if answer is None else answer
        delta = self._messages.encode(Spelled(messages))
        is_known = list(self._tools.get(delta.base, ["unknown"])) == list(tools)
        record = completion(
            call_id,
            self._prompts.encode(unpack_ids(pack_ids(prompt))),
            sampled,
            session_id=session_id,
            messages=delta,
            answer=msgspec.json.encode(said),
            tools=None if is_known else msgspec.json.encode(tools),
            received_at=NOON + 1000 * len(self.calls),
            completed_at=NOON + 1000 * len(self.calls) + 500,
            **fields,
        )
        self._messages.add(call_id, Spelled(messages), said)
        self._prompts.add(call_id, unpack_ids(pack_ids(prompt)), unpack_ids(pack_ids(sampled)))
        self._tools[call_id] = tools
        self.calls.append(record)
        return said

    def trajectory(self) -> Trajectory:
        return PrefixMerging().build(BuiltFrom(self.build, [call for call in self.calls if call.kind != JUDGE]))


def turns(session_id: str, count: int = 2, first: int = 100, **build: Any) -> Talk:
    """A session with one conversation, whose tokens are the numbers from `first` on; 3 are read and 2 sampled in a turn."""
    talk = Talk(session_id, **build)
    messages: list[Message] = [{"role": "user", "content": f"task {first}"}]
    prompt = [first, first + 1, first + 2]
    for turn in range(count):
        sampled = [prompt[-1] + 1, prompt[-1] + 2]
        said = talk.call(messages, prompt, sampled, tools=[SEARCH])
        messages = [*messages, said, {"role": "user", "content": f"go on {turn}"}]
        prompt = [*prompt, *sampled, *range(sampled[-1] + 1, sampled[-1] + 4)]
    return talk


def write(
    settings: Settings,
    talks: Sequence[Talk],
    output: str | None = None,
    *,
    offset: int = 0,
    logged_ms: int = NOON,
    with_trajectories: bool = True,
) -> None:
    """Add the sessions to the lake. Their records have the offsets from `offset` on, and a millisecond each from `logged_ms` on."""
    lake = Lake(settings.lake_folder)
    lake.prepare()
    found: dict[str, list[Row]] = {}
    for number, record in enumerate(_records(talks, with_trajectories=with_trajectories)):
        at = {"log_partition": 0, "log_offset": offset + number, "logged_at": logged_ms + offset + number}
        for table, row in rows.of_record(record, at, output):
            found.setdefault(table, []).append(row)
    with lake.writing() as writing:
        assert flush(lake, writing, found, {}, {}) == 0


def _records(talks: Sequence[Talk], *, with_trajectories: bool) -> Iterator[object]:
    for talk in talks:
        yield from talk.calls
        if with_trajectories:
            yield talk.trajectory()
