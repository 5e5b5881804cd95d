"""docs/configuration.md says what src/ludus/config.py says."""

import importlib.util
from pathlib import Path

from ludus.config import RunConfig

SCRIPT = Path(__file__).parent.parent / "docs" / "make_configuration.py"


def script():
    spec = importlib.util.spec_from_file_location("make_configuration", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    made = script()
    assert made.PAGE.read_text() == made.page(), "run: python docs/make_configuration.py"


def test_every_section_has_its_table():
    page = script().page()
    for name, field in RunConfig.model_fields.items():
        assert f"## [{name}" in page or f"| `{name}` |" in page, field
