"""What a task asks for before its agent starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.runtimes.base import Exec, SandboxError
from consumers.runtimes.prepare import prepare
from consumers.runtimes.process import ProcessRuntime
from topics.types.errors import InputError
from topics.types.task import PrepareAction

pytestmark = pytest.mark.contract


async def test_actions_are_done_in_their_order(runtime: ProcessRuntime, tmp_path: Path) -> None:
    (tmp_path / "repo" / "src").mkdir(parents=True)
    (tmp_path / "repo" / "src" / "main.py").write_text("print(1)\n")
    (tmp_path / "one.txt").write_text("one")

    await prepare(
        runtime,
        [
            PrepareAction(type="upload_dir", source=str(tmp_path / "repo"), target="repo"),
            PrepareAction(type="exec", command="mv src lib; echo $WHO > who", cwd="repo", env={"WHO": "me"}),
            PrepareAction(type="upload_file", source=str(tmp_path / "one.txt"), target="repo/lib/one.txt"),
        ],
    )

    seen = await runtime.exec(Exec("find repo -type f | sort | xargs tail -n +1 -v"))
    assert seen.tail == "==> repo/lib/main.py <==\nprint(1)\n\n==> repo/lib/one.txt <==\none\n==> repo/who <==\nme\n"


async def test_a_command_that_fails_is_named_with_its_output_and_ends_the_preparation(
    runtime: ProcessRuntime,
) -> None:
    actions = [
        PrepareAction(type="exec", command="true"),
        PrepareAction(type="exec", command="echo no such package; exit 4"),
        PrepareAction(type="exec", command="touch too-far"),
    ]
    with pytest.raises(SandboxError) as caught:
        await prepare(runtime, actions)
    assert caught.value.code == "prepare_failed"
    for part in ("runtime.prepare[1]", "exit code 4", "no such package"):
        assert part in str(caught.value)
    assert not Path(runtime.workspace, "too-far").exists()


@pytest.mark.parametrize(
    ("kind", "source", "target", "said"),
    [
        ("upload_file", "/nowhere", "x", r"runtime.eval_prepare\[0\].source: is no file"),
        ("upload_dir", __file__, "x", r"runtime.eval_prepare\[0\].source: is no folder"),
        ("upload_file", __file__, "/etc/x", r"runtime.eval_prepare\[0\].target: leads out of the sandbox"),
        ("upload_file", __file__, "file/x", r"runtime.eval_prepare\[0\].target: can't take"),
    ],
)
async def test_an_upload_that_cannot_be_names_the_action_and_the_field(
    runtime: ProcessRuntime, kind: str, source: str, target: str, said: str
) -> None:
    await runtime.write_file("file", b"")
    action = PrepareAction.model_validate({"type": kind, "source": source, "target": target})
    with pytest.raises(InputError, match=said):
        await prepare(runtime, [action], field="runtime.eval_prepare")


async def test_a_command_whose_folder_is_not_there_names_the_action_and_the_field(runtime: ProcessRuntime) -> None:
    action = PrepareAction(type="exec", command="true", cwd="nowhere")
    with pytest.raises(InputError, match=r"runtime\.prepare\[0\]\.cwd: is no folder.*'nowhere'"):
        await prepare(runtime, [action])
