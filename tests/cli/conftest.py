"""The command as a user meets it, in this process."""

from __future__ import annotations

import sys

import pytest

from ludus.cli.main import main


@pytest.fixture
def ludus(monkeypatch, capsys):
    """Calls the command in this process; returns exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ludus", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as exit:
            code = exit.code or 0
        out, err = capsys.readouterr()
        return int(str(code)), out, err

    return call
