"""Programs of an image whose layers aren't mounted."""

from __future__ import annotations

import os
from pathlib import Path

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
    assert merged.shell(layers(tmp_path, contents)) == shell
