"""Images pulled with the real skopeo, from a registry on loopback and from files."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from consumers.runtimes.base import IMAGE_UNAVAILABLE, SandboxError
from consumers.runtimes.images import fetch, layers
from consumers.runtimes.images.store import ImageStore
from tests.consumers.runtimes.bare import ROOT
from tests.consumers.runtimes.conftest import command_lines
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.making import Blobs, Entry, File, Folder
from tests.consumers.runtimes.images.registry import Registry, serving
from tests.waiting import eventually, until
from topics.types.errors import InputError, NotReadyError

pytestmark = pytest.mark.contract

PASSWD = b"root:x:0:0::/root:/bin/sh\nagent:x:1234:5::/:/bin/sh\n"
BASE: dict[str, Entry] = {"bin": Folder(), "bin/sh": File(b"#!", 0o755), "etc/base": b"base", "etc/passwd": PASSWD}
TOP: dict[str, Entry] = {"etc/top": b"top", "app": Folder()}
CONFIG = {"Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/app/", "User": "agent:users"}
END_S = 30.0


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path, registry: Registry) -> ImageStore:
    return store_of(tmp_path, registry)


def store_of(folder: Path, registry: Registry) -> ImageStore:
    return ImageStore(folder / "images", {"test/*": registry.source("test/*")}, trusts_tasks=False)


def everything(folder: Path) -> set[str]:
    """Names in the store's folders, but for locks."""
    images = folder / "images"
    return {
        str(path.relative_to(images))
        for part in ("layers", "images", "names", "work")
        for path in (images / part).glob("*")
    }


def children_of(port: int) -> list[str]:
    return [line for line in command_lines() if f"127.0.0.1:{port}/" in line]


async def test_an_image_of_a_registry_is_pulled_and_known_from_then_on(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    made = making.image([BASE, TOP], CONFIG)
    registry.add("test/agent", made, "1")
    image = await store.get("test/agent:1")
    assert [layer.name for layer in image.layers] == [diff_id.removeprefix("sha256:") for diff_id in made.diff_ids]
    assert (image.layers[0] / "etc/base").read_text() == "base"
    assert (image.layers[1] / "etc/top").read_text() == "top"
    assert image.digest == made.config_digest
    assert image.environment == {"PATH": "/bin", "A": "b=c"}
    assert (image.workdir, image.user, image.user_id) == (PurePosixPath("/app"), "agent:users", 1234)
    assert image.shell == "/bin/sh"
    assert store.known(image.digest) == image
    assert not list((tmp_path / "images/work").iterdir())
    folders = [tmp_path / "images", *(tmp_path / "images").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "images").glob("*/*.json")} == {0o600}


async def test_a_tag_is_asked_once(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    registry.add("test/agent", making.image([BASE]), "1")
    first = await store.get("test/agent:1")
    registry.add("test/agent", making.image([TOP]), "1")
    asked = len(registry.requests)
    assert await store.get("test/agent:1") == await store_of(tmp_path, registry).get("test/agent:1") == first
    assert len(registry.requests) == asked


async def test_a_digest_is_the_image_that_it_names(store: ImageStore, registry: Registry) -> None:
    old, new = making.image([BASE]), making.image([TOP])
    registry.add("test/agent", old)
    registry.add("test/agent", new)
    assert (await store.get(f"test/agent:any@{old.manifest_digest}")).digest == old.config_digest
    assert (await store.get("test/agent")).digest == new.config_digest


async def test_ten_at_once_make_one_pull(registry: Registry, tmp_path: Path) -> None:
    made = making.image([BASE, TOP])
    registry.add("test/agent", made)
    stores = [store_of(tmp_path, registry) for _ in range(2)]
    images = await asyncio.gather(*(stores[number % 2].get("test/agent") for number in range(10)))
    assert len(set(images_text(images))) == 1
    assert registry.asked_for("/manifests/latest") == 1
    assert [registry.asked_for(blob) for blob in made.blobs] == [1, 1, 1]


def images_text(images: list[Any]) -> list[str]:
    return [json.dumps(dataclasses.asdict(image), default=str) for image in images]


async def test_a_layer_that_images_share_is_unpacked_once(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    for name, top in (("a", b"a"), ("b", b"b"), ("c", b"c")):
        registry.add(f"test/{name}", making.image([BASE, {"top": top}]))
    images = await asyncio.gather(*(store.get(f"test/{name}") for name in "abc"))
    assert len({image.layers[0] for image in images}) == 1
    assert len(list((tmp_path / "images/layers").iterdir())) == 4


async def test_a_layer_that_an_image_has_twice_counts_where_it_is_uppermost(
    store: ImageStore, registry: Registry
) -> None:
    empty: dict[str, Entry] = {}
    made = making.image([empty, BASE, empty, TOP])
    registry.add("test/agent", made)
    image = await store.get("test/agent")
    assert [f"sha256:{layer.name}" for layer in image.layers] == [made.diff_ids[index] for index in (1, 2, 3)]


@pytest.mark.parametrize("compress", [making.plain, making.zstandard])
async def test_other_compressions_are_read(store: ImageStore, registry: Registry, compress: Any) -> None:
    registry.add("test/agent", making.image([BASE], compress=compress))
    assert (await store.get("test/agent")).shell == "/bin/sh"


async def test_layouts_and_archives_of_this_disk_are_sources(tmp_path: Path) -> None:
    layout = making.oci_layout(tmp_path / "layout", [BASE], tag="v1")
    archive = making.oci_archive(tmp_path / "archive.tar", [TOP])
    docker = tmp_path / "docker.tar"
    copy = ["skopeo", "--insecure-policy", "copy", "-q", f"oci:{tmp_path}/layout:v1", f"docker-archive:{docker}:a:b"]
    await asyncio.to_thread(subprocess.run, copy, check=True)
    names = {
        "a": f"oci:{tmp_path}/layout:v1",
        "b": f"oci-archive:{tmp_path}/archive.tar",
        "c": f"docker-archive:{docker}",
    }
    store = ImageStore(tmp_path / "im:ages", names, trusts_tasks=False)
    assert (await store.get("a")).digest == layout.config_digest
    assert (await store.get("b")).digest == archive.config_digest
    assert (await store.get("c")).layers == (await store.get("a")).layers


async def test_a_missing_path_is_the_tasks_fault(tmp_path: Path) -> None:
    names = {
        "a": f"oci:{tmp_path}/none:v1",
        "b": f"oci-archive:{tmp_path}/none",
        "c": f"docker-archive:{tmp_path}/none",
    }
    store = ImageStore(tmp_path / "images", names, trusts_tasks=False)
    for name in names:
        with pytest.raises(InputError, match=r"runtime\.image"):
            await store.get(name)


async def test_this_machines_image_of_several_is_pulled(store: ImageStore, registry: Registry) -> None:
    made = {name: making.image([{"arch": name.encode()}], architecture=name) for name in ("amd64", "arm64", "s390x")}
    index: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": making.INDEX,
        "manifests": [
            {
                "mediaType": making.MANIFEST,
                "digest": image.manifest_digest,
                "size": len(image.manifest),
                "platform": {"os": "linux", "architecture": name},
            }
            for name, image in made.items()
        ],
    }
    for image in made.values():
        registry.add("test/agent", image)
    registry.manifests["test/agent:latest"] = json.dumps(index).encode()
    assert (await store.get("test/agent")).digest == made[making.this_architecture()].config_digest
    del index["manifests"][["amd64", "arm64", "s390x"].index(making.this_architecture())]
    registry.manifests["test/agent:others"] = json.dumps(index).encode()
    with pytest.raises(InputError, match="no image found"):
        await store.get("test/agent:others")


async def refused(store: ImageStore, registry: Registry, image: Blobs, match: str) -> None:
    registry.add("test/bad", image)
    with pytest.raises(InputError, match=match) as caught:
        await store.get("test/bad")
    assert caught.value.field == "runtime.image"


async def test_what_can_never_be_mounted_is_the_tasks_fault(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    wrong = f"sha256:{'0' * 64}"
    await refused(store, registry, making.image([BASE], diff_ids=[wrong]), "has the digest")
    await refused(store, registry, making.image([BASE], diff_ids=["sha256:../../../x"]), "other layers")
    await refused(store, registry, making.image([BASE], diff_ids=[]), "other layers")
    await refused(store, registry, making.image([{}] * 129), "129 layers")
    await refused(store, registry, making.image([BASE], architecture="mips"), "is for 'linux' on 'mips'")
    await refused(store, registry, making.image([BASE], {"Env": ["A=\0"]}), "environment")
    await refused(store, registry, making.image([BASE], {"Env": [f"A={'x' * 200_000}"]}), "environment")
    await refused(store, registry, making.image([BASE], {"User": "x" * 1000}), "user")
    assert everything(tmp_path) == set()


async def test_layers_at_other_urls_are_not_asked_for(store: ImageStore, registry: Registry) -> None:
    made = making.image([BASE])
    manifest = json.loads(made.manifest)
    url = f"http://127.0.0.1:{registry.port}/elsewhere"
    manifest["layers"][0] |= {"mediaType": making.FOREIGN_LAYER, "urls": [url]}
    await refused(
        store, registry, dataclasses.replace(made, manifest=json.dumps(manifest).encode()), "has (a|the) layer"
    )
    assert not registry.asked_for("elsewhere")


async def test_a_limit_on_what_is_unpacked_holds_for_all_layers(
    store: ImageStore, registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(layers.Budget.__init__, "__defaults__", (1500, 100))
    await refused(
        store, registry, making.image([{"a": bytes(1000)}, {"b": bytes(1000)}]), "more than 500 bytes unpacked"
    )
    assert not list((tmp_path / "images/work").iterdir())


async def test_a_limit_on_what_is_fetched_holds(
    store: ImageStore, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FETCHED_BYTES", 10_000)
    made = making.image([{"a": os.urandom(100_000)}])
    registry.hold.update(made.blobs)
    await refused(store, registry, made, "compressed layers")


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_what_a_registry_refuses_is_the_tasks_fault(store: ImageStore, registry: Registry, status: int) -> None:
    registry.status["/manifests/"] = status
    with pytest.raises(InputError, match=r"runtime\.image: can't be had from docker://127.0.0.1"):
        await store.get("test/agent")


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("where", ["/manifests/", "/blobs/"])
async def test_a_registry_in_trouble_is_asked_again(
    store: ImageStore, registry: Registry, tmp_path: Path, status: int, where: str
) -> None:
    registry.add("test/agent", making.image([BASE]))
    registry.status[where] = status
    with pytest.raises(SandboxError) as caught:
        await store.get("test/agent")
    assert caught.value.code == IMAGE_UNAVAILABLE
    assert everything(tmp_path) == set()
    registry.status.clear()
    assert (await store.get("test/agent")).shell == "/bin/sh"


@pytest.mark.parametrize("fault", ["cut", "corrupt"])
async def test_a_damaged_blob_is_fetched_again(
    store: ImageStore, registry: Registry, tmp_path: Path, fault: str
) -> None:
    made = making.image([{"a": os.urandom(100_000)}])
    registry.add("test/agent", made)
    layer = json.loads(made.manifest)["layers"][0]["digest"]
    if fault == "cut":
        registry.cut.add(layer)
    else:
        registry.blobs[layer] = made.blobs[layer][:-1] + b"?"
    with pytest.raises(SandboxError) as caught:
        await store.get("test/agent")
    assert caught.value.code == IMAGE_UNAVAILABLE
    assert everything(tmp_path) == set()
    registry.cut.clear()
    registry.add("test/agent", made)
    await store.get("test/agent")


async def test_a_registry_that_is_down_is_asked_again(tmp_path: Path) -> None:
    with serving() as registry:
        store = store_of(tmp_path, registry)
    with pytest.raises(SandboxError, match="connection refused"):
        await store.get("test/agent")


async def test_a_host_without_skopeo_says_how_to_get_it(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError, match="apt-get install skopeo"):
        await store.get("test/agent")


async def test_skopeo_gets_no_variables_of_polar(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin/skopeo"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nenv >{tmp_path}/env\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("POLAR_KAFKA_SASL_PASSWORD", "secret")
    with pytest.raises(SandboxError):
        await store.get("test/agent")
    variables = (tmp_path / "env").read_text()
    assert "TMPDIR=tmp" in variables
    assert "secret" not in variables


async def test_cancellation_ends_skopeo_and_the_next_who_waits_pulls(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    made = making.image([{"a": os.urandom(100_000)}])
    registry.add("test/agent", made)
    registry.hold.update(made.blobs)
    first = asyncio.create_task(store.get("test/agent"))
    await eventually(registry.held.is_set, END_S)
    second = asyncio.create_task(store.get("test/agent"))
    registry.hold.clear()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    image = await second
    assert image.digest == made.config_digest
    assert not children_of(registry.port)
    assert not list((tmp_path / "images/work").iterdir())


PULL = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from consumers.runtimes.images.store import ImageStore
asyncio.run(ImageStore(Path(sys.argv[2]), {"test/*": sys.argv[3]}, trusts_tasks=False).get("test/agent"))
"""


def pulling(folder: Path, registry: Registry) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PULL, str(ROOT), str(folder / "images"), registry.source("test/*")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("moment", ["fetching", "unpacking"])
async def test_a_killed_process_leaves_nothing_half(
    store: ImageStore, registry: Registry, tmp_path: Path, moment: str
) -> None:
    made = making.image([BASE, {f"{number % 50}/{number}": b"x" for number in range(4000)}])
    registry.add("test/agent", made)
    big = json.loads(made.manifest)["layers"][1]["digest"]
    if moment == "fetching":
        registry.hold.add(big)
    process = pulling(tmp_path, registry)
    name = made.diff_ids[1].removeprefix("sha256:")

    def is_there() -> bool:
        if moment == "fetching":
            return registry.held.is_set()
        return any(True for _ in (tmp_path / "images/work").glob(f"*/{name}/*/*"))

    await asyncio.to_thread(until, is_there, END_S, every_s=0.005)
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    assert not (tmp_path / "images/layers" / name).exists()
    assert not list((tmp_path / "images/names").iterdir())
    await eventually(lambda: not [line for line in command_lines() if str(tmp_path) in line], END_S)
    await eventually(lambda: not children_of(registry.port), END_S)
    (left,) = (tmp_path / "images/work").iterdir()
    registry.hold.clear()
    image = await store.get("test/agent")
    assert len(list(image.layers[1].glob("*/*"))) == 4000
    assert not left.exists()


async def test_a_pull_under_way_elsewhere_is_not_taken_for_a_dead_one(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    slow, quick = making.image([{"a": os.urandom(100_000)}]), making.image([TOP])
    registry.add("test/agent", slow)
    registry.add("test/quick", quick)
    registry.hold.add(json.loads(slow.manifest)["layers"][0]["digest"])
    process = pulling(tmp_path, registry)
    await eventually(registry.held.is_set, END_S)
    await store.get("test/quick")
    registry.released.set()
    assert await asyncio.to_thread(process.wait) == 0
    assert store.known(slow.config_digest).digest == slow.config_digest


async def test_an_image_that_lacks_a_layer_is_gone_until_it_is_pulled_again(
    store: ImageStore, registry: Registry
) -> None:
    registry.add("test/agent", making.image([BASE, TOP]))
    image = await store.get("test/agent")
    shutil.rmtree(image.layers[0])
    with pytest.raises(SandboxError) as caught:
        store.known(image.digest)
    assert caught.value.code == "runtime_gone"
    assert await store.get("test/agent") == image
    assert store.known(image.digest) == image


@pytest.mark.parametrize("digest", ["", "sha256:", f"sha256:{'0' * 64}", "sha256:../../etc/passwd", "x" * 1000])
def test_an_unknown_digest_is_gone(store: ImageStore, digest: str) -> None:
    with pytest.raises(SandboxError) as caught:
        store.known(digest)
    assert caught.value.code == "runtime_gone"


async def test_programs_of_this_host_run_in_an_image_of_them(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    registry.add("test/host", making.image([making.host_layer()]))
    image = await store.get("test/host")
    assert image.shell == "/bin/bash"
    command = ["unshare", "-Ur", "chroot", str(image.layers[0]), "/bin/bash", "-c", "cat /etc/passwd; ls /usr/bin/sh"]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    if "unshare" in ended.stderr:
        pytest.skip(f"no user namespaces here: {ended.stderr}")
    assert ended.stdout == "root:x:0:0:root:/root:/bin/bash\n/usr/bin/sh\n", ended.stderr
