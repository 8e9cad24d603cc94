"""The engine as a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from polar.scripted.__main__ import main
from tests.waiting import until

pytestmark = pytest.mark.contract


def test_it_says_what_it_is_writes_its_ready_file_and_stops_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "polar.scripted", "--port", "0", "--ready-file", str(ready), "--model", "m"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "not a model" in line
            until(lambda: ready.exists() or process.poll() is not None)
            assert process.poll() is None
            told = json.loads(ready.read_text())
            assert told["pid"] == process.pid
            assert told["url"] in line
            with urlopen(told["url"] + "/v1/models", timeout=10) as answer:
                assert json.load(answer)["data"][0]["id"] == "m"
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_a_bad_scripts_file_is_exit_code_2_and_its_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("name: 7")
    assert main(["--scripts", str(file)]) == 2
    assert f"{file}: Expected `str`, got `int` - at `$.name`; it has 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "70000"], "'70000' is not an integer from 0 to 65535"),
        (["--fault", '{"kind": "status", "status": 200}'], "status"),
        (["--seed", "-1"], "'-1'"),
    ],
)
def test_bad_arguments_are_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert complaint in capsys.readouterr().err
