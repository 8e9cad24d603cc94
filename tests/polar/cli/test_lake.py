"""`polar lake prune` and `polar lake copy` on a lake without a running system."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from analytics.lake.manifest import Lake
from analytics.lake.retention import expire
from analytics.queries.query import connect
from polar.cli import progress
from polar.cli.app import app
from tests.analytics.known_run import known_run
from tests.analytics.story import NOON, write
from tests.serving import free_port
from tests.small_disks import fill, needs_root, small_disk
from topics.environment import s3
from topics.environment.settings import Settings


def prune(data: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["lake", "prune", *options, "--data", str(data)])
    return done.exit_code, done.output


def test_old_tasks_are_removed_and_a_trial_says_which(tmp_path: Path) -> None:
    lake = write(Settings(data=tmp_path).lake_folder, known_run())
    rows = {table: sum(file.rows for file in files) for table, files in lake.newest().files.items()}
    code, trial = prune(tmp_path, "--older-than", "14", "--dry-run", "--format", "json")
    assert code == 0
    assert {table: each["rows"] for table, each in json.loads(trial).items()} == {
        table: count for table, count in rows.items() if table != "publications"
    }
    assert "would be removed" in prune(tmp_path, "--older-than", "14", "--dry-run")[1]
    assert "rows removed" in prune(tmp_path, "--older-than", "14")[1]
    assert "nothing in" in prune(tmp_path, "--older-than", "14")[1]


@pytest.mark.parametrize("days", ["13.9", "-1", "nan"])
def test_what_may_still_run_is_not_removed(tmp_path: Path, days: str) -> None:
    lake = write(Settings(data=tmp_path).lake_folder, known_run())
    code, said = prune(tmp_path, "--older-than", days)
    assert code == 2
    assert "at least 14 days" in said
    assert Lake(lake.folder).newest() == lake.newest()


@pytest.mark.parametrize("days", ["36501", "1e300", "inf"])
def test_an_age_that_no_record_can_have_is_refused(tmp_path: Path, days: str) -> None:
    write(Settings(data=tmp_path).lake_folder, known_run())
    code, said = prune(tmp_path, "--older-than", days)
    assert code == 2
    assert "at most 36500 days" in said


def test_long_work_shows_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Settings(data=tmp_path).lake_folder, known_run())
    monkeypatch.setattr(progress, "QUICK_S", 0.0)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    done = CliRunner().invoke(app, ["lake", "prune", "--older-than", "14", "--data", str(tmp_path)])
    assert "polar: 1 of " in done.stderr


@pytest.mark.contract
@needs_root
def test_a_full_disk_is_named_and_no_part_of_a_file_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        lake = write(Settings(data=disk).lake_folder, known_run())
        monday = lake.newest()
        there = sorted(lake.folder.rglob("*.parquet"))
        with lake.writing() as writing:
            fill(disk / "ballast")
            with pytest.raises(OSError, match="No space left"):
                expire(lake, writing, NOON + 40_000)
        code, said = prune(disk, "--older-than", "14")
        assert prune(disk, "--older-than", "14", "--dry-run")[0] == 0, "only counts"
        assert code == 3
        assert f"the work on the lake in {lake.folder} ended: [Errno 28] No space left on device" in said
        assert (lake.newest(), sorted(lake.folder.rglob("*.parquet"))) == (monday, there)


def test_without_a_lake_it_says_what_makes_one(tmp_path: Path) -> None:
    code, said = prune(tmp_path, "--older-than", "30")
    assert code == 3
    assert "no lake in" in said


def test_a_copy_is_a_database_that_duckdb_opens_by_itself(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    write(settings.lake_folder, known_run())
    copied = tmp_path / "copied"

    def copy() -> tuple[int, str]:
        done = CliRunner().invoke(app, ["lake", "copy", str(copied), "--data", str(settings.data), "--format", "json"])
        return done.exit_code, done.output

    code, out = copy()
    assert code == 0, out
    database = Path(json.loads(out)["database"])
    assert database == copied / f"{settings.namespace}.duckdb"
    with connect(settings) as reader, duckdb.connect(database, read_only=True) as shown:
        for view in ("sessions", "calls", "tokens"):
            expected = reader.ask(f"SELECT count(*) FROM {view}").rows()
            assert shown.execute(f"SELECT count(*) FROM {view}").fetchall() == [*expected] != [(0,)]
    assert json.loads(copy()[1])["files"] == 0
    done = CliRunner().invoke(app, ["lake", "copy", str(settings.lake_folder.parent), "--data", str(tmp_path / "data")])
    assert done.exit_code == 2
    assert "is no copy of a lake" in done.output


def test_a_bucket_whose_server_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRIES", 0)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "POLAR_LAKE": "s3://bucket/lake",
    }.items():
        monkeypatch.setenv(name, value)
    for command in (
        ["lake", "prune", "--older-than", "30"],
        ["lake", "copy", str(tmp_path / "copied")],
        ["sql", "FROM calls"],
    ):
        done = CliRunner().invoke(app, [*command, "--data", str(tmp_path / "data")])
        assert done.exit_code == 3, done.output
        assert "s3://bucket/lake" in done.output
        assert "no answer (Connection refused" in done.output
