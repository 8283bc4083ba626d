"""Dead letters of the same cause are one group."""

from __future__ import annotations

import pyarrow as pa

from strandline.state.letter_groups import group_letters
from strandline.state.letters import DeadLetter


def letter(id: int, reason: str, *, consumer: str = "central", rows: int = 1) -> DeadLetter:
    sink = pa.BufferOutputStream()
    keys = pa.table({"id": [id * 10 + at for at in range(rows)]})
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_table(keys)
    place = ("g", "items", "t", (0, id, 0))
    return DeadLetter(str(id), consumer, *place, rows, sink.getvalue().to_pybytes(), reason, 422, float(id), 0)


def test_reasons_that_differ_in_values_are_one_cause() -> None:
    letters = [letter(2, "row 7: 'x' is no number"), letter(1, "row 3: 'y' is no number", rows=4)]
    (group,) = group_letters(letters)
    assert (group.letters, group.rows, group.reason) == (2, 5, "row 7: 'x' is no number")
    assert (group.first_at.timestamp(), group.last_at.timestamp()) == (1, 2)
    assert group.keys == ({"id": 20}, {"id": 10}, {"id": 11})


def test_another_reason_or_sink_is_another_group_and_the_largest_comes_first() -> None:
    letters = [letter(1, "bad"), letter(2, "worse", rows=3), letter(3, "bad", consumer="other")]
    found = [(group.consumer, group.reason, group.rows) for group in group_letters(letters)]
    assert found == [("central", "worse", 3), ("central", "bad", 1), ("other", "bad", 1)]
    assert group_letters([]) == []
