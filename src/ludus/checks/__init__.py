"""Checks of an environment without a model: `from ludus.checks import check`."""

from ludus.checks.check import Finding, Report, check

__all__ = ["Finding", "Report", "check"]
