"""A lake in a folder and one in a bucket of a real S3 server give the same guarantees."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import obstore
import pytest

from analytics.lake import bucket, compaction, copies, places
from analytics.lake.bucket import BucketError, BucketStore, RefusedError
from analytics.lake.manifest import Lake, SweptError
from analytics.lake.store import UnknownOutcomeError
from analytics.queries import query
from analytics.writing.flush import SupersededError, flush
from tests.analytics.lake.store_contract import (
    HALT,
    PARTITION,
    TABLE,
    Hosts,
    LakeContract,
    answer,
    contents,
    row,
    write,
)
from tests.s3_front import Front, front
from tests.s3_server import BUCKET, S3Server, s3_server
from topics.environment import s3
from topics.environment.s3 import S3Address
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as made:
        yield made


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS_ variables and no ~/.aws of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


class TestFolder(LakeContract):
    @pytest.fixture
    def variables(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def hosts(self, tmp_path: Path) -> Hosts:
        return lambda name: Settings(data=tmp_path / name, lake=str(tmp_path / "shared"))

    @pytest.fixture
    def racing_hosts(self, hosts: Hosts) -> Hosts:
        return hosts

    def stored(self, lake: Lake) -> set[str]:
        return {path.name for path in (lake.folder / TABLE).iterdir()}

    def forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Marks tell at once."""


@pytest.fixture
def variables(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server.variables


@pytest.fixture
def before(server: S3Server, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A server before the S3 server, which this process's variables name."""
    with front(server.url) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


@pytest.fixture
def hosts(tmp_path: Path, variables: Mapping[str, str]) -> Hosts:
    return lambda name: Settings(data=tmp_path / name, lake=f"s3://{BUCKET}/lakes/{tmp_path.name}")


def stored(lake: Lake) -> set[str]:
    assert isinstance(lake.store, BucketStore)
    return {Path(entry["path"]).name for page in obstore.list(lake.store._bucket, TABLE) for entry in page}


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every file as old enough to be a dead writer's."""
    monkeypatch.setattr(bucket, "UNCLAIMED", timedelta(seconds=-5))
    monkeypatch.setattr(bucket, "SWEEP_S", 0.0)


class TestBucket(LakeContract):
    @pytest.fixture
    def racing_hosts(self, hosts: Hosts, before: Front) -> Hosts:
        return hosts

    def stored(self, lake: Lake) -> set[str]:
        return stored(lake)

    def forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forget(monkeypatch)


def test_a_file_that_a_sweep_may_have_removed_is_never_committed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is suspended between upload and commit, and another host takes its files for a dead writer's."""
    lake, other = places.lake(hosts("a")), places.lake(hosts("b"))
    other.prepare()
    write(lake, 0, 3)
    forget(monkeypatch)
    publish = lake.store.publish

    def sleep_after(written: Mapping[str, list[str]]) -> None:
        publish(written)
        monkeypatch.setattr(lake.store, "publish", publish)
        compaction.prune(other, compaction.GRACE_S)

    monkeypatch.setattr(lake.store, "publish", sleep_after)
    with pytest.raises(SweptError):
        write(lake, 3, 6)
    assert contents(other) == [(0, 0), (0, 1), (0, 2)]
    write(lake, 3, 6)
    assert contents(other) == [(0, offset) for offset in range(6)]
    assert stored(lake) == {file.name for file in lake.newest().files[TABLE]}


def test_a_commit_whose_answer_was_lost_counts_once(hosts: Hosts, before: Front) -> None:
    lake = places.lake(hosts("a"))
    before.loses = "/manifest/"
    write(lake, 0, 3)
    assert len([path for path in before.puts if "/manifest/" in path]) == 2, "the client sent it again"
    assert lake.versions() == [1]
    assert contents(lake) == [(0, 0), (0, 1), (0, 2)]


def test_files_of_a_commit_of_unknown_outcome_stay(
    hosts: Hosts, before: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the manifest, the writer doesn't know it, and finds it when the server is back."""
    monkeypatch.setattr(s3, "RETRIES", 1)
    lake = places.lake(hosts("a"))
    before.loses, before.goes_away = "/manifest/", True
    with lake.writing() as writing:
        with pytest.raises(UnknownOutcomeError, match=r"s3://rollouts.*\(POLAR_LAKE\): "):
            flush(lake, writing, {TABLE: [row(0, 0)]}, {PARTITION: None}, {PARTITION: 1})
        before.is_away = False
        with pytest.raises(SupersededError):
            flush(lake, writing, {TABLE: [row(0, 0)]}, {PARTITION: None}, {PARTITION: 1})
    assert contents(lake) == [(0, 0)]
    assert answer(hosts("b")) == [(1, 0, 0)]


def test_a_server_that_is_away_costs_no_row_and_is_named(
    hosts: Hosts, before: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RETRIES", 1)
    lake = places.lake(hosts("a"))
    write(lake, 0, 3)
    before.is_away = True
    with pytest.raises(BucketError, match=r"s3://rollouts/.* at http://.* \(POLAR_LAKE\): "):
        write(lake, 3, 6)
    with pytest.raises(NotReadyError, match=r"the lake in s3://rollouts/.* can't be read: .*\(POLAR_LAKE\)"):
        answer(hosts("b"))
    assert [*(lake.folder / TABLE).iterdir()] == [], "no draft stays"
    before.is_away = False
    write(lake, 3, 6)
    assert contents(lake) == [(0, offset) for offset in range(6)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "AWS_SECRET_ACCESS_KEY doesn't belong to AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "the server doesn't know this AWS_ACCESS_KEY_ID"),
        ({"bucket": "nowhere"}, "NoSuchBucket: create the bucket, or correct the setting"),
    ],
)
def test_wrong_credentials_and_a_missing_bucket_name_the_setting_and_the_way_out(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], reason: str
) -> None:
    name = change.pop("bucket", BUCKET)
    for variable, value in change.items():
        monkeypatch.setenv(variable, value)
    settings = Settings(data=hosts("a").data, lake=f"s3://{name}/lake")
    for use in (lambda: answer(settings), lambda: write(places.lake(settings), 0, 1)):
        with pytest.raises(InputError) as found:
            use()
        assert found.value.field == "POLAR_LAKE"
        assert reason in found.value.reason
        assert f"s3://{name}/lake" in str(found.value)


def test_a_server_without_conditional_writes_is_refused(hosts: Hosts, before: Front) -> None:
    before.ignores_conditions = True
    with pytest.raises(InputError, match="POLAR_LAKE: the server ignores If-None-Match, which commits need"):
        write(places.lake(hosts("a")), 0, 1)
    before.ignores_conditions = False
    write(places.lake(hosts("a")), 0, 1)


def test_a_file_that_is_gone_before_it_was_copied_ends_the_query_with_the_way_out(hosts: Hosts) -> None:
    lake = places.lake(hosts("a"))
    for offset in range(2):
        write(lake, offset, offset + 1)
    with query.connect(hosts("b")) as reader:
        with lake.writing() as writing:
            assert compaction.merge(lake, writing, TABLE, lake.newest().files[TABLE], HALT)
        compaction.prune(lake, 0.0)
        with pytest.raises(NotReadyError, match="run the query again"):
            reader.ask(f"FROM lake.{TABLE}")
    assert answer(hosts("b")) == [(2, 0, 1)]


def test_a_refusal_after_it_has_worked_is_waited_for(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys may be renewed while a writer runs."""
    lake = places.lake(hosts("a"))
    write(lake, 0, 1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    assert isinstance(lake.store, BucketStore)
    monkeypatch.setattr(lake.store, "_bucket", s3.connect(lake.store._address))
    with pytest.raises(RefusedError, match="SignatureDoesNotMatch"):
        write(lake, 1, 2)


def test_a_second_query_copies_only_what_is_new(hosts: Hosts) -> None:
    lake = places.lake(hosts("a"))
    write(lake, 0, 3)
    assert answer(hosts("b")) == [(3, 0, 2)]
    copied = places.lake(hosts("b")).folder / TABLE
    (first,) = copied.iterdir()
    inode = first.stat().st_ino
    write(lake, 3, 5)
    assert answer(hosts("b")) == [(5, 0, 4)]
    assert first.stat().st_ino == inode
    assert len([*copied.iterdir()]) == 2
    assert [*(places.lake(hosts("b")).folder / "events").glob("*")] == [], "the query doesn't need them"


def test_a_copy_that_was_cut_is_made_again(hosts: Hosts) -> None:
    write(places.lake(hosts("a")), 0, 3)
    answer(hosts("b"))
    (copy,) = (places.lake(hosts("b")).folder / TABLE).iterdir()
    os.truncate(copy, 7)
    assert answer(hosts("b")) == [(3, 0, 2)]


def test_old_copies_are_deleted_but_none_that_a_reader_may_use(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MOST_BYTES", 1)
    monkeypatch.setattr(copies, "RECENT_S", -60.0)
    lake = places.lake(hosts("a"))
    write(lake, 0, 3)
    (old,) = lake.newest().files[TABLE]
    here = places.lake(hosts("b"))
    with query.connect(hosts("b")) as reader:
        assert len([*reader.ask(f"FROM lake.{TABLE}").rows()]) == 3
        write(lake, 3, 5)
        assert answer(hosts("b")) == [(5, 0, 4)]
        assert here.path(TABLE, old).exists(), "a reader may read it again"
    here.store.clean()
    assert [*(here.folder / TABLE).iterdir()] == []


def test_a_disk_without_room_for_the_copies_is_said(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system's answer stands in for a full disk."""
    write(places.lake(hosts("a")), 0, 3)
    full = shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(NotReadyError, match=r"needs copies of 0\.0 GB of the lake's files in .* make room"):
        answer(hosts("b"))


def test_a_large_file_goes_up_in_parts(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "PART", 5 * 1024 * 1024)
    noise = os.urandom(6_000_000).hex()
    lake = places.lake(hosts("a"))
    write(lake, 0, 1, reason=noise)
    (file,) = lake.newest().files[TABLE]
    assert answer(hosts("b"), f"SELECT sum(length(reason)) FROM lake.{TABLE}") == [(12_000_000,)]
    assert file.bytes > bucket.PART
    assert contents(lake) == [(0, 0)], "read by ranges"


def test_the_address_has_the_namespace() -> None:
    settings = Settings(lake="s3://bucket/some/where", namespace="mine")
    assert places.lake(settings).store.place == "s3://bucket/some/where/mine"
    assert S3Address.parse("s3://bucket") / "mine" == S3Address("bucket", "mine")
