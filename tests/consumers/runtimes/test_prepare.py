"""What a task asks for before its agent starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.runtimes.base import Exec, SandboxError
from consumers.runtimes.prepare import TargetError, prepare
from consumers.runtimes.process import ProcessRuntime
from tests.uploading import actions_of
from topics.environment.blobs import BlobStore, FolderBlobs
from topics.types.errors import InputError, NotReadyError
from topics.types.uploads import Content, PrepareAction

pytestmark = pytest.mark.contract


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return FolderBlobs(tmp_path / "blobs")


async def test_actions_are_done_in_their_order(
    runtime: ProcessRuntime, blobs: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repo" / "src").mkdir(parents=True)
    (tmp_path / "repo" / "src" / "main.py").write_text("print(1)\n")
    (tmp_path / "one.txt").write_text("one")

    actions: list[dict[str, Any]] = [
        {"type": "upload_dir", "source": "repo", "target": "repo"},
        {"type": "exec", "command": "mv src lib; echo $WHO > who", "cwd": "repo", "env": {"WHO": "me"}},
        {"type": "upload_file", "source": "one.txt", "target": "repo/lib/one.txt"},
    ]
    monkeypatch.chdir(tmp_path)
    uploaded = actions_of(actions, blobs)
    for name in ("repo", "one.txt"):  # the worker never sees them
        (tmp_path / name).rename(tmp_path / f"no {name}")

    await prepare(runtime, uploaded, blobs)

    seen = await runtime.exec(Exec("find repo -type f | sort | xargs tail -n +1 -v"))
    assert seen.tail == "==> repo/lib/main.py <==\nprint(1)\n\n==> repo/lib/one.txt <==\none\n==> repo/who <==\nme\n"


async def test_a_command_that_fails_is_named_with_its_output_and_ends_the_preparation(
    runtime: ProcessRuntime, blobs: BlobStore
) -> None:
    actions = [
        PrepareAction(type="exec", command="true"),
        PrepareAction(type="exec", command="echo no such package; exit 4"),
        PrepareAction(type="exec", command="touch too-far"),
    ]
    with pytest.raises(SandboxError) as caught:
        await prepare(runtime, actions, blobs)
    assert caught.value.code == "prepare_failed"
    for part in ("runtime.prepare[1]", "exit code 4", "no such package"):
        assert part in str(caught.value)
    assert not Path(runtime.workspace, "too-far").exists()


@pytest.mark.parametrize("target", ["/etc/x: leads out of the sandbox", "file/x: can't take"])
async def test_a_target_that_cannot_be_names_the_action_and_the_field(
    runtime: ProcessRuntime, blobs: BlobStore, target: str
) -> None:
    await runtime.write_file("file", b"")
    path, _, reason = target.partition(": ")
    actions = actions_of([{"type": "upload_file", "source": __file__, "target": path}], blobs)
    with pytest.raises(InputError, match=rf"runtime.eval_prepare\[0\].target: {reason}") as raised:
        await prepare(runtime, actions, blobs, field="runtime.eval_prepare")
    # Where the run could write, it may be the cause.
    assert isinstance(raised.value, TargetError) == (path == "/etc/x")


async def test_an_upload_without_content_is_refused_with_the_way_out(runtime: ProcessRuntime, blobs: BlobStore) -> None:
    action = PrepareAction(type="upload_file", source=__file__, target="x")
    with pytest.raises(InputError, match=r"runtime\.prepare\[0\]\.source: its content wasn't uploaded.*`polar submit`"):
        await prepare(runtime, [action], blobs)
    assert await runtime.is_empty()


async def test_content_that_is_missing_or_no_archive_names_the_action(
    runtime: ProcessRuntime, blobs: BlobStore
) -> None:
    stored = blobs.put(b"no archive" * 100)
    content = Content(ref=stored.ref, size=stored.size)
    action = PrepareAction(type="upload_dir", source="repo", target=".", content=content)
    with pytest.raises(InputError, match=r"runtime\.prepare\[0\]\.content: has a bad header"):
        await prepare(runtime, [action], blobs)
    with pytest.raises(NotReadyError, match=rf"runtime\.prepare\[0\]: {stored.ref} can't be read .*POLAR_BLOBS"):
        await prepare(runtime, [action], FolderBlobs(Path("/nowhere")))


async def test_a_command_whose_folder_is_not_there_names_the_action_and_the_field(
    runtime: ProcessRuntime, blobs: BlobStore
) -> None:
    action = PrepareAction(type="exec", command="true", cwd="nowhere")
    with pytest.raises(InputError, match=r"runtime\.prepare\[0\]\.cwd: is no folder.*'nowhere'"):
        await prepare(runtime, [action], blobs)
