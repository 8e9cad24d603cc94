"""Files that a run leaves steer no test runner: each attack here got the reward 1.0 without a right fix."""

from __future__ import annotations

import itertools
import py_compile
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import iniconfig
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.evaluators import protection
from consumers.evaluators.base import Case, Verdict
from consumers.evaluators.test_on_output import TestOnOutput
from consumers.runtimes.base import Exec, Labels, RuntimeBackend
from topics.types.errors import InputError
from topics.types.runtime import RuntimeSpec
from topics.types.session import Status

Files = Mapping[str, str | bytes]

WRONG, RIGHT = "def double(x):\n    return x\n", "def double(x):\n    return 2 * x\n"
TESTS = "import sums\n\ndef test_double():\n    assert sums.double(4) == 8\n"
PREPARED: Files = {"sums.py": WRONG, "pyproject.toml": '[project]\nname = "sums"\nversion = "1"\n'}
BROUGHT: Files = {"tests/test_sums.py": TESTS}
COMMAND = "python -m pytest --junitxml={report}"
CHEAT = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome = "passed"
    report.longrepr = None
"""
"""For pytest."""
PATCH = "import builtins, sys\nsys.modules['sums'] = type(sys)('sums')\nsys.modules['sums'].double = lambda x: 8\n"
"""For any code that runs before the tests do."""
HIDE = f"""{PATCH}
import importlib
name, own = __name__, sys.path.pop(0)
del sys.modules[name]
found = importlib.import_module(name)
sys.path.insert(0, own)
"""
"""In the place of a module of the standard library, which it loads then."""
POSE = """\
import os, sys
open(os.environ['POLAR_REPORT'], 'w').write(
    '<testsuite tests="1"><testcase classname="tests.test_sums" name="test_double"/></testsuite>')
os._exit(0)
"""
"""In the test runner's place."""
NUMBERS = itertools.count()

pytestmark = pytest.mark.contract


async def judged(
    backend: RuntimeBackend, prepared: Files, left: Files, script: str = "", brought: Files = BROUGHT, **more: object
) -> Verdict:
    """The verdict on a session, as its stages come to it. `left`, then `script`: what the run did."""
    settings = {"test_command": COMMAND, "report": "junit.xml"} | more
    env = settings.pop("env", {})
    assert isinstance(env, dict)
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env}  # those of our own suite take a second to load
    claim = f"protected-{next(NUMBERS)}"
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    try:
        evaluator = TestOnOutput(settings)
        for name, data in prepared.items():
            await made.write_file(name, data if isinstance(data, bytes) else data.encode())
        await evaluator.keep(made)
        run = await backend.attach(made.handle, f"{claim}-run", RuntimeSpec())
        for name, data in left.items():
            await run.write_file(name, data if isinstance(data, bytes) else data.encode())
        if script:
            assert (await run.exec(Exec(script))).exit_code == 0
        fresh = await backend.attach(made.handle, f"{claim}-evaluation", RuntimeSpec(), fresh=True)
        if (reason := await evaluator.restore(fresh)) is not None:
            return Verdict(0.0, reason=reason)
        for name, data in brought.items():
            await fresh.write_file(name, data if isinstance(data, bytes) else data.encode())
        return await evaluator.evaluate(Case(fresh, "task.0", Status.COMPLETED, 0, None, env))
    finally:
        await made.remove()


def compiled(code: str, folder: Path) -> bytes:
    """A module that Python runs without a look at its source."""
    source, target = folder / "source.py", folder / "target.pyc"
    source.write_text(code)
    py_compile.compile(str(source), str(target), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return target.read_bytes()


@pytest.mark.parametrize(
    ("left", "more"),
    [
        pytest.param({"conftest.py": CHEAT}, {}, id="conftest"),
        pytest.param({"tests/conftest.py": CHEAT}, {}, id="conftest beside the tests"),
        pytest.param({"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": CHEAT}, {}, id="pytest.ini"),
        pytest.param({"tox.ini": "[pytest]\naddopts = -p evil\n", "evil.py": CHEAT}, {}, id="tox.ini"),
        pytest.param({"setup.cfg": "[tool:pytest]\naddopts = -p evil\n", "evil.py": CHEAT}, {}, id="setup.cfg"),
        pytest.param(
            {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p evil"\n', "evil.py": CHEAT},
            {},
            id="pyproject.toml",
        ),
        pytest.param(
            {
                "evil-1.0.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
                "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
                "evil.py": CHEAT,
            },
            {"env": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}},
            id="a plug-in by its metadata",
        ),
        pytest.param(
            {"pytest_timeout.py": CHEAT}, {"env": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}}, id="a plug-in's module"
        ),
        pytest.param({"pytest/__init__.py": "", "pytest/__main__.py": POSE}, {}, id="a package in pytest's place"),
        pytest.param({"json.py": HIDE}, {}, id="a module of the standard library"),
        pytest.param({"__init__.py": "", "json.py": HIDE}, {}, id="the same in a folder that became a package"),
        pytest.param({"json/__init__.py": HIDE}, {}, id="a package of the standard library"),
        pytest.param({"usercustomize.py": PATCH}, {"env": {"PYTHONPATH": "."}}, id="usercustomize"),
        pytest.param({"sitecustomize.py": PATCH}, {"env": {"PYTHONPATH": "."}}, id="sitecustomize"),
        pytest.param(
            {"pytest": f"#!{sys.executable}\n{POSE}"},
            {"test_command": "PYTHONPATH=. pytest --junitxml={report}"},
            id="PATH",
        ),
        pytest.param({"tests/helper.py": "ANSWER = 4\n"}, {"protected": ["tests"]}, id="a protected path"),
    ],
)
async def test_what_a_run_leaves_steers_no_runner(
    backend: RuntimeBackend, left: Files, more: dict[str, object]
) -> None:
    prepared = {**PREPARED, "tests/helper.py": "ANSWER = 8\n"}
    tests = "import sums\nfrom helper import ANSWER\n\ndef test_double():\n    assert sums.double(4) == ANSWER\n"
    script = (
        "chmod +x pytest 2>/dev/null; mkdir -p ~/.local/bin ~/bin; cp -r pytest ~/bin; cp -r pytest ~/.local/bin; true"
    )
    verdict = await judged(backend, prepared, left, script, {"tests/test_sums.py": tests}, **more)
    assert (verdict.reward, "test_double" in (verdict.reason or "")) == (0.0, True), verdict
    unprotected = await judged(
        backend, prepared, left, script, {"tests/test_sums.py": tests}, **{**more, "protected": False}
    )
    # In a cell PATH leads to no folder of the run; and in a virtual environment Python has no usercustomize.
    assert unprotected.reward == (0.0 if "pytest" in left or "usercustomize.py" in left else 1.0)


async def test_a_link_into_a_repository_hides_no_file(backend: RuntimeBackend) -> None:
    """pytest follows it, and the search for files that steer pytest must not stop at `.git`."""
    prepared = {**PREPARED, "tests/helper.py": "ANSWER = 8\n"}
    left = {".git/evil/conftest.py": CHEAT}
    script = "rm -r tests; ln -s .git/evil tests"
    assert (await judged(backend, prepared, left, script)).reward == 0.0
    assert (await judged(backend, prepared, left, script, protected=False)).reward == 1.0


async def test_a_compiled_module_does_not_run_in_its_sources_place(backend: RuntimeBackend, tmp_path: Path) -> None:
    tag = sys.implementation.cache_tag
    left = {f"tests/__pycache__/helper.{tag}.pyc": compiled("ANSWER = 4\n", tmp_path)}
    tests = "import sums\nfrom helper import ANSWER\n\ndef test_double():\n    assert sums.double(4) == ANSWER\n"
    brought = {"tests/test_sums.py": tests, "tests/helper.py": "ANSWER = 8\n"}
    assert (await judged(backend, PREPARED, left, brought=brought)).reward == 0.0
    assert (await judged(backend, PREPARED, left, brought=brought, protected=False)).reward == 1.0


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("rm conftest.py", id="removed"),
        pytest.param("rm conftest.py; mkdir conftest.py", id="a folder"),
        pytest.param("mv conftest.py elsewhere.py; ln -s elsewhere.py conftest.py", id="a link"),
        pytest.param("echo 'raise SystemExit(3)' >conftest.py", id="changed"),
        pytest.param("rm -rf ~/.polar; echo nothing >~/.polar", id="the store of the run's own home"),
    ],
)
async def test_an_honest_run_is_judged_with_the_files_that_were_prepared(backend: RuntimeBackend, script: str) -> None:
    """Its own modules, and what it changed of a project's settings besides pytest's, stay."""
    prepared: Files = {
        "sums.py": WRONG,
        "conftest.py": "import pytest\n\n@pytest.fixture\ndef answer():\n    return 8\n",
        "pyproject.toml": '[project]\nname = "sums"\nversion = "1"\n[tool.pytest.ini_options]\ntestpaths = ["tests"]\n',
        "src/queue.py": "LENGTH = 3\n",
    }
    left: Files = {
        "sums.py": "from new.types import TWO\n\ndef double(x):\n    return TWO * x\n",
        "new/__init__.py": "",
        "new/types.py": "TWO = 2\n",
        "pyproject.toml": str(prepared["pyproject.toml"]).replace('version = "1"', 'version = "2"'),
    }
    tests = """
import pathlib, sums, tomllib

def test_double(answer):
    assert sums.double(4) == answer
    assert tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["version"] == "2"
    assert pathlib.Path("src/queue.py").exists()
"""
    verdict = await judged(backend, prepared, left, script, {"tests/test_sums.py": tests})
    assert verdict.reward == 1.0, (verdict.reason, verdict.artifacts)


async def test_files_that_can_not_be_listed_are_worth_0(backend: RuntimeBackend) -> None:
    verdict = await judged(backend, PREPARED, {"sums.py": RIGHT, "hidden/conftest.py": CHEAT}, "chmod 0 hidden")
    assert (verdict.reward, "can't be listed" in (verdict.reason or "")) == (0.0, True)


@pytest.mark.parametrize("value", ["tests", True, [""], ["."], ["/etc"], ["a/../../b"], ["a\0"], [3], {"a": 1}])
def test_a_bad_setting_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"evaluator\.config.protected: must be false, or a list of paths"):
        TestOnOutput({"test_command": "true", "protected": value})


async def test_protected_files_that_are_too_large_are_refused_at_once(backend: RuntimeBackend) -> None:
    with pytest.raises(InputError, match=r"evaluator\.config.protected: the protected files can't be stored"):
        await judged(backend, {"data/large": b"x" * 17 * 1024 * 1024}, {}, protected=["data"])


LINES = st.lists(
    st.sampled_from(
        [
            "[pytest]",
            "[tool:pytest]",
            " [pytest]",
            "[pytest] # x",
            "[other]",
            "[",
            "[dummy",
            "[dummy\r x]",
            "  slow: x\x0c[other]",
            "[a;b]",
            "[c] # x",
            "addopts = -p evil",
            "  more",
            "x = 1",
            "",
            "# x",
            "; x",
            "]",
        ]
    ),
    max_size=8,
).map("\n".join)


@given(LINES, LINES)
@example("[tool:pytest]\nmarkers =\n  slow: x", "[tool:pytest]\nmarkers =\n  slow: x\n\n[dummy\naddopts = -p evil")
@example("[tool:pytest]\nmarkers =\n  slow: x", "[tool:pytest]\nmarkers =\n  slow: x\n[dummy\r x]\naddopts = -p evil")
def test_ini_files_whose_settings_differ_for_pytest_differ_for_us(one: str, other: str) -> None:
    def read(text: str) -> object:
        try:
            found = iniconfig.IniConfig("setup.cfg", data=text)
        except iniconfig.ParseError:
            return text  # pytest refuses the file
        return {name: dict(found[name].items()) for name in ("pytest", "tool:pytest") if name in found}

    if protection._settings("setup.cfg", one.encode()) == protection._settings("setup.cfg", other.encode()):
        first, second = read(one), read(other)
        assert first == second or isinstance(first, str) or isinstance(second, str)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("setup.cfg", "[" * 40_000),
        ("tox.ini", "[" + "]" * 40_000 + "x"),
        ("pyproject.toml", "a." * 12_000 + "a = 1"),
        ("pyproject.toml", "".join(f"[k{number}{'.a' * 99}]\nx=1\n" for number in range(1200))),
    ],
)
def test_settings_are_compared_in_linear_time(name: str, content: str) -> None:
    """The run shapes them, and nothing else of the worker's process would work meanwhile."""
    began = time.process_time()
    protection._settings(name, content.encode())
    assert time.process_time() - began < 6.0
