"""Real CLIs at work in containers that reach the proxy alone: what of it becomes trajectories."""

from __future__ import annotations

import pytest

from consumers.runtimes.base import Exec, Labels
from consumers.runtimes.container.runtime import ContainerBackend
from tests.consumers.harnesses.conftest import Models, model  # noqa: F401 - a fixture
from tests.consumers.harnesses.specimens import ALWAYS
from tests.consumers.runtimes.container.conftest import in_image
from tests.harnesses.outcome import assert_captured, assert_one_trace, outcome_of
from tests.harnesses.speakers import SPEAKERS, Speaker
from tests.harnesses.test_runs import script, work
from topics.types.runtime import Network, RuntimeSpec

pytestmark = pytest.mark.docker

SPEC = in_image(RuntimeSpec(network=Network.PROXY_ONLY))


@pytest.mark.parametrize("speaker", [next(s for s in SPEAKERS if s.specimen is one) for one in ALWAYS], ids=str)
async def test_a_cli_of_the_host_works_in_a_container_and_its_run_is_one_trace(
    backend: ContainerBackend,
    claim: str,
    model: Models,  # noqa: F811 - the fixture
    speaker: Speaker,
) -> None:
    made = await backend.create(Labels("polar", "task.0", 1, claim), SPEC)
    await made.write_file("a.txt", b"this is wrong\n")
    run = await backend.attach(made.handle, f"{claim}-run", SPEC)
    async with model(script(speaker, run, *speaker.specimen.turns)) as served:
        await work(speaker, run, served)
        outcome = await outcome_of(served)
    assert_captured(outcome, speaker.dialect)
    assert len(outcome.calls) == len(speaker.specimen.turns) + 1
    assert_one_trace(outcome, outcome.calls)

    evaluation = await backend.attach(made.handle, f"{claim}-evaluate", SPEC, fresh=True)
    assert (await evaluation.exec(Exec("cat c.txt"))).output() == b"this is right\n"
