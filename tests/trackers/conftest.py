from tests.store.conftest import config

__all__ = ["config"]
