"""A stand-in for Apptainer's program at the outer edge: it knows the lines that `command.py` makes, and nothing else.

A container is made by bubblewrap with the namespaces, mounts and overlays that the options ask for. A SIF file is a tar here. What is shown
with it is our side: how sessions, containers and evaluations follow one another. That Apptainer does what its options say is shown only by
the same tests on a real one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "1.4.0-stand-in"
ENVIRONMENT = "APPTAINERENV_"


def build(sif: Path, layout: Path) -> None:
    """Pack the layers of a layout, the lowest first."""
    blobs = layout / "blobs" / "sha256"

    def document(digest: str) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = json.loads((blobs / digest.removeprefix("sha256:")).read_bytes())
        return found

    index: dict[str, list[dict[str, str]]] = json.loads((layout / "index.json").read_bytes())
    with tempfile.TemporaryDirectory(dir=os.environ["APPTAINER_TMPDIR"]) as root:
        for layer in document(index["manifests"][0]["digest"])["layers"]:
            with gzip.open(blobs / layer["digest"].removeprefix("sha256:")) as data, tarfile.open(fileobj=data) as tar:
                tar.extractall(root, filter="tar")
        with tarfile.open(sif, "w") as made:
            made.add(root, ".")


def unpacked(sif: Path) -> Path:
    """The root file system of a SIF file."""
    root = sif.with_suffix(".root")
    if not root.is_dir():
        new = Path(tempfile.mkdtemp(dir=sif.parent))
        with tarfile.open(sif) as tar:
            tar.extractall(new, filter="tar")
        try:
            new.rename(root)
        except OSError:
            if not root.is_dir():  # otherwise another container was faster
                raise
    return root


def line_of(options: argparse.Namespace) -> list[str]:
    """The arguments of bubblewrap."""
    taken = {"home", "tmp", "cwd", "sys", "hostfs", "bind-paths"}
    flags = ("containall", "no_init", "no_privs", "no_eval", "no_umask")
    assert all(getattr(options, flag) for flag in flags)
    assert set(options.no_mount.split(",")) == taken
    assert options.network in (None, "none")
    assert options.net == (options.network is not None)
    sources = [str(unpacked(Path(options.image)))]
    top = ""
    for overlay in options.overlay:
        if overlay.endswith(":ro"):
            sources.append(f"{overlay.removesuffix(':ro')}/upper")
        else:
            top = overlay
            for name in ("upper", "work"):
                Path(top, name).mkdir(exist_ok=True)
    line = ["--unshare-pid", "--unshare-ipc", "--as-pid-1", "--cap-drop", "ALL", "--die-with-parent", "--clearenv"]
    line += ["--unshare-net"] if options.net else []
    for source in sources:
        line += ["--overlay-src", source]
    line += ["--overlay", f"{top}/upper", f"{top}/work", "/", "--proc", "/proc", "--dev", "/dev"]
    for mount in options.mount:
        kind, source, target, mode = mount.split(",")
        assert (kind, mode) == ("type=bind", "ro")
        line += ["--ro-bind", source.removeprefix("src="), target.removeprefix("dst=")]
    for name, value in os.environ.items():
        if name.startswith(ENVIRONMENT):
            line += ["--setenv", name.removeprefix(ENVIRONMENT), value]
    return [*line, "--chdir", options.pwd, *options.command]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--containall", "--no-init", "--no-privs", "--no-eval", "--no-umask", "--net"):
        made.add_argument(flag, action="store_true")
    for name in ("--no-mount", "--pwd", "--network"):
        made.add_argument(name)
    for name in ("--overlay", "--mount"):
        made.add_argument(name, action="append", default=[])
    made.add_argument("image")
    made.add_argument("command", nargs=argparse.REMAINDER)
    return made


def main(bubblewrap: str, arguments: list[str]) -> None:
    match arguments:
        case ["version"]:
            sys.stdout.write(f"{VERSION}\n")
        case ["--silent", "build", sif, source]:
            transport, layout = source.split(":")
            assert transport == "oci"
            build(Path(sif), Path(layout))
        case ["--silent", "exec", *rest]:
            # Its name shows that this process, as Apptainer's own, keeps nothing of its environment.
            line = line_of(parser().parse_args(rest))
            os.execve(bubblewrap, ["Apptainer runtime parent", *line], {})
        case _:
            sys.exit(f"no line of ours: {arguments}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
