"""An evaluator's reads and writes meet the workspace as the evaluation's programs see it, whatever the run left and they removed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from consumers.runtimes.base import Exec, Labels
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.cell.runtime import CellRuntime
from consumers.runtimes.prepare import prepare
from tests.consumers.runtimes.cell.test_runtime import output
from tests.uploading import actions_of, upload_of
from topics.environment.blobs import BlobStore, FolderBlobs
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

pytestmark = pytest.mark.contract

After = Callable[[str, str], Awaitable[CellRuntime]]


@pytest.fixture
async def after(tmp_path: Path) -> AsyncIterator[After]:
    """The evaluation's runtime after two commands: of `prepare`, and of the run."""
    backend, claim = CellBackend(tmp_path / "runtimes"), f"i-{os.urandom(8).hex()}"

    async def evaluation(prepared: str, ran: str) -> CellRuntime:
        made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
        await output(made, prepared)
        await output(await backend.attach(made.handle, f"{claim}-run", RuntimeSpec()), ran)
        return await backend.attach(made.handle, f"{claim}-evaluation", RuntimeSpec(), fresh=True)

    yield evaluation
    for left in await backend.labelled():
        await backend.remove(left.handle)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of the task."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_new.py").write_text("new")
    return tmp_path / "tests/test_new.py"


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return FolderBlobs(tmp_path / "blobs")


async def eval_prepare(runtime: CellRuntime, blobs: BlobStore, *actions: dict[str, str]) -> None:
    await prepare(runtime, actions_of(actions, blobs), blobs, field="runtime.eval_prepare")


async def test_a_folder_is_uploaded_where_an_action_has_removed_the_old_one(
    after: After, source: Path, blobs: BlobStore
) -> None:
    runtime = await after("mkdir tests; echo old > tests/test_old.py", "echo evil > tests/conftest.py")
    upload = {"type": "upload_dir", "source": str(source.parent), "target": "tests"}
    await eval_prepare(runtime, blobs, {"type": "exec", "command": "rm -rf tests"}, upload)
    assert await output(runtime, "cd tests; ls; cat *") == "test_new.py\nnew"


async def test_a_folder_is_uploaded_into_the_one_that_is_there(after: After, source: Path, blobs: BlobStore) -> None:
    runtime = await after("mkdir tests; echo old > tests/test_old.py", "echo theirs > tests/test_new.py")
    await runtime.upload(upload_of(source.parent, blobs), "tests")
    await runtime.upload(upload_of(source.parent, blobs), ".")
    assert await output(runtime, "cat test_new.py tests/*") == "newnewold\n"


@pytest.mark.parametrize("ran", ["true", "echo theirs > tests/test_new.py", "ln -s /etc/passwd tests/test_new.py"])
async def test_a_file_is_uploaded_into_a_folder_of_the_workspace(
    after: After, source: Path, blobs: BlobStore, ran: str
) -> None:
    runtime = await after("mkdir tests; echo old > tests/test_old.py", ran)
    await runtime.upload(upload_of(source, blobs), "tests")
    assert await output(runtime, "ls tests; cat tests/test_new.py; stat -c %A%U tests/test_new.py; ls /tmp") == (
        "test_new.py\ntest_old.py\nnew-rw-r--r--agent\n"
    )


async def test_a_file_is_uploaded_where_programs_see_it_whatever_links_the_run_left(
    after: After, source: Path, blobs: BlobStore
) -> None:
    runtime = await after("mkdir tests; echo x > tests/a", "mkdir lib; mv tests/a lib; rmdir tests; ln -s lib tests")
    await eval_prepare(runtime, blobs, {"type": "upload_file", "source": str(source), "target": "tests/t.py"})
    assert await output(runtime, "cat tests/t.py; ls lib") == "newa\nt.py\n"


async def test_no_file_is_read_that_the_evaluation_removed(after: After) -> None:
    runtime = await after("true", "mkdir out; echo forged > out/result")
    await output(runtime, "rm -rf out; mkdir out")
    with pytest.raises(FileNotFoundError, match="/workspace/out/result"):
        await runtime.read_file("out/result", 100)


async def test_what_the_evaluation_wrote_is_read_whatever_links_the_run_left(after: After) -> None:
    runtime = await after("true", "mkdir real; echo forged > real/result; ln -s real out")
    await output(runtime, "rm out; mkdir out; echo true > out/result")
    assert await runtime.read_file("out/result", 100) == b"true\n"


async def test_a_file_is_read_byte_by_byte_up_to_the_limit(after: After) -> None:
    data = os.urandom(100_000)
    runtime = await after("true", "true")
    await runtime.write_file("data", data)
    assert await runtime.read_file("data", 200_000) == data
    assert await runtime.read_file("data", 1000) == data[:1000]


@pytest.mark.parametrize("ran", ["mkdir x", "mkfifo x", "echo x > x; chmod 0 x"])
async def test_what_is_no_readable_file_is_an_error_of_the_path(after: After, ran: str) -> None:
    runtime = await after("true", ran)
    with pytest.raises(InputError, match=r"^path: (is no regular file|can't be read)"):
        await runtime.read_file("x", 10)


async def test_a_write_that_a_folder_or_file_is_in_the_way_of_is_an_error_of_the_path(
    after: After, source: Path, blobs: BlobStore
) -> None:
    runtime = await after(
        "mkdir -p tests; echo true > build.sh", "echo 'rm -rf tests; touch tests' > build.sh; mkdir x"
    )
    upload = {"type": "upload_file", "source": str(source), "target": "tests/unit/t.py"}
    with pytest.raises(InputError, match=r"runtime.eval_prepare\[1\].target"):
        await eval_prepare(runtime, blobs, {"type": "exec", "command": "bash build.sh"}, upload)
    with pytest.raises(InputError, match="path: can't be written"):
        await runtime.write_file("x", b"")
    assert await output(runtime, "ls x /tmp") == "/tmp:\n\nx:\n"


async def test_a_file_of_the_workspace_is_no_stdin(after: After) -> None:
    runtime = await after("true", "echo x > x")
    with pytest.raises(InputError, match="stdin: lies in a layer that only programs inside see"):
        await runtime.exec(Exec("cat", stdin="x"))
