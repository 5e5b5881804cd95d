import pytest

from ludus.checks import check
from tests.worlds.playing import PLAIN, world


@pytest.mark.parametrize("name", PLAIN)
def test_a_built_in_world_passes_its_own_check(name):
    """Also in another process with another hash seed: the same tasks, ids and answers."""
    report = check(world(name), num_tasks=3)
    assert not report.findings, str(report)
