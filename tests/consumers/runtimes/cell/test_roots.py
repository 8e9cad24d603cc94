"""The one user of a cell with an image: a task may name it, by any of its names."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from consumers.runtimes.cell.roots import image_root
from consumers.runtimes.images import merged
from consumers.runtimes.images.store import Image
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

PASSWD = "root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\nana:x:1001:1001::/:/bin/sh\n"


def image(folder: Path, user: str) -> Image:
    (folder / "etc").mkdir()
    (folder / "etc" / "passwd").write_text(PASSWD)
    user_id = merged.user_id((folder,), user)
    assert user_id is not None
    return Image("sha256:0", (folder,), {}, PurePosixPath("/app"), user, user_id, "/bin/sh")


@pytest.mark.parametrize(
    ("of_image", "user"),
    [("", "root"), ("", "0"), ("0:0", "toor"), ("ana", "1001"), ("1001", "ana"), ("ana", None)],
)
def test_a_name_of_the_image_s_user_is_kept(tmp_path: Path, of_image: str, user: str | None) -> None:
    root = image_root(image(tmp_path, of_image), RuntimeSpec(image="a:1", user=user))
    assert root.user_id == (1001 if "ana" in (of_image, user) else 0)


@pytest.mark.parametrize(("of_image", "user"), [("", "ana"), ("ana", "root"), ("ana", "nobody"), ("", "1001")])
def test_another_user_is_refused(tmp_path: Path, of_image: str, user: str) -> None:
    with pytest.raises(InputError, match="every program of a cell is one user") as error:
        image_root(image(tmp_path, of_image), RuntimeSpec(image="a:1", user=user))
    assert error.value.field == "runtime.user"
