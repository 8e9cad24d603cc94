"""Patches of what programs really do to real git repositories: they apply elsewhere, and taking them changes and trusts nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.runtimes.base import Exec, Labels, Runtime, RuntimeBackend, SandboxError
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from consumers.stages import patch
from consumers.stages.patch import NOT_MADE, PatchLostError, Snapshot, changes, snapshot
from tests.consumers.runtimes.conftest import backend
from topics.environment.redaction import PREFIX
from topics.types.runtime import RuntimeSpec

__all__ = ["backend"]  # a fixture
pytestmark = pytest.mark.contract

HERE = Path(__file__).parent
REPOSITORY = (HERE / "repository.sh").read_text()
TRAPS = (HERE / "traps.sh").read_text()
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"))
}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    made = await ProcessBackend(tmp_path / "runtimes").create(
        Labels("polar", "task.0", 1, f"i-{secrets.token_hex(8)}"), RuntimeSpec(env=IDENTITY)
    )
    yield made
    await made.remove()


async def does(runtime: Runtime, command: str, cwd: str | None = None) -> str:
    """What the command says; it ends well."""
    result = await runtime.exec(Exec(f"set -e\n{command}", cwd=cwd))
    assert result.exit_code == 0, result.tail
    return result.tail


def git(folder: Path, *arguments: str, given: bytes = b"") -> None:
    subprocess.run(("git", *arguments), cwd=folder, input=given, check=True)


async def begun(runtime: Runtime) -> Snapshot:
    found = await snapshot(runtime)
    assert found is not None
    return found


async def repository(runtime: ProcessRuntime) -> Snapshot:
    await does(runtime, REPOSITORY)
    return await begun(runtime)


def files(folder: Path) -> dict[str, object]:
    """All that git would see, by path: content, or a link's target, and whether it can be executed."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if ".git" in path.relative_to(folder).parts or (path.is_dir() and not path.is_symlink()):
            continue
        name = str(path.relative_to(folder))
        found[name] = (
            str(path.readlink()) if path.is_symlink() else (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        )
    return found


async def applied(runtime: ProcessRuntime, tmp_path: Path, command: str) -> bytes:
    """The patch of `command`, after it gave the same files where it was applied to a copy of what was there before."""
    before = await repository(runtime)
    workspace, copy = Path(runtime.workspace), tmp_path / "copy"
    shutil.copytree(workspace, copy, symlinks=True)
    await does(runtime, command)
    made = await changes(runtime, before)
    assert made is not None
    git(copy, "apply", "--whitespace=nowarn", "-", given=made)
    assert files(copy) == files(workspace)
    return made


async def test_a_patch_gives_the_same_files_elsewhere(runtime: ProcessRuntime, tmp_path: Path) -> None:
    made = await applied(
        runtime,
        tmp_path,
        r"""
        sed -i s/two/2/ a.txt
        git add a.txt && git commit -qm 'Half of it'
        rm away.txt
        git mv folder/kept.txt folder/moved.txt
        rm -r other && printf 'a file now\n' >other
        chmod +x run.sh
        head -c 5000 /dev/urandom >picture.bin
        printf 'c\0d' >new.bin
        : >empty
        ln -s a.txt link
        mkdir -p 'strange é "names"' && printf 'no end of line' >"$(printf 'strange é "names"/tab\there')"
        printf 'crlf\r\n' >crlf.txt
        printf '\377\376 latin\n' >latin.txt
        echo after >>untracked.txt
        """,
    )
    assert b"-two\n+2\n" in made
    assert b" before\n+after\n" in made, "what was untracked before is no change"
    assert b"rename to folder/moved.txt" in made


@pytest.mark.parametrize(
    "command",
    [
        "git checkout -qb elsewhere && git commit -qm empty --allow-empty && echo more >>a.txt && git commit -qam more",
        "echo more >>a.txt && git stash -q && git stash apply -q && git stash drop -q",
        "rm -rf .git && echo more >>a.txt",
        "rm -rf .git && git init -q . && echo more >>a.txt && git add -A && git commit -qm new",
        "git commit -q --amend -m other && git reflog expire --expire=now --all && git gc -q --prune=now && echo more >>a.txt",
        "mkdir made && git init -q made && echo more >>a.txt",
        "echo noise >it.log && echo more >>a.txt",
    ],
)
async def test_what_was_done_to_the_history_does_not_matter(runtime: ProcessRuntime, command: str) -> None:
    before = await repository(runtime)
    await does(runtime, command)
    made = await changes(runtime, before)
    assert made is not None
    assert made.splitlines()[-5:] == [b"@@ -1,3 +1,4 @@", b" one", b" two", b" three", b"+more"]
    assert made.count(b"diff --git") == 1


def paths(made: bytes | None) -> list[str]:
    """The files that a patch changes."""
    return [line.rpartition(" b/")[2] for line in (made or b"").decode().splitlines() if line.startswith("diff --git")]


TAG = "Signature: 8a477f597d28d172789f06886806bc55"
MADE_BY_TOOLS = f"""
mkdir -p src/__pycache__ node_modules/left-pad x.egg-info .pytest_cache/v 'my env/lib' crate/target/debug 'a[b]!#*/env'
touch src/__pycache__/a.cpython-311.pyc src/a.pyc a.o A.class node_modules/left-pad/index.js x.egg-info/PKG-INFO .pytest_cache/v/x .coverage
touch 'my env/pyvenv.cfg' 'my env/lib/code.py' crate/target/debug/program 'a[b]!#*/env/pyvenv.cfg'
printf '{TAG}\\n# made by a tool\\n' >crate/target/CACHEDIR.TAG
"""


async def test_a_patch_leaves_out_what_tools_make_and_nothing_that_an_agent_may_have_written(
    runtime: ProcessRuntime,
) -> None:
    before = await repository(runtime)
    written = """
    mkdir -p build dist target env venv out 'a[b]!#*'
    for each in build dist target env venv out 'a[b]!#*'; do echo mine >"$each/mine.py"; done
    """
    await does(runtime, written + MADE_BY_TOOLS)
    expected = [f"{folder}/mine.py" for folder in ("a[b]!#*", "build", "dist", "env", "out", "target", "venv")]
    assert sorted(paths(await changes(runtime, before))) == expected


async def test_tracked_files_stay_in_the_patch_wherever_they_are(runtime: ProcessRuntime) -> None:
    """A folder of the task's that looks like a tool's: what it tracks there counts, and what the run adds beside it unless its own name is
    a tool's."""
    await does(runtime, "git init -q .; echo x >x" + MADE_BY_TOOLS + "git add --all --force . && git commit -qm found")
    before = await begun(runtime)
    changed = ("my env/lib/code.py", "node_modules/left-pad/index.js", "src/__pycache__/a.cpython-311.pyc")
    await does(
        runtime,
        "\n".join(f"echo more >>'{path}'" for path in changed) + "\nrm a.o; echo mine >'my env/new.py'; echo o >b.o",
    )
    assert sorted(paths(await changes(runtime, before))) == sorted([*changed, "a.o", "my env/new.py"])


@pytest.mark.parametrize(
    ("mark", "content"),
    [
        ("CACHEDIR.TAG", ""),
        ("CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc56"),
        ("CACHEDIR.TAG", f"\\n{TAG}"),
        ("CACHEDIR.TAG/x", TAG),
    ],
)
async def test_what_is_no_mark_by_the_standard_hides_nothing(runtime: ProcessRuntime, mark: str, content: str) -> None:
    before = await repository(runtime)
    await does(runtime, f"mkdir -p new/{Path(mark).parent}; echo mine >new/mine.py; printf '{content}' >new/{mark}")
    assert "new/mine.py" in paths(await changes(runtime, before))


async def test_a_mark_that_is_no_file_is_not_read(runtime: ProcessRuntime) -> None:
    before = await repository(runtime)
    await does(runtime, "mkdir piped linked; echo mine | tee piped/mine.py >linked/mine.py; mkfifo piped/CACHEDIR.TAG")
    await does(runtime, f"printf '{TAG}' >tag; ln -s ../tag linked/CACHEDIR.TAG")
    assert {"piped/mine.py", "linked/mine.py"} <= set(paths(await changes(runtime, before)))


async def test_a_mark_in_a_folder_that_held_files_before_the_run_hides_nothing(runtime: ProcessRuntime) -> None:
    """In the work tree's own folder, above a tracked file, and beside a file that was untracked."""
    await does(
        runtime, REPOSITORY + "\nmkdir -p loose 'o d \"d\"/deep/er'; echo x >loose/x; echo x >'o d \"d\"/deep/er/x'"
    )
    before = await begun(runtime)
    folders = (".", "folder", "loose", 'o d "d"', 'o d "d"/deep')
    await does(
        runtime,
        "\n".join(f"touch '{each}/pyvenv.cfg'; printf '{TAG}' >'{each}/CACHEDIR.TAG'" for each in folders)
        + '\nfor each in . folder loose \'o d "d"/deep\'; do mkdir "$each/sub"; echo mine >"$each/sub/mine.py"; done',
    )
    made = await changes(runtime, before) or b""
    assert made.count(b"+mine\n") == 4


async def test_what_was_left_out_before_the_run_stays_out(runtime: ProcessRuntime) -> None:
    """An environment that the task's preparation made."""
    await does(runtime, REPOSITORY + MADE_BY_TOOLS)
    before = await begun(runtime)
    await does(runtime, "echo more >>a.txt; echo x >'my env/lib/new.py'; echo x >crate/target/debug/new")
    assert paths(await changes(runtime, before)) == ["a.txt"]


async def test_a_task_may_ask_for_what_is_left_out(runtime: ProcessRuntime) -> None:
    await does(runtime, "git init -q .; echo '!*.o' >.gitignore; echo '!.coverage' >>.git/info/exclude; echo x >x")
    before = await begun(runtime)
    await does(runtime, "echo o >a.o; echo c >.coverage; echo k >A.class")
    assert paths(await changes(runtime, before)) == [".coverage", "a.o"]


OLD_FILES = """
git init -q .
mkdir folder
printf 'one\\n' >a.txt
printf 'kept\\n' >folder/kept.txt
touch -d 2001-01-01 a.txt folder/kept.txt  # older than the index, so git does not read the contents again
git add -A
git commit -qm 'As found'
"""


async def test_a_patch_is_made_where_the_store_lies_on_another_mount(backend: RuntimeBackend) -> None:
    """In a cell, hard links from the workspace to the home fail."""
    labels = Labels("polar", "task.0", 1, f"i-{secrets.token_hex(8)}")
    runtime = await backend.create(labels, RuntimeSpec(env=IDENTITY))
    await does(runtime, OLD_FILES)
    before = await begun(runtime)
    await does(runtime, "rm -rf .git; echo two >>a.txt")
    made = await changes(runtime, before)
    assert made is not None
    assert made.splitlines()[-3:] == [b"@@ -1 +1,2 @@", b" one", b"+two"]


async def test_a_snapshot_that_fails_leaves_nothing_in_the_home(
    runtime: ProcessRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    await does(runtime, OLD_FILES + "rm -rf .git/objects/??")
    with pytest.raises(PatchLostError, match="invalid object"):
        await snapshot(runtime)
    assert "invalid object" in capsys.readouterr().out
    assert not Path(runtime.home, ".polar", "patch").exists()


async def test_without_a_change_a_repository_or_git_there_is_no_patch(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await snapshot(runtime) is None
    before = await repository(runtime)
    await does(runtime, "touch a.txt; git add -A; git commit -qm 'What was untracked'")
    assert await changes(runtime, before) is None
    programs = Path(runtime.home, "bin")
    programs.mkdir()
    (programs / "bash").symlink_to(shutil.which("bash") or "")
    monkeypatch.setenv("PATH", str(programs))
    assert await snapshot(runtime) is None
    assert "no patch" not in capsys.readouterr().out


async def test_taking_a_patch_changes_nothing_in_the_repository(runtime: ProcessRuntime) -> None:
    await does(runtime, REPOSITORY + "\necho half >half.txt; git add half.txt; echo more >>a.txt")

    def all_of_it() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path(runtime.workspace).rglob("*") if path.is_file()}

    found = all_of_it()
    before = await begun(runtime)
    assert all_of_it() == found
    await does(runtime, "echo less >a.txt")
    found = all_of_it()
    assert b"+less" in (await changes(runtime, before) or b"")
    assert all_of_it() == found


async def test_the_repository_is_looked_for_where_the_agent_starts_and_never_outside(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")  # as where the data folder lies in somebody's checkout
    backend = ProcessBackend(tmp_path / "runtimes")

    async def top(name: str, setup: str, workdir: str | None = None) -> str | None:
        spec = RuntimeSpec(workdir=workdir, env=IDENTITY)
        made = await backend.create(Labels("polar", "task.0", 1, name), spec)
        await does(made, setup, cwd=str(made.workspace))
        found = await snapshot(made)
        return os.path.relpath(found.top, made.workspace) if found else None

    assert await top("i-0", "true") is None
    assert await top("i-1", "git init -q ..") is None
    assert await top("i-2", "git init -q .", workdir="deep/down") == "."
    assert await top("i-3", "git init -q deep", workdir="deep/down") == "deep"
    assert await top("i-4", "git init -q below; mkdir beside") == "below"
    assert await top("i-5", "git init -q one; git init -q two") is None
    assert await top("i-6", "git init -q --bare .") is None
    assert (
        await top(
            "i-7", "git init -q main; cd main; git commit -q --allow-empty -m x; git worktree add -q ../tree", "tree"
        )
        == "tree"
    )
    assert await top("i-8", "git init -q --object-format=sha256 .; echo x >x") == "."


async def test_no_program_of_the_agents_choosing_is_started_by_git(runtime: ProcessRuntime) -> None:
    """All that git lets a repository start: hooks, filters, drivers, monitors; in its repository, a nested one, ours, and at home."""
    await does(runtime, "git init -q nested && cd nested && echo x >x && git add x && git commit -qm x")
    before = await repository(runtime)
    mark = Path(runtime.home, "mark")
    await does(runtime, TRAPS)
    mark.unlink(missing_ok=True)
    made = await changes(runtime, before)
    assert not mark.exists(), mark.read_text()
    assert b"-two\n+2\n" in (made or b"")
    await does(runtime, "git status || true")
    assert mark.exists(), "the traps do work"


async def test_a_repository_of_ours_that_was_tampered_with_costs_the_patch_alone(
    runtime: ProcessRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("rm -rf ~/.polar", "rm -rf ~/.polar/patch/objects", "rm -rf ~/* ~/.polar; rm -rf .git *"):
        await does(runtime, "rm -rf .git * ~/.polar")
        before = await repository(runtime)
        await does(runtime, f"echo more >>a.txt; {command}")
        assert (await changes(runtime, before) or b"").startswith(NOT_MADE), (
            "a judge would think that nothing was changed"
        )
        assert "no patch of this run" in capsys.readouterr().out


async def test_what_lies_outside_the_work_tree_is_never_read(
    runtime: ProcessRuntime, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("not the agent's\n")
    await does(runtime, f"mkdir repo && cd repo\n{REPOSITORY}")
    before = await begun(runtime)
    await does(runtime, f"cd repo && rm -r a.txt other && ln -s {outside}/a.txt a.txt && ln -s {outside} other")
    linked = await changes(runtime, before)
    assert linked is not None
    assert b"not the agent's" not in linked
    await does(runtime, f"rm -r repo && ln -s {outside} repo")
    assert b"was replaced by a link" in (await changes(runtime, before) or b"")
    assert "was replaced by a link" in capfd.readouterr().out


async def test_a_git_that_hangs_is_ended(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = await repository(runtime)
    monkeypatch.setattr(patch, "STEP_S", 0.5)
    await does(runtime, "rm ~/.polar/patch/index && mkfifo ~/.polar/patch/index; echo more >>a.txt")
    assert b"took longer than 0.5 s" in (await changes(runtime, before) or b"")
    assert "took longer than 0.5 s" in capsys.readouterr().out


async def test_huge_files_are_left_out_and_a_huge_patch_is_cut_at_a_line(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await repository(runtime)
    await does(runtime, "truncate -s 3G huge.bin; truncate -s 17M log.txt; echo more >>a.txt")
    made = await changes(runtime, before)
    assert made is not None
    assert (b"huge.bin" in made, b"log.txt" in made, b"+more" in made) == (False, False, True)
    monkeypatch.setattr(patch, "LOG_LIMIT", 1000)
    await does(runtime, "seq 10000 >long.txt")
    made = await changes(runtime, before)
    assert made is not None
    assert made.endswith(b"[... the rest is left out: this patch can't be applied]\n")
    assert len(made) < 1100
    await does(runtime, "rm long.txt; head -c 5000 /dev/urandom >new.bin")
    made = await changes(runtime, before)
    assert made is not None
    assert b"Binary files /dev/null and b/new.bin differ" in made, "binary contents go first"
    assert b"+more" in made


async def test_the_name_of_a_huge_file_hides_no_other_file(runtime: ProcessRuntime) -> None:
    before = await repository(runtime)
    await does(runtime, r"echo more >>folder/kept.txt; mkdir $'x\nfolder'; truncate -s 17M $'x\nfolder/kept.txt'")
    assert b"+more" in (await changes(runtime, before) or b"")


async def test_a_failure_of_the_machine_is_no_note(runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that starts no program, in the place of a machine without memory."""
    before = await repository(runtime)

    async def fails(self: ProcessRuntime, what: Exec) -> None:
        raise SandboxError("supervisor_lost", "no memory")

    monkeypatch.setattr(ProcessRuntime, "exec", fails)
    with pytest.raises(PatchLostError, match="no memory"):
        await changes(runtime, before)


async def test_a_key_inside_a_binary_file_keeps_the_contents_out(runtime: ProcessRuntime) -> None:
    before = await repository(runtime)
    await does(
        runtime, rf"printf 'x\0{PREFIX}abc.def' >new.bin; printf 'c\0d' >other.bin; printf '{PREFIX}abc.def' >new.txt"
    )
    made = await changes(runtime, before)
    assert made is not None
    assert b"GIT binary patch" not in made
    assert b"Binary files /dev/null and b/new.bin differ" in made
    assert PREFIX.encode() in made, "text is the store's to redact"
