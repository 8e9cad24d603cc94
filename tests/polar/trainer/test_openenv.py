"""`polar.trainer.openenv` without its package; openenv_package has the tests with it."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.mark.skipif(importlib.util.find_spec("openenv") is not None, reason="openenv is installed")
def test_without_openenv_the_import_names_the_package() -> None:
    with pytest.raises(ImportError, match=r"polar\.trainer\.openenv needs openenv 0\.10\.0: pip install openenv==0"):
        import polar.trainer.openenv  # noqa: F401
