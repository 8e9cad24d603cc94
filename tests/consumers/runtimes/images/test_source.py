"""Names of images in tasks, and what they stand for on a worker."""

from __future__ import annotations

import string

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from consumers.runtimes.images import source
from consumers.runtimes.images.source import Source, resolve
from topics.types.errors import InputError

DIGEST = f"sha256:{'0a' * 32}"
NAMES = {
    "mine": "oci:/images/mine:v1",
    "plain": "http://127.0.0.1:5000/agent:1",
    "swe/*": "registry.internal:5000/swe/*",
    "swe/local/*": "docker-archive:/images/*",
    "python:3.12": "docker://mirror.internal/python:3.12",
    "lab/*": "http://10.0.0.1/lab/*",
}


@pytest.mark.parametrize(
    ("name", "location"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/python", "docker.io/library/python:latest"),
        ("swebench/sweb.eval.x86_64.a_1776_b-1:v1", "docker.io/swebench/sweb.eval.x86_64.a_1776_b-1:v1"),
        ("ghcr.io/a/b/c:v1", "ghcr.io/a/b/c:v1"),
        (f"ghcr.io/a/b:v1@{DIGEST}", f"ghcr.io/a/b@{DIGEST}"),
        ("europe-docker.pkg.dev/p/r/i:t", "europe-docker.pkg.dev/p/r/i:t"),
    ],
)
def test_a_name_without_an_entry_is_completed_as_docker_does(name: str, location: str) -> None:
    assert resolve(name, {}, trusts_tasks=False) == Source(f"docker://{location}")


@pytest.mark.parametrize(
    "name",
    [
        *("localhost/a", "localhost:5000/a", "10.0.0.1/a", "registry.internal/a", "ghcr.io:8080/a/b", "GHCR.IO/a/b"),
        *("evilghcr.io/a", "pkg.dev/a", "docker.io.evil.org/a", "[::1]:5000/a"),
    ],
)
def test_another_registry_needs_trust_or_an_entry(name: str) -> None:
    with pytest.raises(InputError, match=r"add the name to \[images\]"):
        resolve(name, {}, trusts_tasks=False)
    assert resolve(name, {}, trusts_tasks=True).location.startswith("docker://")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            " ",
            "-v",
            "--policy=x",
            "python -v",
            "python\n",
            "python:",
            "python@",
            "python:3.12@sha256:00",
            "Python",
        ),
        *("/etc", "oci:/etc", "docker-archive:/etc/shadow", "dir:/etc", "docker://python", "docker://-x", "http://h/a"),
        *("../x", "a/../b", "a//b", "a/", "https://docker.io/a", "a:" + "b" * 129, "a" * 300, "0a" * 32, "ghcr.io/-x"),
        *("docker-daemon:a:b", "ghcr.io/a\0", "ghcr.io/ä", "ghcr.io/a?b", "docker.io/a:b@c"),
    ],
)
@pytest.mark.parametrize("trusts_tasks", [False, True])
def test_paths_options_and_other_texts_are_refused(name: str, trusts_tasks: bool) -> None:
    with pytest.raises(InputError, match=r"runtime\.image"):
        resolve(name, {}, trusts_tasks=trusts_tasks)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mine", Source("oci:/images/mine:v1", is_path=True)),
        ("plain", Source("docker://127.0.0.1:5000/agent:1", has_tls=False)),
        ("python:3.12", Source("docker://mirror.internal/python:3.12")),
        ("python:3.11", Source("docker://docker.io/library/python:3.11")),
        ("swe/a:1", Source("docker://registry.internal:5000/swe/a:1")),
        ("swe/a/b", Source("docker://registry.internal:5000/swe/a/b:latest")),
        ("swe/local/a.tar", Source("docker-archive:/images/a.tar", is_path=True)),
        ("lab/x", Source("docker://10.0.0.1/lab/x:latest", has_tls=False)),
    ],
)
def test_an_entry_decides_the_longest_first(name: str, found: Source) -> None:
    assert resolve(name, NAMES, trusts_tasks=False) == found


@pytest.mark.parametrize("name", ["swe/../x", "swe/-x", "swe/", "swe/local/../../etc/x", f"swe/local/a@{DIGEST}"])
def test_what_stands_for_the_star_is_as_strict(name: str) -> None:
    with pytest.raises(InputError, match=r"runtime\.image"):
        resolve(name, NAMES, trusts_tasks=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("a/*", "oci:/images/a"), ("a", "oci:/images/*"), ("a", "oci:images"), ("a", "-x"), ("a", "http:///x")),
        *(("a", "http://h"), ("a", "oci:/a b"), ("a", ""), ("a", "dir:/x"), ("a/*", "/*"), ("a", "https://h/x")),
    ],
)
def test_an_entry_that_no_name_could_use_is_reported_by_its_key(key: str, value: str) -> None:
    with pytest.raises(InputError, match=r"polar\.toml: images\.a"):
        source.check({key: value})


def test_the_entries_above_are_usable() -> None:
    source.check(NAMES)


texts = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="aA0.:/@-_* \n\0[]", max_size=40),
    st.tuples(
        st.sampled_from(
            ["", "docker.io/", "localhost/", "10.0.0.1:80/", "swe/", "lab/", "swe/local/", "docker://", "oci:"]
        ),
        st.text(alphabet=string.ascii_lowercase + "0.:/@-_", max_size=30),
    ).map("".join),
)


@given(texts, st.booleans())
@example("swe/local/..", False)
def test_no_name_becomes_an_option_or_leaves_where_an_entry_leads(name: str, trusts_tasks: bool) -> None:
    try:
        found = resolve(name, NAMES, trusts_tasks=trusts_tasks)
    except InputError:
        return
    transport, _, rest = found.location.partition(":")
    assert not rest.startswith("-")
    assert not any(character.isspace() or character < " " for character in found.location)
    assert ".." not in rest.split("/")
    if found.is_path:
        assert transport in ("oci", "docker-archive")
        assert rest.startswith("/images/")
        return
    assert transport == "docker"
    domain = rest.removeprefix("//").partition("/")[0]
    if not trusts_tasks:
        assert domain in source.PUBLIC | {
            "127.0.0.1:5000",
            "registry.internal:5000",
            "mirror.internal",
            "10.0.0.1",
        } or (domain.endswith(".pkg.dev"))


@given(texts)
def test_a_completed_name_stands_for_itself(name: str) -> None:
    try:
        found = resolve(name, {}, trusts_tasks=True)
    except InputError:
        return
    assert resolve(found.location.removeprefix("docker://"), {}, trusts_tasks=True) == found
