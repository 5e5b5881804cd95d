import pytest


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report's plots take longer than these runs; they have tests of their own."""
    from ludus.launch import train as local

    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)
