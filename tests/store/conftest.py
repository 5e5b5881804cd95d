import pytest

from ludus.config import RunConfig, parse_config


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return parse_config({"name": "first", "store": {"folder": str(tmp_path / "runs")}})
