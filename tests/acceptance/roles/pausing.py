"""Pause–update–resume cycles over a system under load, and the books that prove them: what harnesses saw, what lies on the log, and what
the engine sampled, in its order.

The harness is `sh` and `curl`, which try nothing again: one error, one answer that isn't whole, and its session has failed.
"""

from __future__ import annotations

import asyncio
import json
import random
from bisect import bisect_right
from collections import Counter

import polar
from polar.fleet import InFlight, PauseReport
from polar.table import SessionTable
from tests.acceptance.fleet import Fleet
from topics.types.completion import CallOutcome, Completion
from topics.types.session import Phase, Status
from topics.types.tokens import unpack_ids

ENGINE = ("--fault", '{"kind": "slow", "delay_s": 0.25, "times": 1000000}')
"""Each call takes so long: some are under way whenever a pause comes."""
TALKER = """\
set -e
turn=0
while [ ! -e stop ]; do
  turn=$((turn + 1))
  stream=false
  if [ $((turn % 2)) = 0 ]; then stream=true; fi
  body='{"model": "m", "stream": '$stream', "messages": [{"role": "user", "content": "'$POLAR_SESSION_ID' turn '$turn'"}]}'
  curl -sS --fail -o answer -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' \\
    -d "$body" "$OPENAI_BASE_URL/chat/completions"
  if [ $stream = true ]; then grep -q '^data: \\[DONE\\]' answer; fi
  id=$(grep -oEm1 'chatcmpl-[^"]+' answer)
  printf '{"session_id": "%s", "call_id": "%s"}\\n' "$POLAR_SESSION_ID" "$id"
done
"""
UPDATE_S = (0.0, 0.2)
"""What an update takes."""
BETWEEN_S = (0.1, 0.6)
"""Pauses come so soon after one another."""
STARTED_S = 90.0
FINISHED_S = 120.0


class Pausing:
    """Sessions that talk on until told to stop, and the versions published under them."""

    def __init__(self, system: Fleet, controls: polar.Fleet, chance: random.Random) -> None:
        self.system = system
        self.controls = controls
        self._chance = chance
        self._samples = 0
        self._updates: list[int] = []
        """How many answers the engine had completed when each version from 1 on was published."""

    async def begin(self, samples: int) -> None:
        """Version 0 is served, and so many sessions of the task `talk` run."""
        await self.controls.publish(0)
        self._samples = samples
        agent = {"harness": "shell", "custom_shell": {"command": TALKER}, "env": self.system.mark}
        task = {"task_id": "talk", "instruction": "talk on", "num_samples": samples, "agent": agent}
        code, _, said = await self.system.polar("submit", "-", stdin=json.dumps(task))
        assert code == 0, said
        async with SessionTable(self.system.settings, {"talk"}) as table:

            def all_run() -> bool:
                phases = [row.phase for row in table.sessions.get("talk", {}).values()]
                return phases == [Phase.RUNNING] * samples

            assert await table.until(all_run, STARTED_S), table.sessions

    async def cycle(self, in_flight: InFlight, *, deadline_s: float = 30.0) -> PauseReport:
        """One update, some time after the last one."""
        await asyncio.sleep(self._chance.uniform(*BETWEEN_S))
        async with self.controls.paused(in_flight=in_flight, deadline_s=deadline_s) as pause:
            completed = self._completed()
            await asyncio.sleep(self._chance.uniform(*UPDATE_S))
            # Those that ended as they were aborted may still be written down; nobody was answered by them.
            assert self._completed() == completed or in_flight == "abort", "the fleet was not still"
            self._updates.append(completed)
            await pause.publish(len(self._updates))
        return pause.report

    def tell_to_end(self) -> None:
        """Each session's harness ends after its call."""
        for sandbox in self.system.runtimes():
            (sandbox / "workspace" / "stop").touch()

    async def end(self) -> None:
        """All sessions come to a good end."""
        self.tell_to_end()
        async with SessionTable(self.system.settings, {"talk"}) as table:
            assert await table.until(lambda: table.is_finished("talk"), FINISHED_S), table.sessions
            ended = table.ended("talk")
        assert {(row.status, row.attempt, row.spent) for row in ended} == {(Status.COMPLETED, 1, 0)}, ended

    async def check(self, *, some_asked_twice: bool = False) -> int:
        """Every answer that a harness has is on the log, once, and says the version that sampled it; how many there are.

        `some_asked_twice`: a proxy was killed, so that the log may hold answers that nobody had.
        """
        calls = [call for call in await self.system.calls() if isinstance(call, Completion)]
        logged = Counter(call.call_id for call in calls if call.outcome is CallOutcome.ANSWERED)
        seen = [answer["call_id"] for answer in self.system.answered()]
        assert len(seen) == len(set(seen)) >= self._samples * len(self._updates) / 4
        if some_asked_twice:
            assert {call_id: logged[call_id] for call_id in seen} == dict.fromkeys(seen, 1)
        else:
            assert logged == dict.fromkeys(seen, 1)
            assert len(calls) == len(seen), [call.error for call in calls if call.error]
        versions = self._versions()
        for call in calls:
            if call.call_id in logged:
                expected = versions[call.session_id, tuple(unpack_ids(call.sampled).tolist())]
                assert call.policy_version in expected, (call.call_id, call.policy_version, expected)
        return len(seen)

    def _completed(self) -> int:
        return self.system.record.read_bytes().count(b'"outcome":"completed"')

    def _versions(self) -> dict[tuple[str | None, tuple[int, ...]], set[int]]:
        """What sampled an answer, by session and tokens, as the engine's own record has it."""
        found: dict[tuple[str | None, tuple[int, ...]], set[int]] = {}
        completed = (call for call in self.system.sampled() if call.outcome == "completed")
        for number, call in enumerate(completed):
            version = bisect_right(self._updates, number)
            found.setdefault((call.session_id, tuple(call.token_ids)), set()).add(version)
        return found
