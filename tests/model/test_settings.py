"""The settings of a table: changed one by one, checked, seen by every process."""

import datetime as dt

import pytest

import strandline as sl
from strandline.errors import Invalid
from strandline.model.settings import TableSettings
from support import refused


def test_settings_are_changed_one_by_one_and_read_in_any_form():
    care = TableSettings().changed(
        {"keep": "2h", "grace": dt.timedelta(minutes=1), "compact_ratio": 1, "compact_files": "7"}
    )
    assert (care.keep, care.grace, care.compact_ratio, care.compact_files) == (7200.0, 60.0, 1.0, 7)
    assert care.changed({}) == care
    assert TableSettings().changed(care.to_dict()) == care
    assert TableSettings().changed({"retention": "90d"}).retention == 90 * 86400
    assert TableSettings().changed({"retention": "90d"}).changed({"retention": "none"}).retention is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kept", "1h"),
        ("keep", "soon"),
        ("keep", None),
        ("keep", -1),
        ("grace", True),
        ("retention", 0),
        ("compact_ratio", -0.1),
        ("compact_ratio", float("nan")),
        ("compact_ratio", "much"),
        ("compact_ratio", True),
        ("compact_files", 0),
        ("compact_files", 2.5),
        ("compact_files", None),
        ("compact_age", float("inf")),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(items, name, value):
    with refused(sl.Invalid):
        TableSettings().changed({name: value})
    with refused(sl.Invalid):
        items.configure(**{name: value})
    assert (items.head, items.definition.settings) == (0, TableSettings())


def test_settings_are_the_tables_own_and_every_process_sees_them(lake, items):
    assert items.configure(keep="2d", compact_files=5).keep == 172800
    assert items.head == 1
    assert items.configure(keep="48h") == items.definition.settings
    assert items.head == 1, "nothing has changed"
    assert sl.Lake(lake.storage.uri).table("items").definition.settings == TableSettings(keep=172800.0, compact_files=5)


def test_settings_are_shown_as_a_person_would_write_them():
    shown = TableSettings(compact_files=1_234_567, keep=90.0, retention=7 * 86400.0).shown()
    assert shown == {
        "compact_ratio": "0.2",
        "compact_files": "1234567",
        "compact_age": "7d",
        "keep": "90s",
        "grace": "1h",
        "retention": "7d",
    }
    assert TableSettings().shown()["retention"] == "none"


def test_settings_of_tables_from_before_are_found_under_their_old_names() -> None:
    found = TableSettings.from_dict({"fold_ratio": 0.5, "fold_files": 7, "fold_age": 60.0, "keep": 1.0})
    assert found == TableSettings(compact_ratio=0.5, compact_files=7, compact_age=60.0, keep=1.0)
    with pytest.raises(Invalid) as caught:
        TableSettings().changed({"fold_ratio": 0.5})
    assert "compact_ratio" in str(caught.value.hint)
