"""A Harbor task with a Dockerfile becomes a TaskRequest that needs no image builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polar.tasks.harbor_folder import read_task
from polar.tasks.harbor_mapping import Mapped, mapped
from polar.tasks.harbor_rules import DOCKERFILE, Outcome
from polar.tasks.harbor_verifier import MAKE_PUBLISHED
from polar.tasks.task_sets import Member
from tests.polar.tasks.writing import AGENT, IN_PLACE, read
from topics.types.runtime import Network, Seen
from topics.types.task import TaskRequest
from topics.types.uploads import PrepareAction

UV = """
FROM python:3.12-slim

# uv for the tests
RUN apt-get update && apt-get install -y --no-install-recommends \\
    curl git \\
    && rm -rf /var/lib/apt/lists/*
RUN curl -LsSf https://astral.sh/uv/0.7.13/install.sh | sh
ENV PATH="/root/.local/bin:${PATH}" \\
    UV_LINK_MODE=copy
WORKDIR /app
COPY app/ ./
COPY --chown=root:root data.csv /data/
RUN uv sync --frozen
CMD ["bash"]
"""
CONDA = """
FROM continuumio/miniconda3:24.7.1-0
SHELL ["/bin/bash", "--login", "-c"]
ARG ENV_NAME=testbed
ENV DEBIAN_FRONTEND=noninteractive
RUN conda create -y -n ${ENV_NAME} python=3.9 \\

    && conda clean -afy
ENV CONDA_DEFAULT_ENV=$ENV_NAME
ENV PATH /opt/conda/envs/${ENV_NAME}/bin:$PATH
RUN git clone -o origin https://github.com/astropy/astropy /testbed && cd /testbed && git reset --hard 7cbba8b
WORKDIR /testbed/
ENTRYPOINT ["/bin/bash"]
"""
UBUNTU = """# syntax=docker/dockerfile:1
ARG UBUNTU=24.04
FROM --platform=linux/amd64 ubuntu:${UBUNTU} AS base
LABEL maintainer="someone@example.org"
ENV LANG=C.UTF-8 LC_ALL=C.UTF-8
RUN apt-get update -qq \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y build-essential tmux asciinema  \\
    # for the tests
    python3-pip \\
 && rm -rf /var/lib/apt/lists/*
RUN printf 'int main() { return 0; }\\n' > /tmp/x.c && gcc -o /usr/local/bin/x /tmp/x.c
WORKDIR /workspace
ADD data.csv app/main.py ./
RUN ["chmod", "0600", "data.csv"]
EXPOSE 8080
VOLUME /data
USER root
"""


def task(folder: Path, text: str, config: dict[str, Any] | None = None, template: dict[str, Any] = AGENT) -> Mapped:
    for name in ("app/main.py", "data.csv"):
        path = folder / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = read(folder, config or {}, environment__Dockerfile=text)
    return mapped(Member("river", folder), found, template)


def request(found: Mapped) -> TaskRequest:
    made = found.request()
    assert isinstance(made, TaskRequest), made
    return made


def finding(found: Mapped, name: str = DOCKERFILE) -> tuple[Outcome, str]:
    (one,) = [one for one in found.findings if one.name == name]
    return one.outcome, one.becomes


@pytest.mark.parametrize(
    ("text", "image", "workdir", "path", "env"),
    [
        (UV, "python:3.12-slim", "/app", ["/root/.local/bin"], {"UV_LINK_MODE": "copy"}),
        (
            CONDA,
            "continuumio/miniconda3:24.7.1-0",
            "/testbed",
            ["/opt/conda/envs/testbed/bin"],
            {"DEBIAN_FRONTEND": "noninteractive", "CONDA_DEFAULT_ENV": "testbed"},
        ),
        (UBUNTU, "ubuntu:24.04", "/workspace", [], {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}),
    ],
)
def test_dockerfiles_as_public_sets_have_them(
    tmp_path: Path, text: str, image: str, workdir: str, path: list[str], env: dict[str, str]
) -> None:
    found = task(tmp_path, text)
    runtime = request(found).runtime
    assert finding(found) == (
        Outcome.CARRIED,
        "runtime.prepare: RUN has the network that Docker gives it, runtime.setup_network: host",
    )
    assert (runtime.image, runtime.workdir, runtime.path, runtime.env) == (image, workdir, path, env)
    assert (runtime.setup_network, runtime.verifier_sees) == (Network.HOST, Seen.EVERYTHING)
    assert finding(found, "tests") == (Outcome.CARRIED, "runtime.eval_prepare")


def test_its_lines_are_actions_in_their_order(tmp_path: Path) -> None:
    *actions, published = request(task(tmp_path, UV)).runtime.prepare
    assert published == PrepareAction.model_validate(MAKE_PUBLISHED)
    assert [(one.type, one.target) for one in actions] == [
        ("exec", None), ("exec", None), ("exec", None), ("upload_dir", "/app"), ("upload_file", "/data/data.csv"), ("exec", None),
    ]  # fmt: skip
    assert [one.cwd for one in actions] == ["/", "/", "/", None, None, "/app"]
    assert actions[-1].env == {"HOME": "/root", "UV_LINK_MODE": "copy"}
    assert actions[-1].command == "exec /bin/sh -c 'uv sync --frozen'"
    assert (actions[1].command or "").startswith(
        "unset UV_LINK_MODE; PATH=${PATH#/root/.local/bin:}; exec /bin/sh -c 'curl "
    )


def test_what_the_task_says_wins_over_its_dockerfile(tmp_path: Path) -> None:
    text = "FROM a\nENV A=1 B=2\nRUN true\nWORKDIR /app"
    runtime = request(task(tmp_path, text, {"environment": {"env": {"B": "3"}, "workdir": "/srv"}})).runtime
    assert (runtime.env, runtime.workdir) == ({"A": "1", "B": "3"}, "/srv")
    assert runtime.prepare[0].env == {"HOME": "/root", "A": "1", "B": "2"}
    assert request(task(tmp_path / "b", text, {"environment": {"workdir": "sub"}})).runtime.workdir == "/app/sub"
    refused = task(tmp_path / "c", "FROM a\nCOPY data.csv .", {"environment": {"workdir": "/srv"}})
    assert finding(refused)[0] is Outcome.REFUSED


def test_what_the_template_says_wins(tmp_path: Path) -> None:
    runtime = {"setup_network": "none", "workdir": "/mine", "env": {"A": "4"}, "path": ["/mine/bin"]}
    found = task(tmp_path, "FROM a\nENV A=1 PATH=/b:$PATH\nRUN true", template={**AGENT, "runtime": runtime})
    assert finding(found) == (Outcome.CARRIED, "runtime.prepare")
    made = request(found).runtime
    assert (made.setup_network, made.workdir) == (Network.NONE, "/mine")
    assert (made.env, made.path, made.prepare[0].cwd) == ({"A": "4"}, ["/mine/bin"], "/")


@pytest.mark.parametrize("runtime", [{"image": "mine:1"}, IN_PLACE["runtime"]])
def test_a_template_takes_its_place(tmp_path: Path, runtime: dict[str, Any]) -> None:
    found = task(tmp_path, "FROM scratch", template={**IN_PLACE, "runtime": runtime})
    assert finding(found)[0] is Outcome.REPLACED
    assert request(found).runtime.image == runtime.get("image")


def test_copies_alone_need_no_network(tmp_path: Path) -> None:
    runtime = request(task(tmp_path, "FROM a\nCOPY data.csv /x")).runtime
    assert (runtime.setup_network, runtime.workdir) == (Network.NONE, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("FROM a\nONBUILD RUN true", "line 2: ONBUILD: isn't translated"),
        ("FROM a\nWORKDIR /", "its working directory is /"),
        ("FROM a\nCOPY ../tests /x", "line 2: COPY: ../tests leads out"),
    ],
)
def test_a_refusal_names_the_line_and_is_the_only_one(tmp_path: Path, text: str, reason: str) -> None:
    found = task(tmp_path, text)
    assert [one.name for one in found.refusals] == [DOCKERFILE]
    assert found.refusals[0].becomes.startswith(reason)


def test_a_dockerfile_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    task(tmp_path, "FROM a")
    (tmp_path / DOCKERFILE).write_bytes(b"FROM \xff")
    (refusal,) = mapped(Member("river", tmp_path), read_task(tmp_path), AGENT).refusals
    assert (refusal.name, "not UTF-8 at byte 5" in refusal.becomes) == (DOCKERFILE, True)


def test_a_runtime_without_images_refuses_it(tmp_path: Path) -> None:
    found = task(tmp_path, "FROM a", template={**AGENT, "runtime": {"backend": "landlock"}})
    assert "the runtime landlock has no images" in finding(found)[1]
