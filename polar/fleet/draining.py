"""Draining: the whole fleet, or some of its processes, comes to the end of what it has in hand, and takes nothing more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from polar.client import SessionTable
from polar.fleet.controls import SEND_S, Controls
from polar.fleet.errors import NotDrained
from polar.fleet.watching import Watching
from topics import control
from topics.control import Drain
from topics.log.producer import Unacknowledged
from topics.types.errors import InputError, NotReady
from topics.types.session import Phase, SessionState

IN_HAND = frozenset({Phase.INIT, Phase.RUNNING, Phase.EVALUATING, Phase.CLOSING, Phase.BUILDING})
DRAINED = frozenset({"worker", "proxy"})
"""Roles that heed a `Drain`: the others hold no session's work."""
QUIET_S = 2.0
"""For which nothing must be in hand: what was decided before the coordinators heard of it is on the table sooner."""
LOOK_S = 0.25
"""Between two looks at the whole table."""
Progress = Callable[[int], None]
"""Told how much is in hand, whenever that changes."""


async def whole(controls: Controls, *, deadline_s: float | None, progress: Progress) -> None:
    """No session gets a slot any more; returns when none is in anybody's hand, opened ones included. `Controls.resume` ends it.

    Raises NotDrained at the deadline: the draining goes on. NotReady.
    """
    async with (
        Watching(controls.settings, controls.producer, controls.by) as watching,
        SessionTable(controls.settings) as table,
    ):
        state = await controls.drain()
        quiet_since: float | None = None
        looked_at = 0.0
        told: int | None = None

        def in_hand() -> int:
            rows = sum(_is_in_hand(row) for rows in table.sessions.values() for row in rows.values())
            claims = sum(len(slots.claims) for beat in watching.echoes.live.values() for slots in beat.stages)
            return max(rows, claims)

        def is_over() -> bool:
            nonlocal quiet_since, looked_at, told
            if time.monotonic() - looked_at < LOOK_S:
                return False
            looked_at = time.monotonic()
            if (count := in_hand()) != told:
                told = count
                progress(count)
            if count or watching.echoes.behind("coordinator", state.generation):
                quiet_since = None
                return False
            quiet_since = quiet_since or time.monotonic()
            return time.monotonic() - quiet_since >= QUIET_S

        try:
            async with asyncio.timeout(deadline_s):
                await watching.caught_up(SEND_S)
                await watching.until(is_over)
        except TimeoutError:
            raise NotDrained(
                f"{told} sessions are still in hand after {deadline_s:g} s; none begins; `polar fleet resume` ends the draining"
            ) from None


async def processes(
    controls: Controls, names: Collection[str], *, deadline_s: float | None, progress: Progress
) -> None:
    """These workers or proxies take nothing more, finish what they have and end; returns when their heartbeats have ended.

    Raises InputError for one that doesn't live or is of another role, NotDrained at the deadline: they go on draining. NotReady.
    """
    async with Watching(controls.settings, controls.producer, controls.by) as watching:
        live = watching.echoes.live
        if unknown := [name for name in names if name not in live]:
            raise InputError(
                "WORKER", unknown[0], f"no such process lives; there are: {', '.join(sorted(live)) or 'none'}"
            )
        for name in names:
            if (role := live[name].role) not in DRAINED:
                raise InputError(
                    "WORKER",
                    name,
                    f"is a {role}, which has nothing to drain: end it by SIGTERM, another takes its work over",
                )
        for name in names:
            try:
                await controls.producer.send(control.TOPIC, Drain(name), key=name, deadline_s=SEND_S)
            except Unacknowledged as error:
                raise NotReady(f"Kafka didn't take the word for {name}: {error}") from None
        told: int | None = None

        def have_ended() -> bool:
            nonlocal told
            left = len(watching.echoes.live.keys() & set(names))
            if left != told:
                told = left
                progress(left)
            return not left

        try:
            async with asyncio.timeout(deadline_s):
                await watching.until(have_ended)
        except TimeoutError:
            left = ", ".join(sorted(watching.echoes.live.keys() & set(names)))
            raise NotDrained(f"{left} still live after {deadline_s:g} s; they go on draining") from None


def _is_in_hand(row: SessionState) -> bool:
    """Or about to be: a ticket that is out will be claimed, or is no longer counted after 10 s."""
    return row.phase in IN_HAND or row.ticket_released_at is not None
