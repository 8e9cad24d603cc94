"""The lines that start Apptainer, word by word: a change of one is a change of what a session may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtimes.apptainer import command
from consumers.runtimes.apptainer.command import Container

FIRST = Container(
    image=Path("/cache/sif/a.sif"),
    overlay=Path("/data/s/main/overlay"),
    prepared=None,
    mounts={"/.polar/line": Path("/data/s/main/line"), "/opt/venv": Path("/opt/venv")},
    has_host_network=False,
)
OPTIONS = [
    *("setsid", "--fork", "unshare", "--map-root-user", "--kill-child", "apptainer", "--silent", "exec"),
    *("--containall", "--no-init", "--no-privs", "--no-eval", "--no-umask"),
    *("--no-mount", "home,tmp,cwd,sys,hostfs,bind-paths", "--pwd", "/"),
]
MOUNTS = [
    *("--mount", "type=bind,src=/data/s/main/line,dst=/.polar/line,ro"),
    *("--mount", "type=bind,src=/opt/venv,dst=/opt/venv,ro"),
]


def test_a_container_for_prepare_has_one_overlay_and_loopback_alone() -> None:
    assert command.start(FIRST, ["keeper", "--flag"]) == [
        *OPTIONS,
        *("--net", "--network", "none"),
        *("--overlay", "/data/s/main/overlay"),
        *MOUNTS,
        *("/cache/sif/a.sif", "keeper", "--flag"),
    ]


def test_a_later_container_has_the_prepared_overlay_below_its_own_and_perhaps_the_hosts_network() -> None:
    later = Container(FIRST.image, Path("/data/s/run/overlay"), FIRST.overlay, FIRST.mounts, has_host_network=True)
    assert command.start(later, ["keeper"]) == [
        *OPTIONS,
        *("--overlay", "/data/s/run/overlay", "--overlay", "/data/s/main/overlay:ro"),
        *MOUNTS,
        *("/cache/sif/a.sif", "keeper"),
    ]


def test_an_image_is_packed_from_the_layout_in_the_folder() -> None:
    assert command.build("image.sif") == ["apptainer", "--silent", "build", "image.sif", "oci:layout"]


def test_apptainer_gets_no_variable_that_would_change_the_container_and_no_secret() -> None:
    worker = {"PATH": "/bin", "HOME": "/home/a", "APPTAINER_BIND": "/", "SINGULARITY_NV": "1", "POLAR_KEY": "secret"}
    assert command.environment(worker, {"POLAR_RUNTIME": "claim"}) == {
        "PATH": "/bin",
        "HOME": "/home/a",
        "APPTAINERENV_LD_PRELOAD": "",
        "APPTAINERENV_LD_AUDIT": "",
        "POLAR_RUNTIME": "claim",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1.4.2\n", (1, 4)),
        ("1.3.6-1.el9\n", (1, 3)),
        ("apptainer version 1.10.0", (1, 10)),
        ("", None),
        ("singularity-ce version 4.1.0", None),
    ],
)
def test_the_version_is_read(text: str, found: tuple[int, int] | None) -> None:
    assert command.version(text) == found


@given(st.text(alphabet='ab/,:" \n=', min_size=1))
def test_a_usable_path_is_one_part_of_a_mount(path: str) -> None:
    if command.is_usable(path):
        container = Container(FIRST.image, FIRST.overlay, None, {path: Path(path)}, has_host_network=True)
        line = command.start(container, [])
        mount = line[line.index("--mount") + 1]
        assert [part.partition("=")[::2] for part in mount.split(",")] == [
            ("type", "bind"),
            ("src", str(Path(path))),
            ("dst", path),
            ("ro", ""),
        ]
