"""Writes sessions for other programs' viewers: ATIF documents, a Harbor job, an Inspect log.

Every file or folder is written as a draft beside its place and renamed once it is whole. Documents and trials that exist are kept, so an
interrupted export continues; an Inspect log is one file, which is written anew. One session at a time is in memory, besides what
`polar.export.sessions` reads ahead.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec

from analytics.queries.query import Reader
from polar.export import atif, harbor, inspect_log, sessions
from polar.export.drafts import DRAFT, draft
from polar.export.sessions import ExportedSession, Finished
from topics.types.errors import InputError

OnProgress = Callable[[int, int], None]
"""Called with the number of sessions that are done and their total."""


@dataclass(frozen=True)
class Written:
    """The place of an export and its numbers of sessions."""

    path: Path
    sessions: int
    """All that were selected."""
    kept: int
    """Those of the selected sessions that an earlier export had written."""


class _Origin(msgspec.Struct):
    """What tells who wrote a result.json, of a job or of a trial."""

    id: str = ""
    trial_uri: str = ""


def atif_documents(
    reader: Reader, finished: Sequence[Finished], folder: Path, *, with_tokens: bool, on_progress: OnProgress
) -> Written:
    """Write `<session>.json` for each session. Raises OSError, and as `Reader.ask`."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [one for one in finished if not (folder / f"{one.session_id}.json").exists()]
    for session in _read(reader, missing, len(finished), on_progress):
        path = folder / f"{session.trajectory.session_id}.json"
        _write(draft(path), atif.document(session, with_tokens=with_tokens))
        draft(path).replace(path)
    return Written(folder, len(finished), len(finished) - len(missing))


def harbor_job(
    reader: Reader,
    finished: Sequence[Finished],
    folder: Path,
    job: str,
    *,
    with_tokens: bool,
    on_progress: OnProgress,
) -> Written:
    """Write the job `folder/job` with a trial for each session; its figures are those of all trials in the folder.

    Raises InputError for a job that another program made, before anything is written; OSError, and as `Reader.ask`.
    """
    place = folder / job
    _require_own(place, job)
    place.mkdir(parents=True, exist_ok=True)
    missing = [one for one in finished if not (place / one.session_id).exists()]
    for session in _read(reader, missing, len(finished), on_progress):
        _write_trial(place / session.trajectory.session_id, session, job, with_tokens=with_tokens)
    results = [_result(path) for path in sorted(place.glob("*/result.json")) if path.parent.suffix != DRAFT]
    for name, made in (("config", harbor.job_config(job, results)), ("result", harbor.job_result(job, results))):
        path = place / f"{name}.json"
        _write(draft(path), made)
        draft(path).replace(path)
    return Written(place, len(finished), len(finished) - len(missing))


def inspect_eval(
    reader: Reader, finished: Sequence[Finished], folder: Path, name: str, *, on_progress: OnProgress
) -> Written:
    """Write the log `folder/name.eval`. Raises OSError, and as `Reader.ask`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.eval"
    summaries: list[dict[str, Any]] = []
    agents: set[str] = set()
    with ZipFile(draft(path), "w") as file:
        for session in _read(reader, finished, len(finished), on_progress):
            sample = inspect_log.sample(session)
            _add(file, f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample)
            summaries.append(inspect_log.summary(sample))
            agents.add(session.trajectory.harness)
        header = inspect_log.header(name, summaries, agents)
        _add(file, "_journal/start.json", {field: header[field] for field in ("version", "eval", "plan")})
        _add(file, "summaries.json", summaries)
        _add(file, "header.json", header)
    draft(path).replace(path)
    return Written(path, len(finished), 0)


def _read(
    reader: Reader, missing: Sequence[Finished], total: int, on_progress: OnProgress
) -> Iterator[ExportedSession]:
    for number, session in enumerate(sessions.read(reader, missing), total - len(missing) + 1):
        yield session
        on_progress(number, total)


def _write_trial(place: Path, session: ExportedSession, job: str, *, with_tokens: bool) -> None:
    trajectory = session.trajectory
    made = draft(place)
    shutil.rmtree(made, ignore_errors=True)
    (made / "agent").mkdir(parents=True)
    (made / "verifier").mkdir()
    _write(made / "agent" / "trajectory.json", atif.document(session, with_tokens=with_tokens))
    if trajectory.reward is not None:
        _write(made / "verifier" / "reward.json", {"reward": trajectory.reward})
    if trajectory.reward_reason is not None:
        (made / "verifier" / "test-stdout.txt").write_text(trajectory.reward_reason, encoding="utf-8", newline="")
    _write(made / "config.json", harbor.trial_config(trajectory, job))
    _write(made / "result.json", harbor.trial_result(trajectory, job))
    made.rename(place)


def _require_own(place: Path, job: str) -> None:
    """Raise InputError for a folder with results of another program: a job's own would be replaced, its trials' mixed with Polar's."""
    for path in (place / "result.json", *sorted(place.glob("*/result.json"))):
        if not path.exists() or path.parent.suffix == DRAFT:
            continue
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found = msgspec.json.decode(path.read_bytes(), type=_Origin)
            if found.id == harbor.job_id(job) or found.trial_uri.startswith(harbor.TRIAL_URI):
                continue
        raise InputError("--job", job, f"{path} isn't of an export of Polar's; choose another name, or another folder")


def _result(path: Path) -> dict[str, Any]:
    """A trial's result without its metadata, which may be large."""
    result: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    del result["agent_result"]["metadata"]
    return result


def _add(file: ZipFile, name: str, document: Any) -> None:
    """Without the time of writing: the same sessions give the same bytes."""
    info = ZipInfo(name)
    info.compress_type = ZIP_DEFLATED
    file.writestr(info, msgspec.json.encode(document))


def _write(path: Path, document: Any) -> None:
    path.write_bytes(msgspec.json.encode(document))
