"""What a trial of Harbor's is to Polar: its task, its run, its reward. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping

REWARD = "reward"
"""The name under which Harbor keeps the number of a `reward.txt`."""
NAME_LIMIT = 100


def task_id(job_id: str, task_name: str, *identity: str) -> str:
    """The id of the task whose samples are one job's trials of one Harbor task. `identity`: what else sets such trials apart."""
    digest = hashlib.sha256("\0".join((job_id, task_name, *identity)).encode()).hexdigest()[:12]
    return f"{_name(task_name)}-{digest}"


def run(job_name: str) -> str:
    """The job's name as the name of a run."""
    return _name(job_name)


def reward(rewards: Mapping[str, float] | None, name: str = REWARD) -> float | None:
    """The reward `name`, or the only one. None if the verifier gave none, or several others, or no finite number."""
    if not rewards or (name not in rewards and len(rewards) > 1):
        return None
    try:
        value = float(rewards[name] if name in rewards else next(iter(rewards.values())))
    except OverflowError:  # an integer of more than 308 digits: an error here would stop Harbor's whole job
        return None
    return value if math.isfinite(value) else None


def _name(text: str) -> str:
    """The text in the characters that names of tasks and runs have; the first one is a letter or a digit."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).lstrip("-_")[:NAME_LIMIT] or "harbor"
