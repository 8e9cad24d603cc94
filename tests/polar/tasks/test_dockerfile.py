"""Each instruction of a Dockerfile is translated, changes nothing, or is refused with its line and a reason."""

from __future__ import annotations

import gzip
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks.dockerfile import NEUTRAL, REFUSED, TRANSLATED, Translation, command_of, translated
from polar.tasks.dockerfile_instructions import DockerfileError
from polar.tasks.ignore_rules import docker_rules
from topics.types.errors import NotReadyError
from topics.types.uploads import PrepareAction

REFERENCE = [
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "RUN", "SHELL",
    "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
]  # fmt: skip
"""https://docs.docker.com/reference/dockerfile/"""
HOME = {"HOME": "/root"}


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A folder with files."""
    for name in ("a.txt", "b.txt", "sub/c.txt", "tools/run"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def of(context: Path, *lines: str, **how: Any) -> Translation:
    found = translated("\n".join(("FROM debian:12", *lines)), context, **how)
    for action in found.prepare:
        PrepareAction.model_validate(action)
    return found


def run(text: str, cwd: str | None = None, **env: str) -> dict[str, Any]:
    place = {} if cwd is None else {"cwd": cwd}
    return {"type": "exec", "command": f"exec /bin/sh -c {shlex.quote(text)}", "env": HOME | env, **place}


def mkdir(path: str) -> dict[str, Any]:
    return {"type": "exec", "command": f"mkdir -p -- {path}", "cwd": "/"}


def uploads(context: Path, found: Translation) -> list[tuple[str, str, str]]:
    return [
        (action["type"], Path(action["source"]).relative_to(context).as_posix(), action["target"])
        for action in found.prepare
        if action["type"] != "exec"
    ]


def test_every_instruction_of_the_reference_has_one_outcome() -> None:
    assert sorted([*NEUTRAL, *REFUSED, *TRANSLATED]) == sorted(REFERENCE)


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_concerns_programs_of_the_image_changes_nothing(context: Path, name: str) -> None:
    assert of(context, f"{name} x") == of(context)


@pytest.mark.parametrize(
    "lines", [["ONBUILD RUN true"], ["WHAT x"], ["COMMENT x"], ["RUN"], ["true"], ["RUN a", "", "b"]]
)
def test_nothing_else_is_ignored(context: Path, lines: list[str]) -> None:
    with pytest.raises(DockerfileError, match=rf"line {1 + len(lines)}: "):
        of(context, *lines)


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("FROM a:1", "a:1"),
        ("from a:1 as build", "a:1"),
        ("FROM --platform=linux/amd64 a:1", "a:1"),
        ("# a comment\nARG TAG=3\nARG NAME=a:${TAG}\nFROM ${NAME}-slim", "a:3-slim"),
        ("FROM docker.io/a@sha256:00 AS x", "docker.io/a@sha256:00"),
        ("# syntax=docker/dockerfile:1.7\nFROM a", "a"),
        ("\n\nFROM a\r\n", "a"),
    ],
)
def test_the_image(context: Path, text: str, image: str) -> None:
    assert translated(text, context) == Translation(image, [], {}, [], None, has_run=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: FROM: is missing"),
        ("RUN true", "line 1: RUN: comes before FROM"),
        ("FROM scratch", "line 1: FROM: scratch has no shell"),
        ("FROM a AS b\nFROM c", "line 2: FROM: begins another stage.*runtime.image in the template"),
        ("FROM ${TAG}", r"line 1: FROM: the Dockerfile doesn't set \$TAG"),
        ("FROM a b", "line 1: FROM: must be FROM NAME"),
        ("FROM --x=1 a", "line 1: FROM: the flag --x"),
        ("# escape=`\nFROM a", "line 1: # escape: another escape character"),
        ("# syntax=mine/frontend\nFROM a", "line 1: # syntax: mine/frontend may give"),
        ("FROM a\nRUN a \\\\\nRUN b", "line 2: RUN: ends with two backslashes"),
        ("FROM a\nRUN a\0", "line 2: RUN a: holds a zero byte"),
    ],
)
def test_what_no_image_can_be_made_of(context: Path, text: str, reason: str) -> None:
    with pytest.raises(DockerfileError, match=reason):
        translated(text, context)


@pytest.mark.parametrize(
    ("lines", "actions"),
    [
        (["RUN a | b"], [run("a | b")]),
        (["RUN a 'b c' \"$D\" # no comment"], [run("a 'b c' \"$D\" # no comment")]),
        (["RUN a && \\", "  # a comment", "", "    b"], [run("a &&     b")]),
        (["RUN a \\"], [run("a")]),
        (["run a"], [run("a")]),
        (['RUN ["a", "b c", "$D"]'], [{"type": "exec", "command": "exec a 'b c' '$D'", "env": HOME}]),
        (["RUN [ -e x ] || touch x"], [run("[ -e x ] || touch x")]),
        (
            ['SHELL ["/bin/bash", "-o", "pipefail", "-c"]', "RUN a | b"],
            [{"type": "exec", "command": "exec /bin/bash -o pipefail -c 'a | b'", "env": HOME}],
        ),
        (["WORKDIR /app", "RUN a"], [mkdir("/app"), run("a", "/app")]),
        (["RUN a", "WORKDIR /app"], [run("a", "/"), mkdir("/app")]),
        (["WORKDIR /a/./b/", "WORKDIR ../c"], [mkdir("/a/b"), mkdir("/a/c")]),
        (['ENV D=/srv', 'WORKDIR "$D/x y"'], [{**mkdir("'/srv/x y'")}]),
        (["ARG V=1", "ARG W", "RUN a"], [run("a", V="1")]),
        (["ARG V=1", "ENV V=2", "ARG V=3", "RUN a"], [run("a", V="2")]),
        (["ENV HOME=/home/x", "RUN a"], [run("a", HOME="/home/x")]),
        (["USER root", "USER 0:0"], []),
    ],
)  # fmt: skip
def test_run_and_workdir(context: Path, lines: list[str], actions: list[dict[str, Any]]) -> None:
    assert of(context, *lines).prepare == actions


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RUN --mount=type=cache,target=/x pip install y", "the flag --mount isn't translated"),
        ("RUN --network=none a", "the flag --network isn't translated"),
        ("RUN --security=insecure a", "the flag --security isn't translated"),
        ("RUN -- a", "the flag -- isn't translated"),
        ("RUN []", "has no command"),
        ("RUN cat <<EOF > x", "a heredoc"),
        ("RUN <<-'EOF' bash", "a heredoc"),
        ("COPY <<EOF /x", "a heredoc"),
        ("SHELL /bin/bash -c", "must be a list in JSON"),
        ("SHELL []", "must be a list in JSON"),
        ("USER ana", "sandbox's one user, and none as ana"),
        ("WORKDIR app", "relative to the image's own folder"),
        ("WORKDIR $HOME/app", r"the Dockerfile doesn't set \$HOME"),
        ("ENV A", "A has no value"),
        ("ENV A=1 B", "B has no value"),
        ("ENV a.b=1", "no name of a variable"),
        ("ENV A=$B", r"the Dockerfile doesn't set \$B"),
        ("ENV PYTHONPATH=/app:$PYTHONPATH", r"the Dockerfile doesn't set \$PYTHONPATH"),
        ("ENV A='b", "ends inside of quotes"),
        ("ENV A=$PATH", "the image's PATH isn't known"),
        ("ENV PATH=/a", "only absolute folders before"),
        ("ENV PATH=$PATH:/a", "only absolute folders before"),
        ("ENV PATH=a:$PATH", "only absolute folders before"),
        ("ENV PATH=/a:$PATH:$PATH", "only absolute folders before"),
        ("ENV PATH=/a$PATH", "only absolute folders before"),
        ("ARG PATH=/a", "a value of its own"),
        ("ARG TARGETARCH", "a value of its own"),
        ("ARG A=$PATH", "the image's PATH isn't known"),
        ("COPY a.txt", "at least a source and a target"),
        ("COPY none /x", "there is no none"),
        ("COPY *.md /x", r"there is no \*.md"),
        ("COPY ../x /x", "leads out of"),
        ("COPY sub/../../x /x", "leads out of"),
        ("COPY ../*.txt /x", "leads out of"),
        ("COPY link /x", "leads out of"),
        ("COPY [ab].txt /x", r"only \* and \? are translated"),
        ("COPY **/c.txt /x", r"only \* and \? are translated"),
        ("COPY --from=build /x /x", "the flag --from isn't translated"),
        ("COPY --parents a.txt /x", "the flag --parents isn't translated"),
        ("COPY --exclude=*.md . /x", "the flag --exclude isn't translated"),
        ("COPY --chmod=u+x a.txt /x", "give three or four octal digits"),
        ("COPY --chmod=755 sub /x", "--chmod of a folder"),
        ("COPY a.txt $PATH", "the image's PATH isn't known"),
        ('COPY "a b" /x', "ends inside of quotes"),
        ("ADD https://example.org/x /x", "fetched by nobody"),
        ("ADD git@example.org:x.git /x", "fetched by nobody"),
        ("ADD packed /x", "ADD would unpack it"),
        ("ADD --checksum=sha256:0 a.txt /x", "the flag --checksum isn't translated"),
    ],
)
def test_what_is_refused_by_line_and_reason(context: Path, line: str, reason: str) -> None:
    (context / "link").symlink_to("/etc/passwd")
    (context / "packed").write_bytes(gzip.compress(b""))
    with pytest.raises(DockerfileError, match=rf"^line 3: {line.split()[0]}: .*{reason}"):
        of(context, "LABEL a=b", line)


@pytest.mark.parametrize(
    ("lines", "env", "path"),
    [
        (["ENV A=1 B='2 3' C=x\\ y"], {"A": "1", "B": "2 3", "C": "x y"}, []),
        (["ENV A some words"], {"A": "some words"}, []),
        (["ENV A=1", "ENV A=2 B=$A"], {"A": "2", "B": "1"}, []),
        (["ARG V=3", "ENV A=${V:-4} B=${V:+5}"], {"A": "3", "B": "5"}, []),
        (["ARG V", "ENV A=${V:-4}"], {"A": "4"}, []),
        (["ENV PATH=/a:/b:$PATH", 'ENV PATH="/c:${PATH}"'], {}, ["/c", "/a", "/b"]),
        (["ENV D=/opt", "ENV PATH=$D/bin:$PATH", "ENV PATH=$PATH"], {"D": "/opt"}, ["/opt/bin"]),
        (["ENV HOME=/root TMPDIR=/x A=1"], {"A": "1"}, []),
    ],
)
def test_variables_and_folders_of_programs(
    context: Path, lines: list[str], env: dict[str, str], path: list[str]
) -> None:
    found = of(context, *lines)
    assert (found.env, found.path) == (env, path)


def test_an_argument_of_before_from_holds_after_it_if_it_is_declared_there(context: Path) -> None:
    found = translated("ARG V=1\nARG W=2\nFROM a:$V\nARG V\nENV A=$V", context)
    assert found.env == {"A": "1"}
    with pytest.raises(DockerfileError, match=r"doesn't set \$W"):
        translated("ARG V=1\nARG W=2\nFROM a:$V\nENV A=$W", context)
    with pytest.raises(DockerfileError, match="has a value already"):
        of(context, "ARG V=1", "ARG V")


@pytest.mark.contract
def test_run_sees_what_comes_before_it_and_nothing_that_comes_after(context: Path) -> None:
    show = "RUN echo ${A-none} ${B-none} $PATH"
    found = of(context, show, "ENV A=1 PATH=/a:$PATH", show, "ENV A=2 B=3", "ENV PATH=/b:/c:$PATH", show)
    assert found.path == ["/b", "/c", "/a"]
    said = []
    for action in found.prepare:
        outer = {"A": "2", "B": "3", "PATH": "/b:/c:/a:/usr/bin:/bin"}
        said.append(executed(action, outer))
    assert said == ["none none /usr/bin:/bin\n", "1 none /a:/usr/bin:/bin\n", "2 3 /b:/c:/a:/usr/bin:/bin\n"]


def executed(action: dict[str, Any], environment: Mapping[str, str]) -> str:
    """As a runtime executes it."""
    argv = ["bash", "-o", "pipefail", "-c", action["command"]]
    ended = subprocess.run(argv, env={**environment, **action["env"]}, capture_output=True, timeout=60, check=True)
    return ended.stdout.decode()


@pytest.mark.contract
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_a_program_gets_exactly_its_arguments(words: list[str]) -> None:
    argv = ("printf", "%s\\0", "begin", *words)
    for shell in ("bash", "sh"):
        said = subprocess.run([shell, "-c", command_of(argv)], capture_output=True, timeout=60, check=True).stdout
        assert said.decode() == "".join(f"{word}\0" for word in ("begin", *words))


@pytest.mark.contract
@given(text=st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]), min_size=1))
def test_a_shell_gets_exactly_the_text_of_run(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Docker takes the spaces at its ends, and what it reads as another form or as a continued line."""
    line = f"RUN printf %s {shlex.quote(text)};"
    try:
        (action,) = of(tmp_path_factory.getbasetemp(), line).prepare
    except DockerfileError:
        assert "<<" in text
        return
    assert executed(action, {"PATH": "/usr/bin:/bin"}) == text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["COPY a.txt /x"], [("upload_file", "a.txt", "/x")]),
        (["COPY a.txt /x/"], [("upload_file", "a.txt", "/x/a.txt")]),
        (["COPY a.txt b.txt /x"], [("upload_file", "a.txt", "/x/a.txt"), ("upload_file", "b.txt", "/x/b.txt")]),
        (["COPY *.txt /x/"], [("upload_file", "a.txt", "/x/a.txt"), ("upload_file", "b.txt", "/x/b.txt")]),
        (["COPY ?.txt /x/"], [("upload_file", "a.txt", "/x/a.txt"), ("upload_file", "b.txt", "/x/b.txt")]),
        (["COPY sub /x"], [("upload_dir", "sub", "/x")]),
        (["COPY sub/ a.txt /x/"], [("upload_dir", "sub", "/x"), ("upload_file", "a.txt", "/x/a.txt")]),
        (["COPY . /x"], [("upload_dir", ".", "/x")]),
        (["COPY / /x"], [("upload_dir", ".", "/x")]),
        (["ADD /sub/../a.txt /x"], [("upload_file", "a.txt", "/x")]),
        (['COPY ["a.txt", "/x y/"]'], [("upload_file", "a.txt", "/x y/a.txt")]),
        (["COPY --chown=1:1 --link a.txt /x"], [("upload_file", "a.txt", "/x")]),
        (["COPY a.txt ."], [("upload_file", "a.txt", "a.txt")]),
        (["COPY . ."], [("upload_dir", ".", ".")]),
        (["WORKDIR /app", "COPY a.txt ."], [("upload_file", "a.txt", "/app/a.txt")]),
        (["WORKDIR /app", "COPY sub ./"], [("upload_dir", "sub", "/app")]),
        (["WORKDIR /app", "COPY a.txt lib/"], [("upload_file", "a.txt", "/app/lib/a.txt")]),
        (["ARG F=a", "COPY ${F}.txt /$F"], [("upload_file", "a.txt", "/a")]),
    ],
)
def test_copies(context: Path, lines: list[str], expected: list[tuple[str, str, str]]) -> None:
    assert uploads(context, of(context, *lines)) == expected


def test_permissions_of_a_copy(context: Path) -> None:
    command = 't=/x/run; if [ -d "$t" ]; then t=$t/run; fi; chmod 0700 -- "$t"'
    found = of(context, "COPY --chmod=0700 tools/run /x/")
    assert found.prepare[-1] == {"type": "exec", "command": command}


def test_a_relative_target_needs_the_image_s_own_folder(context: Path) -> None:
    for lines, how in ((["COPY a.txt .", "WORKDIR /app"], {}), (["COPY a.txt ."], {"has_workdir": True})):
        with pytest.raises(DockerfileError, match=r"line 2: COPY: the target '\.' is relative"):
            of(context, *lines, **how)
    assert of(context, "RUN a", has_workdir=True).prepare == [run("a", "/")]


@pytest.mark.parametrize("rules", [".dockerignore", "Dockerfile.dockerignore"])
def test_rules_that_leave_files_out(context: Path, rules: str) -> None:
    (context / rules).write_text("# a comment\nsub/\n/b.*\n*ignore\n")
    found = of(context, "WORKDIR /w", "COPY . x/", "ADD *.txt /y/", "COPY tools /z")
    assert uploads(context, found) == [
        ("upload_file", "a.txt", "/w/x/a.txt"),
        ("upload_dir", "tools", "/w/x/tools"),
        ("upload_file", "a.txt", "/y/a.txt"),
        ("upload_dir", "tools", "/z"),
    ]
    assert {"type": "exec", "command": "mkdir -p -- /w/x", "cwd": "/w"} in found.prepare
    for line in ("COPY b.txt /x", "COPY sub /x", "ADD b* /x/"):
        with pytest.raises(DockerfileError, match=r"left out by the \.dockerignore"):
            of(context, line)


def test_rules_keep_what_an_exclamation_mark_names(context: Path) -> None:
    (context / ".dockerignore").write_text("*\n!sub/c.txt\n!a.txt\n")
    assert uploads(context, of(context, "COPY . /x", "COPY sub /y")) == [
        ("upload_file", "a.txt", "/x/a.txt"),
        ("upload_dir", "sub", "/x/sub"),
        ("upload_dir", "sub", "/y"),
    ]


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        ("sub", {"sub", "sub/c.txt"}),
        ("c.txt", set()),
        ("**/*.txt", {"a.txt", "b.txt", "sub/c.txt"}),
        ("**", {"a.txt", "b.txt", "sub", "sub/c.txt", "tools", "tools/run", ".dockerignore"}),
        ("*/run", {"tools/run"}),
        ("tools/**", {"tools/run"}),
        ("?.txt\n!b.txt", {"a.txt"}),
        (".", set()),
    ],
)
def test_rules_begin_at_the_folder(context: Path, patterns: str, left_out: set[str]) -> None:
    (context / ".dockerignore").write_text(patterns)
    is_left_out = docker_rules(context)
    assert is_left_out is not None
    assert {path.relative_to(context).as_posix() for path in context.rglob("*") if is_left_out(path)} == left_out


@pytest.mark.parametrize("pattern", ["[ab].txt", "a\\.txt", "a**"])
def test_rules_with_other_patterns_are_refused(context: Path, pattern: str) -> None:
    (context / ".dockerignore").write_text(f"{pattern}\n")
    with pytest.raises(DockerfileError, match=r"line 2: COPY: \.dockerignore: of patterns only"):
        of(context, "COPY . /x")


@given(
    st.lists(
        st.sampled_from(
            [*(f"{name} x /y" for name in REFERENCE), "x", "", "# x", "\\", "ENV A=1 \\", "RUN [", "FROM a"]
        )
    )
)
def test_any_file_is_translated_or_refused(lines: list[str]) -> None:
    with suppress(DockerfileError):
        assert translated("\n".join(lines), Path("nowhere")).image


def test_without_the_package_it_says_what_to_install(context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dockerfile_parse", None)
    with pytest.raises(NotReadyError, match=r"\[tasks\]"):
        of(context)
