"""Rows with images: slime and verl take them as they are, other formats have no place for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polar.trainer import MediaReader, grpo
from polar.trainer.exporters import nemo, prime_rl, skyrl, slime, tinker, trl, verl
from polar.trainer.groups import Group
from topics.environment.blobs import FolderBlobs
from topics.environment.settings import Settings
from topics.types.completion import Medium
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory, expand


@pytest.fixture
def seen(group: Group, tmp_path: Path) -> Group:
    """`t.0` with an image in what all its rows share, and two more in its longest row alone."""
    blobs = FolderBlobs(tmp_path)
    first, second, sound = (Medium(one, blob=blobs.put(one.encode()).ref) for one in ("one", "two", "three"))
    branched, *others = group.trajectories
    nodes = [*branched.nodes]
    replace = msgspec.structs.replace
    nodes[0] = replace(nodes[0], media=[replace(first, position=1)])
    nodes[2] = replace(nodes[2], media=[replace(second, position=0), replace(sound, position=1, kind="audio")])
    return Group(group.task_id, [replace(branched, nodes=nodes), *others])


@pytest.fixture
def load(tmp_path: Path) -> Callable[[Medium], bytes]:
    return MediaReader.of(Settings(blobs=str(tmp_path))).read


def branched(group: Group) -> Trajectory:
    return group.trajectories[0]


def test_a_trace_names_its_media_by_their_places_in_it(seen: Group) -> None:
    found = [expand(branched(seen), trace).media for trace in branched(seen).traces]
    places = [[(one.digest, one.position) for one in media] for media in found]
    assert places == [[("one", 1), ("two", 4), ("three", 5)], [("one", 1)]]
    rows = [row.media for row in grpo(seen) if row.session_id == "t.0"]
    assert rows == found


def test_slime_and_verl_get_them_in_the_order_of_the_row(seen: Group, load: Callable[[Medium], bytes]) -> None:
    expected: list[Any] = [{"images": [b"one"]}, {"images": [b"one", b"two"], "audios": [b"three"]}]
    rollout, other = slime.samples(seen, group_index=0, first_index=0, load=load)
    assert [one["multimodal_inputs"] for one in rollout] == expected
    assert [one["multimodal_inputs"] for one in other] == [None]
    outputs = verl.agent_loop_outputs(branched(seen), unknown_version=0, load=load)
    assert [one["multi_modal_data"] for one in outputs] == expected
    [plain] = verl.agent_loop_outputs(seen.trajectories[1], unknown_version=0, load=load)
    assert "multi_modal_data" not in plain


@pytest.mark.parametrize(
    "export",
    [
        lambda group: slime.samples(group, group_index=0, first_index=0),
        lambda group: verl.agent_loop_outputs(branched(group)),
        lambda group: verl.data_proto([group], prompt_length=9, response_length=9, pad_token_id=0),
        lambda group: prime_rl.training_samples(group, env_name="e"),
        lambda group: nemo.results(group, task_index=0),
        lambda group: skyrl.generator_output([group]),
        lambda group: tinker.datums([group]),
        lambda group: trl.rollouts([group], num_generations=3, branches="longest"),
        lambda group: trl.rollout_samples(group, group_id=0),
    ],
    ids=[
        "slime",
        "agent_loop_outputs",
        "data_proto",
        "prime_rl",
        "nemo",
        "skyrl",
        "tinker",
        "rollouts",
        "rollout_samples",
    ],
)
def test_a_row_whose_images_would_be_lost_is_refused_by_name(seen: Group, export: Callable[[Group], object]) -> None:
    with pytest.raises(InputError, match=r"(?=.*t\.0)(?=.*images or sounds).*drop_media"):
        export(seen)


def test_a_medium_without_bytes_is_an_error_with_its_digest(load: Callable[[Medium], bytes]) -> None:
    with pytest.raises(InputError, match=r"(?=.*00ff).*POLAR_BLOBS"):
        load(Medium("00ff"))


def test_bytes_that_the_store_lacks_are_an_error_with_the_way_out(
    load: Callable[[Medium], bytes], tmp_path: Path
) -> None:
    ref = FolderBlobs(tmp_path / "elsewhere").put(b"one").ref
    with pytest.raises(
        InputError, match=r"media\.blob: .*hasn't the image 00ff: name the proxies' store \(POLAR_BLOBS\)"
    ):
        load(Medium("00ff", blob=ref))
