"""Fixtures of this folder."""

import pytest

from strandline.storage import delta as deltas


@pytest.fixture
def unrested(monkeypatch):
    """Commit files may be cleaned away however young they are."""
    monkeypatch.setattr(deltas, "RESTED_S", -1.0)
