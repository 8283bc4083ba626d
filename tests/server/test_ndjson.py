"""JSON lines from outside: one meaning on every path, and a wrong line is named."""

import json
import re

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strandline as sl
from receiving import NDJSON, SHAPES, asking, chunk_of, lines, row_at, weight
from strandline.server import ndjson
from strandline.server.app import make_app
from strandline.sinks.forward.refusal import Refusal
from support import nothing_written, rows_of

PLAIN = {"Content-Type": NDJSON}


@pytest.mark.parametrize(
    ("text", "status", "column"),
    [
        ('{"id":1} {"id":2}', 400, None), ('{"id":1}{"id":2}', 400, None), ('{"id":\n1}{"id":2}', 400, None),
        ('{"id":1}\x0c', 400, None), ("null", 400, None), ("[]", 400, None), ("7", 400, None), ('"x"', 400, None),
        ('{"id":1,"id":2}', 400, "id"), ('{"id":1,"r":{"x":1,"x":2}}', 400, "r"), ('{"id":1,"f":NaN}', 400, None),
        ('{"id":1,"f":Infinity}', 400, None), ('{"id":1,"f":-Inf}', 400, None), ('{"id":1,"f":1e400}', 422, "f"),
        ('{"id":1,"f":-1e400}', 422, "f"), ('{"id":1,"h":1e39}', 422, "h"), ('{"id":1,"f":"1"}', 422, "f"),
        ('{"id":' + "9" * 5000 + "}", 400, None), ('{"id":9223372036854775808}', 422, "id"),
        ('{"id":1,"i":32768}', 422, "i"), ('{"id":1.0}', 422, "id"), ('{"id":true}', 422, "id"),
        ('{"id":1,"t":"\\ud800"}', 422, "t"), ('{"id":1,"r":{"s":"\\udfff"}}', 422, "r"), ('{"id":1,"t":5}', 422, "t"),
        ('{"id":1,"j":"\\ud800"}', 422, "j"), ('{"id":1,"j":tru}', 400, None), ('{"id":1,"j":NaN}', 422, "j"),
        ('{"id":1,"\\ud800":1}', 422, "?"), ('{"id":1,"more":1}', 422, "more"), ('{"id":1,"r":{"z":1}}', 422, "r"),
        ('{"id":1,"l":' + "[" * 100_000 + "}", 400, None), ('{"id":1,"l":[[1]]}', 422, "l"),
        ('{"id":1,"l":' + "[" * 100_000 + "]" * 100_000 + "}", 400, None), ('{"id":1,"l":[1,"2"]}', 422, "l"),
        ('{"id":1,"d":1.005}', 422, "d"), ('{"id":1,"d":"1e9999"}', 422, "d"), ('{"id":1,"d":1e999999999}', 422, "d"),
        ('{"id":1,"at":"2024-01-01T00:00:00"}', 422, "at"), ('{"id":1,"at":5}', 422, "at"),
        ('{"id":1,"at":"2024-01-01T00:00:00.1234567Z"}', 422, "at"), ('{"id":1,"day":"2024-02-30"}', 422, "day"),
        ('{"id":1,"y":0}', 422, "y"), ('{"id":1,"r":[]}', 422, "r"), ('{"id":1', 400, None), ("{'id':1}", 400, None),
        ('{"id":1,"f":NaN,"r":{"z":1}}', 400, None), ('{"id":null}', 422, "id"), ("{}", 422, "id"),
        ("\ufeff" + '{"id":1}', 400, None),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_has_one_answer_on_every_path(lake, shapes, text, status, column):
    """Alone and behind good rows, in tables that Arrow reads and in those that it does not."""
    for table in shapes:
        for before in (0, 3):
            content = lines(*({"id": n} for n in range(before))) + text.encode() + b"\n"
            with asking(make_app(lake, linger_ms=0)) as client, nothing_written(table):
                answer = client.post(f"/ingest/{table.name}", content=content, headers=PLAIN)
            assert answer.status_code == status, answer.text
            told = answer.json()["error"]
            row = before + ("\n" in text and status == 400 and 0)
            assert (told["row"], told.get("column")) == (row, column), told
            assert not re.search(r"Decimal|JsonObject|\((str|int|list|dict|bool)\)|sys\.", told["message"])
            assert ("byte order mark" in told["message"]) is text.startswith("\ufeff")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["NaN", "-Infinity", "2024-01-01", "2024-01-01T00:00:00Z", "1.5", "\ud800", "[1]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "s", "z"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
JSON_ROWS = st.dictionaries(st.sampled_from([*SHAPES.names, "b", "m", "_op", "_seq", "?"]), JSON_VALUES, max_size=6)


def _texts(draw_rows, junk):
    told = [json.dumps({"id": n, **row}, ensure_ascii=True) for n, row in enumerate(draw_rows)]
    return "\n".join([*told, *junk]).encode("utf-8", "surrogatepass")


def _state(table):
    log = table.log.refresh()
    return log.head, table.schema, dict(log.snapshot.txns), rows_of(table.to_arrow())


LOOSE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LOOSE
@given(
    st.lists(JSON_ROWS, max_size=3),
    st.lists(st.text(alphabet='{}[]",:0123456789eE+-.ntf \r\\u', max_size=8), max_size=1),
    st.booleans(),
    st.booleans(),
)
def test_no_lines_are_a_fault_of_the_server_and_refused_ones_leave_nothing(lake, shapes, rows, junk, is_chunk, is_hand):
    table = shapes[is_hand]
    headers = {**chunk_of([0, 0, 0, 0, 9, 0], first=True, sink=f"s{table.head}"), **PLAIN} if is_chunk else PLAIN
    if is_chunk:
        rows = [{**row_at(0, 1, n), **row} for n, row in enumerate(rows)]
    before = _state(table)
    with asking(make_app(lake, linger_ms=0)) as client:
        answer = client.post(f"/ingest/{table.name}", content=_texts(rows, junk), headers=headers)
    assert answer.status_code in (200, 400, 412, 413, 422), answer.text
    if answer.status_code != 200:
        assert _state(table) == before


@LOOSE
@given(st.lists(JSON_ROWS, min_size=1, max_size=4))
def test_arrow_reads_lines_as_they_are_read_by_hand(rows):
    data = _texts(rows, [])

    def read(is_plain):
        reader = ndjson._Reader(pa.schema([*SHAPES, ("_op", pa.string()), ("_seq", pa.int64())]), weight())
        reader._is_plain = is_plain
        try:
            return repr(reader.read(data).to_pylist())
        except (Refusal, sl.Invalid) as error:
            told = error.error if isinstance(error, Refusal) else error
            return type(error), told.message, told.fields

    assert read(True) == read(False)
