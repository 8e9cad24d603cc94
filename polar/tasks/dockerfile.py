"""A Dockerfile as parts of a TaskRequest: its image, and what `runtime.prepare` does in it.

Invariant: each instruction is translated, changes nothing for a sandbox, or raises DockerfileError. What is made is as `docker build` would
make it, for one user: RUN sees the variables and the folders of programs that the lines before it set, and not those after it.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from polar.tasks.dockerfile_context import Context
from polar.tasks.dockerfile_instructions import (
    HEREDOC,
    DockerfileError,
    Instruction,
    instructions,
    words,
    words_in_json,
)
from polar.tasks.dockerfile_words import WordError, expanded

NEUTRAL = ("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME")
"""No program of the image is started, nothing is published, and no volume is made."""
ROOT = ("root", "0", "root:root", "root:0", "0:0", "0:root")
HOME = "/root"
"""Docker's home of root, for RUN."""
SANDBOX_OWN = ("HOME", "TMPDIR")
"""Variables that a sandbox has its own values for; those of ENV hold for RUN."""
PLATFORMS = {f"{side}{what}" for side in ("TARGET", "BUILD") for what in ("PLATFORM", "OS", "ARCH", "VARIANT")}
"""Arguments that Docker sets by the machine."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHELL = ("/bin/sh", "-c")
_PATH = "\0"
"""Stands for the PATH of the image, which nobody knows here."""


@dataclass(frozen=True)
class Translation:
    """What a Dockerfile becomes in `runtime`."""

    image: str
    prepare: list[dict[str, Any]]
    """Actions, as JSON."""
    env: dict[str, str]
    path: list[str]
    workdir: str | None
    """Absolute; None: the image's own."""
    has_run: bool
    """Whether it has RUN, for which Docker has a network."""


def translated(text: str, context: Path, *, has_workdir: bool = False) -> Translation:
    """`context`: the folder of the files that COPY and ADD name. `has_workdir`: the task has another working directory, so what is relative
    to the image's own isn't known.

    Raises DockerfileError, and NotReadyError without the package dockerfile-parse.
    """
    found = instructions(text)
    has_workdir = has_workdir or any(one.name == "WORKDIR" for one in found)
    translation = _Translation(Context(context), has_workdir)
    for one in found:
        try:
            translation.add(one)
        except WordError as error:
            raise one.error(str(error)) from None
    return translation.finished()


@dataclass
class _Run:
    """A RUN, and what the lines before it have set."""

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]
    path: list[str]

    def action(self, env: Mapping[str, str], path: list[str]) -> dict[str, Any]:
        """`env`, `path`: of the whole file, which all programs of the session have."""
        commands = []
        if later := [name for name in env if name not in self.env]:
            commands.append(f"unset {' '.join(later)}")
        if later := path[: len(path) - len(self.path)]:
            commands.append(f"PATH=${{PATH#{shlex.quote(':'.join(later) + ':')}}}")
        commands.append(command_of(self.argv))
        return _exec("; ".join(commands), self.cwd) | {"env": self.env}


def command_of(argv: tuple[str, ...]) -> str:
    """A command of a shell that starts exactly this program, and no builtin."""
    return f"exec {shlex.join(argv)}"


def _exec(command: str, cwd: str | None) -> dict[str, Any]:
    return {"type": "exec", "command": command} | ({} if cwd is None else {"cwd": cwd})


@dataclass
class _Translation:
    context: Context
    has_workdir: bool
    image: str | None = None
    global_args: dict[str, str | None] = field(default_factory=dict)
    """Of before FROM."""
    args: dict[str, str | None] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    workdir: str | None = None
    shell: tuple[str, ...] = SHELL
    actions: list[_Run | dict[str, Any]] = field(default_factory=list)

    def add(self, one: Instruction) -> None:
        if one.name not in NEUTRAL and one.name not in TRANSLATED:
            raise one.error(
                "isn't translated" if one.name in REFUSED else "is no instruction of Dockerfiles, or lacks its value"
            )
        if self.image is None and one.name not in ("ARG", "FROM"):
            raise one.error("comes before FROM")
        if one.name in TRANSLATED:
            if not one.value:
                raise one.error("lacks its value")
            TRANSLATED[one.name](self, one)

    def finished(self) -> Translation:
        if self.image is None:
            raise DockerfileError(1, "FROM", "is missing")
        env = {name: value for name, value in self.env.items() if name not in SANDBOX_OWN}
        prepare = [one.action(env, self.path) if isinstance(one, _Run) else one for one in self.actions]
        has_run = any(isinstance(one, _Run) for one in self.actions)
        return Translation(self.image, prepare, env, self.path, self.workdir, has_run)

    def from_(self, one: Instruction) -> None:
        if self.image is not None:
            raise one.error(
                "begins another stage; only one is translated: build the image, and give it as runtime.image in the template (of "
                "tests/Dockerfile: as docker_image of verifier.environment)"
            )
        flags, rest = one.flags()
        if flags.keys() - {"platform"}:
            raise one.error(f"the flag --{min(flags.keys() - {'platform'})} isn't translated")
        found = rest.split()
        if len(found) != 1 and not (len(found) == 3 and found[1].upper() == "AS"):
            raise one.error("must be FROM NAME, or FROM NAME AS STAGE")
        self.image = expanded(found[0], self.global_args)
        if self.image == "scratch":
            raise one.error("scratch has no shell, so nothing could run in it")

    def arg(self, one: Instruction) -> None:
        known = self.global_args if self.image is None else self._values
        found: dict[str, str | None] = {}
        for word in words(one.value):
            name, has_value, value = word.partition("=")
            _check_name(one, name)
            if name in PLATFORMS or name == "PATH":
                raise one.error(f"Docker gives {name} a value of its own, which isn't known here")
            if has_value:
                found[name] = self._without_path(one, expanded(value, known))
            elif self.args.get(name) is not None:
                raise one.error(f"{name} has a value already; leave it out")
            else:
                found[name] = self.global_args.get(name)
        (self.global_args if self.image is None else self.args).update(found)

    def env_(self, one: Instruction) -> None:
        found = words(one.value)
        pairs = [word.partition("=") for word in found]
        if "=" not in found[0]:
            name, *rest = one.value.split(None, 1)
            pairs = [(name, "=" if rest else "", "".join(rest))]
        known, env, path = self._values, dict(self.env), self.path
        for name, has_value, text in pairs:
            if not has_value:
                raise one.error(f"{name} has no value; write {name}=VALUE")
            _check_name(one, name)
            value = expanded(text, known)
            if name == "PATH":
                path = [*self._folders(one, value), *self.path]
            else:
                env[name] = self._without_path(one, value)
        self.env, self.path = env, path

    def _folders(self, one: Instruction, value: str) -> list[str]:
        """The folders before the PATH that was there."""
        *folders, last = value.split(":")
        if last != _PATH or not all(folder.startswith("/") and _PATH not in folder for folder in folders):
            raise one.error("of PATH only absolute folders before $PATH are translated, as in PATH=/a:/b:$PATH")
        return folders

    def workdir_(self, one: Instruction) -> None:
        path = self._expanded(one, one.value)
        if not path.startswith("/") and self.workdir is None:
            raise one.error(f"{path!r} is relative to the image's own folder, which isn't known here; write it whole")
        self.workdir = _joined(self.workdir or "/", path)
        self.actions.append(_exec(f"mkdir -p -- {shlex.quote(self.workdir)}", "/"))

    def user(self, one: Instruction) -> None:
        if (user := self._expanded(one, one.value)) not in ROOT:
            raise one.error(
                f"every program of a session runs as the sandbox's one user, and none as {user}; leave it out"
            )

    def shell_(self, one: Instruction) -> None:
        if not (found := words_in_json(one.value)):
            raise one.error('must be a list in JSON, like ["/bin/bash", "-c"]')
        self.shell = tuple(found)

    def run(self, one: Instruction) -> None:
        flags, rest = one.flags()
        if flags:
            raise one.error(f"the flag --{next(iter(flags))} isn't translated")
        _check_no_heredoc(one)
        if (argv := words_in_json(rest)) == [] or not rest:
            raise one.error("has no command")
        args = {name: value for name, value in self.args.items() if value is not None}
        env = {"HOME": HOME} | args | self.env
        self.actions.append(_Run(tuple(argv or (*self.shell, rest)), self._cwd, env, self.path))

    def copy(self, one: Instruction) -> None:
        _check_no_heredoc(one)
        flags, rest = one.flags()
        for name in flags:
            # All files belong to the sandbox's one user, and no layer of an image is made.
            if name not in ("chmod", "chown", "link"):
                raise one.error(f"the flag --{name} isn't translated")
        mode = flags.get("chmod")
        if mode is not None and not re.fullmatch("[0-7]{3,4}", mode):
            raise one.error(f"--chmod={mode} isn't translated; give three or four octal digits")
        found = [self._expanded(one, word) for word in words_in_json(rest) or rest.split()]
        if len(found) < 2:
            raise one.error("needs at least a source and a target")
        *names, target = found
        sources = [path for name in names for path in self.context.sources(one, name)]
        is_into = len(sources) > 1 or len(names) > 1 or target in ("", ".") or target.endswith(("/", "/."))
        place = self._target(one, target)
        for source in sources:
            if source.is_dir():
                if mode is not None:
                    raise one.error("--chmod of a folder isn't translated; copy its files, or use RUN chmod")
                self.actions += self.context.uploads(one, source, place, self._cwd)
                continue
            there = posixpath.normpath(posixpath.join(place, source.name)) if is_into else place
            self.actions.append({"type": "upload_file", "source": str(source.absolute()), "target": there})
            if mode is not None:
                self.actions.append(_exec(_chmod(mode, there, source.name), self._cwd))

    def _target(self, one: Instruction, target: str) -> str:
        if target.startswith("/") or self.workdir is not None:
            return _joined(self.workdir or "/", target)
        if self.has_workdir:
            raise one.error(
                f"the target {target!r} is relative to the image's own folder, which isn't known here; write it whole"
            )
        return posixpath.normpath(target or ".")

    @property
    def _cwd(self) -> str | None:
        return self.workdir or ("/" if self.has_workdir else None)

    @property
    def _values(self) -> dict[str, str | None]:
        return {"PATH": _PATH} | self.args | self.env

    def _expanded(self, one: Instruction, word: str) -> str:
        return self._without_path(one, expanded(word, self._values))

    def _without_path(self, one: Instruction, value: str) -> str:
        if _PATH in value:
            raise one.error("the image's PATH isn't known here, so $PATH can't be used")
        return value


TRANSLATED: Mapping[str, Callable[[_Translation, Instruction], None]] = {
    "ADD": _Translation.copy,
    "ARG": _Translation.arg,
    "COPY": _Translation.copy,
    "ENV": _Translation.env_,
    "FROM": _Translation.from_,
    "RUN": _Translation.run,
    "SHELL": _Translation.shell_,
    "USER": _Translation.user,
    "WORKDIR": _Translation.workdir_,
}
REFUSED = ("ONBUILD",)


def _joined(folder: str, path: str) -> str:
    return "/" + posixpath.normpath(str(PurePosixPath(folder) / path)).lstrip("/")


def _chmod(mode: str, target: str, name: str) -> str:
    """The file may have gone into a folder at the target."""
    return f't={shlex.quote(target)}; if [ -d "$t" ]; then t=$t/{shlex.quote(name)}; fi; chmod {mode} -- "$t"'


def _check_name(one: Instruction, name: str) -> None:
    if not VARIABLE.fullmatch(name):
        raise one.error(f"{name!r} is no name of a variable that shells know")


def _check_no_heredoc(one: Instruction) -> None:
    if HEREDOC.search(one.value):
        raise one.error("a heredoc (<<) isn't translated; copy a file, or write it with printf")
