"""Fixtures of this folder."""

import pytest

from receiving import SHAPES, WITH_HAND


@pytest.fixture
def shapes(lake):
    return lake.create_table("shapes", SHAPES, key=["id"]), lake.create_table("hand", WITH_HAND, key=["id"])
