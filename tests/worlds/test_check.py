import pytest

from ludus.environments import check
from ludus.environments.registry import BUILT_IN
from tests.worlds.playing import world


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_world_passes_its_own_check(name):
    """Also in another process with another hash seed: the same tasks, ids and answers."""
    report = check(world(name), num_tasks=10)
    assert not report.findings, str(report)
