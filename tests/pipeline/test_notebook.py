"""Tables and lakes at a prompt and in a notebook."""

import re
from pathlib import Path

import pytest

import strandline as sl
from strandline.pipeline import notebook
from support import ITEMS, data_files

DOCS = Path(__file__).parents[2] / "docs"


def test_a_table_shows_its_columns_and_first_rows_as_escaped_html(items):
    items.upsert([{"id": n, "name": "<script>alert(1)</script>", "qty": None} for n in range(20)])
    shown = items._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert "20 rows" in shown and "int64" in shown and "null" in shown
    assert shown.count("&lt;script") == notebook.ROWS


def test_a_table_that_cannot_be_read_still_shows_its_columns(lake, items):
    items.upsert([{"id": 1}])
    lake.storage.delete([f"{items.entry.folder}/{path}" for path in data_files(items)])
    assert "int64" in items._repr_html_()


def test_a_lake_shows_its_tables_and_makes_no_state(lake, items):
    items.upsert([{"id": 1}])
    shown = lake._repr_html_()
    assert "items" in shown and "1 row" in shown and "1 table" in shown
    assert not lake.has_state


def test_an_empty_lake_is_shown_and_not_made(lake):
    assert "0 tables" in lake._repr_html_()
    assert not lake.exists


def test_show_prints_at_most_the_rows_that_were_asked_for(items, capsys):
    items.upsert([{"id": n, "name": "[bold]long\n" + "x" * 99} for n in range(9)])
    items.show(3, columns=["id", "name"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0].split() == ["id", "name"]
    assert "[bold]long⏎" in lines[1]
    items.show(where="id = 5")
    assert "5" in capsys.readouterr().out


def test_a_limit_that_is_no_number_of_rows_is_refused(items):
    for wrong in (-1, True, "5"):
        with pytest.raises(sl.Invalid):
            items.to_arrow(limit=wrong)


def test_head_is_a_number_and_says_so_when_it_is_called(items):
    items.upsert([{"id": 1}])
    assert items.head == 1 and items.head + 1 == 2 and f"{items.head}" == "1"
    with pytest.raises(sl.Invalid) as failed:
        items.head(5)
    assert "show(5)" in str(failed.value.hint)


def test_dir_shows_what_users_call(lake, items):
    inner = {"duck", "catalog", "open_table", "producer", "table_type", "log", "fold_name", "merge", "storage"}
    assert not inner & {*dir(lake), *dir(items)}
    assert {"create_table", "table", "tables", "drop", "sql", "tick"} <= set(dir(lake))
    assert {"name", "schema", "upsert", "to_arrow", "changes", "count", "head", "oldest"} <= set(dir(items))
    assert all(hasattr(lake, name) for name in dir(lake)) and all(hasattr(items, name) for name in dir(items))


def test_a_subclass_shows_its_own_names_too(tmp_path):
    class Mine(sl.Lake):
        def report(self) -> str:
            return "mine"

    assert "report" in dir(Mine(tmp_path))


def test_what_dir_shows_is_documented(lake):
    table = lake.create_table("t", ITEMS, key=["id"])
    pages = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    assert [name for name in {*dir(lake), *dir(table)} if not re.search(rf"\b{name}\b[(`]", pages)] == []
