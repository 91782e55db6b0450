"""One profile for all property tests: a slow or crowded machine is no failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("workup", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("workup")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for a whole file: runs of one recipe share their warm start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKUP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
