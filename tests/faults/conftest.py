"""Fixtures of the fault tests are those of the worker tests."""

from tests.celery.conftest import rabbit

__all__ = ["rabbit"]
