"""How a table grows with a sender's: with the request that needs it, up to a bound, and no value is cut."""

import pyarrow as pa
import pytest

import receiving
import strandline as sl
from receiving import ARROW, NDJSON, arrow, asking, chunk_of, error_of, lines, post, row_at, send, served
from strandline.model.definition import TableDef
from strandline.server.app import make_app
from strandline.server.body import BodyFormat, decode
from strandline.server.memory_cost import Weight
from strandline.server.table_growth import (
    Growth,
    check_rounding,
    find_growth,
    grow_table,
    is_rounded,
    narrow_rows,
    widest_fields,
)
from strandline.sinks.forward.refusal import Refusal
from support import ITEMS, nothing_written, rows_of

client = receiving.client


def test_a_sender_adds_the_columns_that_its_table_gained(lake, client, items):
    rows = [row_at(0, 5, 0, id=1, name="a", score=1.5, tags=["x"])]
    assert send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True).json()["rows"] == 1
    assert [items.schema.field(name) for name in ("score", "tags")] == [
        pa.field("score", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
    ]
    assert items.to_arrow().to_pylist() == [{"id": 1, "name": "a", "qty": None, "score": 1.5, "tags": ["x"]}]


def test_others_add_no_columns(client, items):
    with nothing_written(items):
        error = error_of(post(client, [{"id": 1, "score": 1.5}]), 422)
    assert (error["row"], error["column"]) == (0, "score")


def test_columns_that_cannot_be_are_refused_by_name(client, items):
    with nothing_written(items):
        for name, value, status in (("qty", "many", 422), ("_sl_a", 1, 412), ("_hash", 1, 412)):
            rows = [row_at(0, 5, 0, id=1, **{name: value})]
            error = error_of(send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True), status)
            assert error["column"] == name
            assert "evolve" not in error.get("hint", ""), "that cannot add it"


def test_a_receiver_may_be_told_not_to_evolve(lake, items):
    with asking(make_app(lake, evolve=False)) as client, nothing_written(items):
        rows = [row_at(0, 5, 0, id=1, score=1.5)]
        assert error_of(send(client, [[0, 0, 5, 0, 6, 0]], rows, first=True), 412)["column"] == "score"


MIB = 1 << 20


def weight(most=64 * MIB, *, rows=1_000_000, columns=4096):
    return Weight(most, rows, columns)


def send_rows(client, rows, *, at=1, first=True, kind=ARROW, schema=None):
    """Post a chunk with the rows of one seq."""
    placed = [{**row_at(0, at, n), **row} for n, row in enumerate(rows)]
    headers = {**chunk_of([0, 0, at, 0, at + 1, 0], first=first), "Content-Type": kind}
    if kind == NDJSON:
        content = lines(*placed)
    else:
        table = pa.Table.from_pylist(placed)
        for name, type_ in (schema or {}).items():
            table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(type_))
        content = arrow(table)
    return client.post("/ingest/items", content=content, headers=headers)


def test_a_chunk_that_is_refused_adds_no_columns(client, items):
    new = {f"c{n}": 1 for n in range(300)}
    with nothing_written(items):
        assert send_rows(client, [{"id": 1, **new}], first=False).status_code == 409
        assert send_rows(client, [{"id": 1, "qty": "x", **new}]).status_code == 422
        assert send_rows(client, [{"id": None, **new}]).status_code == 422
        outside = arrow([{**row_at(0, 7, 0), "id": 1, **new}])
        assert client.post("/ingest/items", content=outside, headers=chunk_of([0, 0, 1, 0, 2, 0])).status_code == 400
        plain = client.post("/ingest/items", content=arrow([{"id": 1, **new}]), headers={"Content-Type": ARROW})
        assert plain.status_code == 422
    assert items.schema.names == ITEMS.names


def test_a_chunk_that_is_known_adds_no_columns(client, items):
    assert send_rows(client, [{"id": 1}]).status_code == 200
    with nothing_written(items):
        assert send_rows(client, [{"id": 1, "new": 1}]).json() == {"rows": 0, "skipped": 1, "seq": None}


def test_requests_grow_a_table_up_to_a_bound(lake, items):
    with asking(make_app(lake, table_columns=5, linger_ms=0)) as client:
        assert send_rows(client, [{"id": 1, "a": 1, "b": 1}]).status_code == 200
        with nothing_written(items):
            answer = send_rows(client, [{"id": 1, "a": 1, "c": 1}], at=2, first=False)
            assert (answer.status_code, answer.json()["error"]["column"]) == (412, "c")
            assert "--table-columns" in answer.json()["error"]["hint"]
        assert send_rows(client, [{"id": 1, "a": 2, "qty": 1 << 40}], at=2, first=False).status_code == 200
    assert items.schema.names == ["id", "name", "qty", "a", "b"]


def test_a_name_that_was_dropped_stops_the_sender_and_loses_no_rows(client, items):
    items.evolve(pa.schema([("old", pa.int64())]))
    items.drop_column("old")
    with nothing_written(items):
        for kind in (ARROW, NDJSON):
            answer = send_rows(client, [{"id": 1, "old": 1}], kind=kind)
            assert (answer.status_code, answer.json()["error"]["column"]) == (412, "old")
            assert answer.json()["error"]["hint"] == "Use another name."


WIDER = [
    (pa.int8(), pa.int16(), 300), (pa.int8(), pa.int64(), 1 << 40), (pa.int16(), pa.int32(), 70_000),
    (pa.int32(), pa.int64(), 1 << 40), (pa.float32(), pa.float64(), 0.1),
]  # fmt: skip


@pytest.mark.parametrize("kind", [ARROW, NDJSON])
@pytest.mark.parametrize(("narrow", "wide", "value"), WIDER)
def test_a_number_that_a_sender_widened_is_widened_here(lake, kind, narrow, wide, value):
    table = lake.create_table("items", pa.schema([("id", pa.int64()), ("n", narrow)]), key=["id"])
    table.upsert([{"id": 0, "n": 5}])
    with asking(make_app(lake, linger_ms=0)) as client:
        with nothing_written(table):
            assert (
                send_rows(client, [{"id": 1, "n": value}], first=False, kind=kind, schema={"n": wide}).status_code
                == 409
            )
        assert send_rows(client, [{"id": 1, "n": value}], kind=kind, schema={"n": wide}).status_code == 200
        assert (
            send_rows(client, [{"id": 2, "n": 5}], at=2, first=False, kind=kind, schema={"n": narrow}).status_code
            == 200
        )
    assert table.schema.field("n").type == wide
    assert {row["id"]: row["n"] for row in table.to_arrow().to_pylist()} == {0: 5, 1: value, 2: 5}


@pytest.mark.parametrize("kind", [ARROW, NDJSON])
@pytest.mark.parametrize(("narrow", "wide", "value"), WIDER)
def test_a_receiver_that_does_not_evolve_cuts_nothing(lake, kind, narrow, wide, value):
    table = lake.create_table("items", pa.schema([("id", pa.int64()), ("n", narrow)]), key=["id"])
    with asking(make_app(lake, linger_ms=0, evolve=False)) as client:
        with nothing_written(table):
            answer = send_rows(client, [{"id": 1, "n": value}], kind=kind, schema={"n": wide})
        assert (answer.status_code, answer.json()["error"]["column"]) == (412, "n")
        assert send_rows(client, [{"id": 1, "n": 5}], kind=kind, schema={"n": wide}).status_code == 200


@pytest.mark.parametrize("kind", [ARROW, NDJSON])
def test_floats_inside_of_a_list_are_not_cut(lake, kind):
    table = lake.create_table("items", pa.schema([("id", pa.int64()), ("n", pa.list_(pa.float32()))]), key=["id"])
    with asking(make_app(lake, linger_ms=0)) as client:
        with nothing_written(table):
            answer = send_rows(client, [{"id": 1, "n": [0.5, 0.1]}], kind=kind)
        assert (answer.status_code, answer.json()["error"]["column"]) == (412, "n")
        assert send_rows(client, [{"id": 1, "n": [0.5, 1.5]}], kind=kind).status_code == 200
    assert table.to_arrow()["n"].to_pylist() == [[0.5, 1.5]]


def test_a_column_that_went_before_the_commit_is_asked_for_again(lake, client, items):
    """Between check and commit another process drops a column: its values are not left out in silence."""
    from strandline.server.commit import commit_posts
    from strandline.server.requests import make_posts

    body = decode(arrow([{"id": 1, "name": "a"}]), BodyFormat(True, False), weight())
    waiting = make_posts(body.rows(items.schema), items.definition)
    items.drop_column("name")
    with nothing_written(items):
        (found,) = commit_posts(items.log, waiting)
    assert isinstance(found, sl.Unavailable)


@pytest.mark.parametrize("form", ["arrow", "ndjson"])
def test_a_table_that_is_widened_where_it_is_sent_from_arrives_exactly(tmp_path, form):
    narrow = pa.schema([("id", pa.int64()), ("f", pa.float32()), ("n", pa.int32())])
    far, home = sl.Lake(tmp_path / "far"), sl.Lake(tmp_path / "home")
    there, here = (lake.create_table("items", narrow, key=["id"], vnodes=2) for lake in (far, home))
    with served(far.storage.uri) as server:
        home.sink("central", "items", to=sl.HttpSink(f"{server.url}/ingest/items", format=form))
        here.upsert([{"id": 1, "f": 0.1, "n": 7}])
        home.tick()
        here.evolve(pa.schema([("f", pa.float64()), ("n", pa.int64())]))
        here.upsert([{"id": 2, "f": 0.1, "n": 1 << 40}, {"id": 3, "f": 1e300, "n": -(1 << 40)}])
        report = home.tick()
        assert [(sink.error, sink.dead) for sink in report.sinks] == [(None, 0)]
    assert rows_of(there.to_arrow()) == rows_of(here.to_arrow())
    assert there.schema == here.schema


DEFINITION = TableDef.declare(pa.schema([("id", pa.int64()), ("n", pa.int16()), ("f", pa.float32())]), key=["id"])


def test_a_table_lacks_the_columns_and_the_room_that_rows_bring():
    rows = pa.table({"id": [1], "n": pa.array([1], pa.int32()), "f": pa.array([1.0]), "more": ["x"], "_op": ["upsert"]})
    found = find_growth(rows, DEFINITION, {"_op"}, 100)
    assert found.columns == pa.schema([("n", pa.int32()), ("f", pa.float64()), ("more", pa.string())])
    grown_to = grow_table(DEFINITION, found)
    assert find_growth(rows, grown_to, {"_op"}, 100) is None
    assert find_growth(rows.slice(0, 0), DEFINITION, {"_op"}, 100) is None
    assert found.apply_to(grown_to) is grown_to


def test_a_table_that_can_never_be_as_asked_refuses_the_sender_and_no_row():
    for columns, most in ((pa.schema([("N", pa.int64())]), 100), (pa.schema([("more", pa.string())]), 3)):
        with pytest.raises(Refusal) as caught:
            grow_table(DEFINITION, Growth(columns, most))
        assert caught.value.status == 412 and "row" not in caught.value.error.fields


def test_columns_are_read_with_the_most_room_and_kept_in_the_least():
    assert [field.type for field in widest_fields(DEFINITION)] == [pa.int64(), pa.int64(), pa.float64()]
    rows = pa.table({"n": pa.array([1, 2]), "f": pa.array([0.5, 0.25])})
    assert narrow_rows(rows, DEFINITION).schema.types == [pa.int16(), pa.float32()]
    rows = pa.table({"n": pa.array([1, 1 << 20]), "f": pa.array([0.5, 0.1])})
    assert narrow_rows(rows, DEFINITION).schema.types == [pa.int32(), pa.float64()]


def test_a_float_is_cut_when_the_narrower_one_is_another_number():
    assert is_rounded(pa.array([0.1]), pa.float32()) and not is_rounded(
        pa.array([0.5, None, float("nan")]), pa.float32()
    )
    assert is_rounded(pa.array([[0.5], [0.1]]), pa.list_(pa.float32()))
    assert is_rounded(pa.array([{"x": 0.1}]), pa.struct([("x", pa.float32())]))
    assert not is_rounded(pa.array([0.1]), pa.float64())
    with pytest.raises(Refusal) as caught:
        check_rounding(pa.table({"f": [0.1]}), DEFINITION)
    assert (caught.value.status, caught.value.error.fields["column"]) == (412, "f")
