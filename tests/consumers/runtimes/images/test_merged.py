"""Programs and users of an image whose layers aren't mounted."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from consumers.runtimes.images import merged

Content = dict[str, str]
"""Text by path: `-> TARGET` for a link, `/` for a folder, `opaque` for an opaque one, `gone` for a whiteout, otherwise a program."""


def layers(folder: Path, contents: list[Content]) -> list[Path]:
    made = []
    for index, content in enumerate(contents):
        layer = folder / str(index)
        layer.mkdir()
        for name, text in content.items():
            path = layer / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                path.symlink_to(text[3:])
            elif text in ("/", "opaque"):
                path.mkdir(exist_ok=True)
                if text == "opaque":
                    os.setxattr(path, "user.overlay.opaque", b"y")
            elif text == "gone":
                os.mknod(path, 0o20600, 0)
            else:
                path.write_text("")
                path.chmod(0o644 if text == "data" else 0o755)
        made.append(layer)
    return made


@pytest.mark.parametrize(
    ("contents", "shell"),
    [
        ([], ""),
        ([{"bin/bash": "program", "bin/sh": "program"}], "bash"),
        ([{"bin": "-> usr/bin", "usr/bin/sh": "-> dash", "usr/bin/dash": "program"}], "sh"),
        ([{"bin": "-> /usr/bin"}, {"usr/bin/bash": "program"}], "bash"),
        ([{"bin/sh": "-> /bin/busybox", "bin/busybox": "program"}], "sh"),
        ([{"bin/sh": "-> ../usr/../lib/x", "lib/x": "program", "usr": "/"}], "sh"),
        ([{"bin/sh": "-> ../../../../lib/x", "lib/x": "program"}], "sh"),
        ([{"bin/bash": "program", "bin/sh": "program"}, {"bin/bash": "gone"}], "sh"),
        ([{"bin/bash": "program"}, {"bin": "opaque", "bin/sh": "program"}], "sh"),
        ([{"bin/bash": "program"}, {"bin": "gone"}], ""),
        ([{"bin/bash": "program"}, {"bin": "gone"}, {"bin/sh": "program"}], "sh"),
        ([{"bin/bash": "program"}, {"bin": "-> elsewhere"}], ""),
        ([{"bin/bash": "data", "bin/sh": "/"}], ""),
        ([{"bin/bash": "-> bash", "bin/sh": "-> /proc/self/exe"}], ""),
        ([{"bin": "program"}, {"usr/bin/bash": "-> /bin/bash"}], ""),
        ([{"bin/bash": "-> /etc/hostname"}], ""),
        ([{"bin/sh": "program"}, {"bin/bash": "-> sh"}], "bash"),
    ],
)
def test_the_shell_is_what_the_mounted_image_would_show(tmp_path: Path, contents: list[Content], shell: str) -> None:
    assert PurePosixPath(merged.shell(layers(tmp_path, contents))).name == shell


PASSWD = "root:x:0:0::/root:/bin/sh\nbroken\nagent:x:1234:5::/:/bin/sh\nodd:x:-1:0:::\nlarge:x:99999999999:0:::\n"


@pytest.fixture
def with_users(tmp_path: Path) -> list[Path]:
    """The lower layer has other users, and the file of the upper one is a link inside the image."""
    for layer, text in (("lower", "agent:x:1:1:::\nold:x:2:2:::\n"), ("upper", None)):
        (tmp_path / layer / "etc").mkdir(parents=True)
        if text:
            (tmp_path / layer / "etc/passwd").write_text(text)
    (tmp_path / "upper/etc/passwd").symlink_to("/usr/passwd")
    (tmp_path / "upper/usr").mkdir()
    (tmp_path / "upper/usr/passwd").write_text(PASSWD)
    return [tmp_path / "lower", tmp_path / "upper"]


@pytest.mark.parametrize(
    ("user", "number"),
    [
        ("", 0),
        ("root", 0),
        ("7", 7),
        ("7:8", 7),
        ("agent", 1234),
        ("agent:users", 1234),
        (":8", 0),
        ("old", None),
        ("odd", None),
        ("large", None),
        ("-1", None),
        ("99999999999", None),
        ("४", None),
    ],
)
def test_a_user_is_a_number_or_a_name_of_the_image(with_users: list[Path], user: str, number: int | None) -> None:
    assert merged.user_id(with_users, user) == number


def test_without_a_list_of_users_there_is_root_alone(tmp_path: Path) -> None:
    assert merged.user_id([tmp_path], "") == 0
    assert merged.user_id([tmp_path], "agent") is None
