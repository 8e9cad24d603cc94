"""Tools of the worker's host in images whose C library is another one, or is too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.harnesses import npm
from consumers.runtimes.base import Exec, ExecResult
from consumers.runtimes.cell import c_library
from consumers.runtimes.cell.backend import CellBackend
from consumers.runtimes.images.store import ImageStore
from tests.consumers.runtimes.cell.test_images import labels
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.making import Entry, File
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec

pytestmark = pytest.mark.contract

LIBRARY = c_library.of_host()
NODE = npm.node()
SPEC = RuntimeSpec(image="river:1", workdir="/app")


def foreign(host: dict[str, Entry]) -> dict[str, Entry]:
    """This host's programs with their loader and libraries at places that no glibc looks at first, as musl's are. It stands for an image
    whose C library isn't glibc, and of which the tools must use nothing."""
    assert LIBRARY is not None
    here = str(LIBRARY.loader)
    there = "/lib/" + "ld-foreign-libc.so.2".rjust(len(here) - len("/lib/"), "-")
    made: dict[str, Entry] = {}
    for path, entry in host.items():
        if isinstance(entry, File):
            entry = File(entry.data.replace(here.encode() + b"\0", there.encode() + b"\0"), entry.mode)
            if f"/{path}" == here:
                path = there[1:]
            elif ".so" in path:
                path = f"lib/{Path(path).name}"
        made[path] = entry
    return made


def backend(tmp_path: Path, layer: dict[str, Entry]) -> CellBackend:
    making.oci_layout(tmp_path / "layout", [layer], {})
    images = ImageStore(tmp_path / "images", {"river:1": f"oci:{tmp_path / 'layout'}:latest"}, trusts_tasks=False)
    return CellBackend(tmp_path / "runtimes", images)


async def version_of_node(made: CellBackend, tools: tuple[Path, ...]) -> ExecResult:
    runtime = await made.create(labels(), SPEC)
    try:
        listed = f"ls -d {LIBRARY and LIBRARY.folder} && {NODE} -p process.version"
        return await runtime.exec(Exec(listed, tools=tools))
    finally:
        await runtime.remove()


async def test_node_runs_in_an_image_without_glibc_and_only_programs_with_tools_see_the_host_s_libraries(
    tmp_path: Path,
) -> None:
    assert LIBRARY is not None
    made = backend(tmp_path, foreign(making.host_layer()))
    ended = await version_of_node(made, (NODE.parents[2],))
    assert ended.exit_code == 0, ended.output_end
    assert ended.tail.split()[0] == str(LIBRARY.folder)
    assert ended.tail.split()[1].startswith("v")
    assert (await version_of_node(made, ())).exit_code == 2, "ls finds no such folder"


async def test_an_image_with_an_old_glibc_is_refused_for_a_harness_and_not_for_other_programs(tmp_path: Path) -> None:
    assert LIBRARY is not None
    layer = making.host_layer()
    (place,) = [path for path in layer if path.endswith("/libc.so.6")]
    library = layer[place]
    assert isinstance(library, File)
    now, past = (b"version %d.%d" % numbers for numbers in ((c_library.version_of(library.data) or (0, 0)), (2, 19)))
    layer[place] = File(library.data.replace(now, past), 0o755)
    made = backend(tmp_path, layer)
    with pytest.raises(InputError, match=r"runtime\.image: has glibc 2\.19, and the CLI of this harness needs 2\.28"):
        await version_of_node(made, (NODE.parents[2],))
    assert (await version_of_node(made, ())).exit_code != 126


async def test_an_image_with_a_newer_glibc_keeps_its_own(tmp_path: Path) -> None:
    assert LIBRARY is not None
    making.oci_layout(tmp_path / "layout", [making.host_layer()], {})
    names = {"river:1": f"oci:{tmp_path / 'layout'}:latest"}
    image = await ImageStore(tmp_path / "images", names, trusts_tasks=False).get("river:1")
    assert c_library.version(image.layers) is not None
    assert LIBRARY.mounts_for(image.layers, "river:1") == []
