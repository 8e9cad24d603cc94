"""The toolbox: a folder with a Python that runs in any container of this host's architecture, and with the code that it runs there.

It holds copies of what a process of the worker's own Python has loaded once it has imported the keeper: the interpreter, its modules, and
all shared libraries with the loader that ties them together. The loader is called by its path, so nothing of the image is used, be its C
library another one, or none. It is mounted read-only, so the modules are compiled here: otherwise each container would compile them all,
which takes longer than the rest of the keeper's start. About 40 MB.
"""

from __future__ import annotations

import encodings
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

from consumers.runtimes.container.keeper import PLACE
from topics.environment import cache
from topics.types.errors import NotReadyError

_PACKAGES = Path(__file__).parents[3]
_KEEPER = "consumers.runtimes.container.keeper"
_LOADED = f"""
import json, sys
sys.path.append(sys.argv[1])
import {_KEEPER}
files = [getattr(module, "__file__", None) for module in sys.modules.values()]
print(json.dumps([[file for file in files if file], open("/proc/self/maps").read()]))
"""
_LOADERS = ("ld-linux", "ld64", "ld-musl", "ld.so", "ld-2")
"""How the names of dynamic loaders begin, on all architectures."""
_START_S = 30.0
_IMAGES_OWN = ("/", "/usr", "/usr/local")
"""Folders that an image has itself, so the worker's can't be mounted there."""


def host_tools() -> list[str]:
    """The folders of this host that programs may need: the worker's Python, which CLIs run on, and the cache that the CLIs lie in."""
    wanted = {sys.prefix, sys.base_prefix, str(cache.root())} - set(_IMAGES_OWN)
    return sorted(folder for folder in wanted if Path(folder).is_dir())


class Toolbox:
    """The toolbox of this worker's Python, below `root`; made at the first use, for all workers of the host."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder: Path | None = None
        self._loader = ""
        self._making = threading.Lock()

    def folder(self) -> Path:
        """The folder, whole. Blocks. Raises NotReadyError."""
        with self._making:
            if self._folder is None:
                self._folder = self._found()
            return self._folder

    def _found(self) -> Path:
        files, libraries = _loaded()
        folder = self._root / f".toolbox-{_digest([*files, *libraries, Path(__file__)])}"
        self._loader = next((path.name for path in libraries if path.name.startswith(_LOADERS)), "")
        if not self._loader:
            raise NotReadyError(f"containers need a Python with shared libraries; {sys.executable} has none")
        if not folder.is_dir():
            self._make(folder, files, libraries)
        return folder

    def command(self) -> list[str]:
        """The command that the container runs. Call `folder` first."""
        return [
            *(f"{PLACE}/tools/lib/{self._loader}", "--library-path", f"{PLACE}/tools/lib"),
            *(f"{PLACE}/tools/bin/python3", "-I", "-S", "-c"),
            f"import sys; sys.path.append('{PLACE}/tools/code'); from {_KEEPER} import main; main()",
        ]

    def _make(self, folder: Path, files: list[Path], libraries: list[Path]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".toolbox-", dir=self._root) as made:
            top = Path(made) / "tools"
            standard = Path(sysconfig.get_path("stdlib"))
            inside = top / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
            (top / "bin").mkdir(parents=True)
            shutil.copy2(os.path.realpath(sys.executable), top / "bin" / "python3")
            (inside / "lib-dynload").mkdir(parents=True)
            for library in libraries:
                shutil.copy2(library, top / "lib" / library.name)
                for name in _names(library.name):
                    (top / "lib" / name).symlink_to(library.name)
            for file in files:
                if file.is_relative_to(_PACKAGES):
                    place = top / "code" / file.relative_to(_PACKAGES)
                elif file.suffix == ".so":
                    place = inside / "lib-dynload" / file.name
                else:
                    place = inside / file.relative_to(standard)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, place)
                if place.suffix == ".py":
                    _compile(place)
            for path in (top, *top.rglob("*")):
                path.chmod(0o755 if path.is_dir() or path.parent.name in ("bin", "lib") else 0o644)
            try:
                top.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another worker was faster
                    raise


def _compile(module: Path) -> None:
    """Compile a module for the interpreter of the toolbox, which takes the result without a look at the source."""
    compiled = module.parent / "__pycache__" / f"{module.stem}.{sys.implementation.cache_tag}.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    # Whatever this worker's own interpreter was started with: another place for compiled modules, or optimisation.
    py_compile.compile(str(module), str(compiled), doraise=True, optimize=0, invalidation_mode=unchecked)


def _loaded() -> tuple[list[Path], list[Path]]:
    """The modules' files, and the shared libraries that aren't modules."""
    argv = [sys.executable, "-I", "-S", "-c", _LOADED, str(_PACKAGES)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=_START_S, check=False)
    if ended.returncode != 0:
        raise NotReadyError(f"{sys.executable} can't load the keeper of containers: {ended.stderr}")
    modules, maps = json.loads(ended.stdout)
    files = {Path(file) for file in modules}
    files |= set(Path(str(encodings.__file__)).parent.glob("*.py"))
    files.add(Path(str(os.__file__)))
    mapped = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if ".so" in line}
    return sorted(files), sorted(path for path in mapped if path not in files and path.is_file())


def _names(library: str) -> list[str]:
    """The names by which others may ask for a library: its file's name without the end of its version."""
    stem, _, version = library.partition(".so.")
    parts = version.split(".") if version else []
    return [".".join((f"{stem}.so", *parts[:count])) for count in range(len(parts))]


def _digest(paths: list[Path]) -> str:
    hashed = hashlib.sha256(sys.version.encode())
    for path in paths:
        found = path.stat()
        hashed.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return hashed.hexdigest()[:16]
