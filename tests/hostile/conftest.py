"""A command in a folder of its own, as for the tests of the command line; and reports that can be sent on."""

from collections.abc import Generator

import pytest
from cli.conftest import run

__all__ = ["run"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was captured may hold names that are not UTF-8, which one process of pytest cannot send to another."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
