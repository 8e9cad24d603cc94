"""`python -m consumers.harnesses.relock [HARNESS …]`: renew the locks of presets, after a change of a version (`make locks`).

A lock names every package of a CLI for all platforms, with the hashes of its archives. It has no address, so an installation takes them
from whatever registry is configured, and refuses an archive that differs. Needs the registries, and the package uv for PyPI's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from consumers.harnesses.cli import Cli
from consumers.harnesses.npm import NpmCli, npm
from consumers.harnesses.pypi import PypiCli
from topics.environment import registry

OLDEST_PYTHON = "3.11"
KEPT = frozenset(
    {"name", "version", "integrity", "bin", "optional", "os", "cpu", "libc", "engines"}
    | {"dependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta"}
)
"""The fields of a package that `npm ci` reads. The rest is for people, and has addresses."""


def main() -> None:
    for name in sys.argv[1:] or registry.names(registry.Kind.HARNESS):
        cli: Cli | None = getattr(registry.load(registry.Kind.HARNESS, name), "cli", None)
        if isinstance(cli, NpmCli):
            cli.lock.write_text(npm_lock(cli))
        elif isinstance(cli, PypiCli):
            cli.lock.write_text(pypi_lock(cli))


def npm_lock(cli: NpmCli) -> str:
    """The newest versions that the CLI accepts, as a `package-lock.json`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "package.json").write_text(json.dumps({"dependencies": {cli.package: cli.version}}))
        options = (
            "--package-lock-only",
            "--omit-lockfile-registry-resolved",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
        )
        subprocess.run(npm("install", "--prefix", folder, *options), check=True)
        lock = json.loads(Path(folder, "package-lock.json").read_text())
    missing = set()
    for package in lock["packages"].values():
        optional = package.get("optionalDependencies", {})
        absent = {
            name for name in optional if not any(path.endswith(f"node_modules/{name}") for path in lock["packages"])
        }
        package["optionalDependencies"] = {name: optional[name] for name in optional if name not in absent}
        missing |= absent
    if missing:  # npm leaves them out without a word, and `npm ci` then refuses a lock that names them as dependencies
        sys.stderr.write(f"{cli.name}: not in this registry, so not in the lock: {', '.join(sorted(missing))}\n")
    packages = {
        path: {key: value for key, value in package.items() if key in KEPT and value}
        for path, package in lock["packages"].items()
    }
    packages[""].pop("name", None)  # of the temporary folder
    return json.dumps({"lockfileVersion": lock["lockfileVersion"], "packages": packages}, indent=1) + "\n"


def pypi_lock(cli: PypiCli) -> str:
    """The newest versions that the CLI accepts, as requirements for every Python from the oldest on. Wheels only."""
    options = ("--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes", "--only-binary", ":all:")
    form = ("--no-header", "--no-annotate", "--quiet")
    requirements = "\n".join((f"{cli.package}=={cli.version}", *cli.beside))
    compiling = (sys.executable, "-m", "uv", "pip", "compile", "-", *options, *form)
    return subprocess.run(compiling, input=requirements, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
