"""Fixtures of the tests that run commands."""

from collections.abc import Callable
from pathlib import Path

import pytest

from search import cli
from tests.commands import Outcome


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs one command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> Outcome:
        code = cli.main(argv)
        return Outcome(code, *capsys.readouterr())

    return call
