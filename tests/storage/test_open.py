"""Addresses of places."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline.storage.open import open_storage, to_address
from support import refused


def test_a_path_and_a_text_are_addresses(tmp_path: Path) -> None:
    assert to_address(tmp_path) == to_address(str(tmp_path)) == str(tmp_path)
    assert open_storage(tmp_path).uri == open_storage(str(tmp_path)).uri


@pytest.mark.parametrize("place", [None, 5, "", b"folder", ["folder"]])
def test_anything_else_names_no_place(place: object) -> None:
    for call in (to_address, open_storage, sl.Lake):
        with pytest.raises(sl.Invalid, match="names no place"):
            call(place)  # type: ignore[operator]


@pytest.mark.parametrize("address", ["s3://", "a*b", "gs://bucket/x", "line\nbreak"])
def test_an_address_that_cannot_be_opened_is_refused(address: str) -> None:
    with refused(sl.Invalid):
        open_storage(address)
