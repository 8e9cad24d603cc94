"""What `serve` leaves behind when it can't start."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

import pytest

from polar.rest.service import serve
from proxy.addresses import Binding
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError


async def test_a_start_without_kafka_leaves_no_socket(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    settings = Settings(kafka="127.0.0.1:1", control_token_file=token)
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        with pytest.raises(NotReadyError):
            await serve(
                settings,
                Binding("127.0.0.1", 0),
                advertise=None,
                files=None,
                stop=asyncio.Event(),
                ready=print,
                metrics_binding=Binding("127.0.0.1", 0),
            )
        gc.collect()
    assert [str(one.message) for one in left if one.category is ResourceWarning] == []
