"""The harness `shell`, run as a worker runs it."""

from __future__ import annotations

import pytest

from consumers.harnesses.base import harness_of
from consumers.runtimes.base import Exec
from consumers.runtimes.process import ProcessRuntime
from tests.consumers.harnesses.conftest import access_to, set_up
from topics.types.agent import AgentSpec, ExecInput
from topics.types.errors import InputError

pytestmark = pytest.mark.contract

ACCESS = access_to("http://proxy")


async def test_a_command_gets_the_instruction_on_stdin_and_its_own_folder_and_environment(
    runtime: ProcessRuntime,
) -> None:
    shell = ExecInput(command="cat; pwd; echo $MINE", cwd="sub", env={"MINE": "yes"})
    await runtime.write_file("sub/there", b"")
    launch = await set_up(runtime, ACCESS, "Wörk.\n", AgentSpec(harness="shell", custom_shell=shell))
    result = await runtime.exec(Exec(launch.command, cwd=launch.cwd, env=launch.env, stdin=str(launch.stdin)))
    assert result.log.read_text() == f"Wörk.\n{runtime.workspace}/sub\nyes\n"


def test_shell_has_no_settings() -> None:
    shell = ExecInput(command="true")
    with pytest.raises(InputError, match="there are: none"):
        harness_of(AgentSpec(harness="shell", custom_shell=shell, settings={"x": 1}))


def test_the_key_does_not_show_where_access_is_printed() -> None:
    assert ACCESS.key not in repr(ACCESS)
