"""What a cell shows of this host, as bubblewrap's options and as mounts for `enter.py`. Pure, except for a look at the host's root.

Inside a cell without an image: the host's `/usr` and named folders, read-only; an `/etc` of a few files; `/workspace`, `/home/agent` and
`/tmp`, which belong to the session. In every cell: `/proc` of the cell's own processes; `/dev` without devices of the host. The programs
are one user (1000 without an image), without capabilities, and make no user namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from consumers.runtimes.cell.enter import Mount
from topics.types import runtime

WORKSPACE = PurePosixPath("/workspace")
HOME = PurePosixPath(runtime.HOME)
TMP = PurePosixPath(runtime.TMP)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Folders of programs, where nothing else says which."""
USER = "agent"
USER_ID = 1000
SHARED_MEMORY = 1 << 30
"""Bytes of /dev/shm, which is memory: enough for what browsers and PyTorch's loaders keep there."""
SCRATCH = 64 << 20
"""Bytes of /run, which holds sockets and pid files."""

ROOT_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on merged systems, folders on others."""
FOLDERS = ("/etc", "/proc", "/dev", "/run", "/var")
"""What the root holds for others to fill."""
ETC = (
    *("alternatives", "ca-certificates", "ssl", "pki", "crypto-policies"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "services", "protocols"),
)
"""Entries of the host's /etc that programs need and that name nobody: links of commands, certificates, the loader's list."""
FILES: Mapping[str, str] = {
    "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{USER_ID}:{USER_ID}:agent:{HOME}:/bin/bash\n",
    "/etc/group": f"root:x:0:\n{USER}:x:{USER_ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost cell\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True)
class Overlay:
    """Where changes to a folder go that itself stays as it is. `work`: an empty folder on the same file system as `upper`."""

    upper: Path
    work: Path


def mount(
    source: Path | tuple[Path, ...],
    inside: PurePosixPath | Path,
    *,
    writable: bool = False,
    overlay: Overlay | None = None,
    over_image: bool = False,
) -> Mount:
    """One mount, as `enter` takes it. An overlay may have several sources, of which the first is the highest, or none."""
    upper, work = (str(overlay.upper), str(overlay.work)) if overlay else ("", "")
    return Mount(
        sources=[str(path) for path in (source if isinstance(source, tuple) else (source,))],
        inside=str(inside),
        writable=writable,
        covered=any(Path(inside).is_relative_to(top) and Path(inside) != Path(top) for top in (WORKSPACE, HOME, TMP)),
        upper=upper,
        work=work,
        over_image=over_image,
    )


def programs() -> tuple[list[str], dict[str, str]]:
    """The host's folders that hold programs, and links in the root to them."""
    folders, links = ["/usr"], {}
    for name in ROOT_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            links[str(path)] = str(path.readlink())
        elif path.is_dir():
            folders.append(str(path))
    return folders, links


def system() -> tuple[list[Mount], dict[str, str]]:
    """The mounts and links that show this host's programs."""
    folders, links = programs()
    mounts = [mount(Path(folder), Path(folder)) for folder in folders]
    mounts += [mount(path, path) for name in ETC if (path := Path("/etc", name)).exists()]
    return mounts, links | {"/var/tmp": str(TMP)}  # noqa: S108 - the cell's own


def resolver() -> list[Mount]:
    """The mount that makes names of the network known, for a cell with the host's network."""
    path = Path("/etc/resolv.conf")
    return [mount(path.resolve(), path)] if path.exists() else []


def tools(paths: Iterable[Path]) -> list[Mount]:
    """Mounts of folders that programs need, at the same paths; none for what `/usr` holds, or another of them."""
    found: list[Path] = []
    for path in sorted(set(paths)):
        if not path.is_relative_to("/usr") and not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return [mount(path, path) for path in found]


def options(
    environment: Mapping[str, str], cwd: PurePosixPath, user_id: int = USER_ID, devices: Iterable[str] = ()
) -> list[str]:
    """Bubblewrap's options for namespaces, system folders and what the program gets. They travel through a descriptor, so they may hold
    secrets. `user_id`: inside. `devices`: files of the host's /dev. ValueError for a zero byte."""
    chosen = [
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--uid", str(user_id), "--gid", str(user_id), "--hostname", "cell"),
        # Covers bubblewrap's own process, which runs inside as the same user: its memory could be written there, see `seccomp.py`.
        *("--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"),
        # Its files ask only for the user: a worker that is root without capabilities would give its programs the host's settings.
        *("--ro-bind", "/proc/sys", "/proc/sys"),
        *(
            "--dev",
            "/dev",
            *(word for device in devices for word in ("--dev-bind", device, device)),
            "--remount-ro",
            "/dev",
        ),
        *("--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm"),  # noqa: S108 - the cell's own
        *("--size", str(SCRATCH), "--tmpfs", "/run"),
        *("--chdir", str(cwd)),
    ]
    for name, value in environment.items():
        chosen += ["--setenv", name, value]
    _refuse_zero_bytes(chosen)
    return chosen


def _refuse_zero_bytes(texts: Sequence[str]) -> None:
    # They separate the options.
    for text in texts:
        if "\0" in text:
            raise ValueError(f"holds a zero byte: {text!r:.200}")
