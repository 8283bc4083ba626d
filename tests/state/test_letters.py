"""Dead letters: saved once however often a run is repeated, found, counted, dropped, and purged of keys."""

import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from sqlalchemy import text, update

import strandline as sl
from strandline.model.change import RefusedRows
from strandline.state import letters as module
from strandline.state.consumers import Registry
from strandline.state.database import Database
from strandline.state.letters import DeadLetters
from support import python, refused

FACTS = {"kind": "sink", "table": "t", "table_generation": "g1", "destination": "s3://a", "definition": {}}


@pytest.fixture
def state(state_url):
    with Database(state_url, timeout_s=20) as opened:
        yield opened


@pytest.fixture
def letters(state):
    return DeadLetters(state)


@pytest.fixture
def consumer(state):
    return Registry(state).register("a", **FACTS).consumer


def ipc(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def dead(at=(0, 5, 0), ids=(1, 2), reason="no such column", status=422, **columns):
    keys = pa.table({"id": pa.array(ids, pa.int64()), **columns})
    return RefusedRows(at, keys.num_rows, ipc(keys), reason, status)


def test_a_letter_is_what_was_refused(letters, consumer):
    letters.save(consumer, "intent-1", [dead((3, 1 << 40, 7))])
    (letter,) = letters.all()
    assert (letter.consumer, letter.generation) == ("a", consumer.generation)
    assert (letter.table, letter.table_generation) == ("t", "g1")
    assert (letter.at, letter.rows, letter.attempts) == ((3, 1 << 40, 7), 2, 0)
    assert (letter.reason, letter.status) == ("no such column", 422)
    assert letter.keys == dead().keys and letter.key_table == pa.table({"id": [1, 2]})
    assert abs(letter.created_s - time.time()) < 60 and len(letter.id) == 32
    assert letters.get(letter.id) == letter
    assert letters.counts() == {consumer.generation: 1}


def test_a_repeated_run_saves_nothing_twice(letters, state, consumer):
    letters.save(consumer, "intent-1", [dead((0, 5, 0)), dead((1, 5, 0))])
    before = letters.all()
    letters.count_refusal(before[0].id, "still not", 400)
    now = letters.all()
    letters.save(consumer, "intent-1", [dead((0, 5, 0), reason="other words"), dead((1, 5, 0))])
    assert letters.all() == now, "what was kept stays as it is"
    letters.save(consumer, "intent-2", [dead((0, 5, 0))])
    other = Registry(state).register("a", **FACTS | {"destination": "s3://b"}).consumer
    letters.save(other, "intent-1", [dead((0, 5, 0))])
    assert letters.counts() == {consumer.generation: 3, other.generation: 1}
    letters.save(consumer, "intent-1", [])
    with refused(sl.Invalid):
        letters.save(consumer, "", [dead()])


def test_racing_runs_save_a_letter_once(letters, consumer):
    def work(_):
        letters.save(consumer, "intent-1", [dead((0, seq, 0)) for seq in range(10)])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(12)))
    assert letters.counts() == {consumer.generation: 10}


SAVE = """
import sys
from strandline.state.letters import DeadLetters
from strandline.state.consumers import Registry
from strandline.model.change import RefusedRows
from strandline.state.database import Database
state = Database(sys.argv[1])
letters = DeadLetters(state)
letters.save(Registry(state).get("a"), "intent-1", [RefusedRows((0, seq, 0), 1, b"", "no") for seq in range(3)])
"""


def test_a_save_that_is_killed_left_all_letters_or_none(letters, consumer, state_url):
    for crash, counts in (("state.before_commit", {}), ("state.committed", {consumer.generation: 3})):
        assert python(SAVE, state_url, crash=crash).returncode == -9
        assert letters.counts() == counts


def test_the_newest_letters_come_first(letters, state, consumer):
    other = Registry(state).register("b", **FACTS).consumer
    for number in range(5):
        letters.save(consumer, f"intent-{number}", [dead((0, number, 0))])
        letters.save(other, f"intent-{number}", [dead((1, number, 0))])
        time.sleep(0.003)  # SQLite's clock has a millisecond
    assert [each.at[1] for each in letters.all("a")] == [4, 3, 2, 1, 0]
    assert {each.consumer for each in letters.all("b")} == {"b"}
    assert [each.at[1] for each in letters.all(limit=4)] == [4, 4, 3, 3]
    assert letters.all("nobody") == [] and letters.all(limit=0) == []


def test_the_beginning_of_an_id_suffices_when_no_other_has_it(letters, consumer):
    letters.save(consumer, "intent-1", [dead((0, seq, 0)) for seq in range(60)])
    ids = sorted(each.id for each in letters.all())
    first = ids[0]
    length = next(n for n in range(1, 33) if sum(each.startswith(first[:n]) for each in ids) == 1)
    assert letters.get(first[:length]).id == letters.get(first.upper()).id == first
    shared = first[: length - 1] or next(each[0] for each in ids if sum(o[0] == each[0] for o in ids) > 1)
    with refused(sl.Invalid, deadletter=shared) as caught:
        letters.get(shared)
    assert set(caught.value.fields["candidates"]) <= {each for each in ids if each.startswith(shared)}
    for unknown in ("x", "%", "_" * 32, first + "0"):
        with refused(sl.NotFound, deadletter=unknown):
            letters.get(unknown)
    for wrong in ("", None, "\0"):
        with refused(sl.Invalid):
            letters.get(wrong)


def test_letters_are_dropped_by_id(letters, consumer):
    letters.save(consumer, "intent-1", [dead((0, seq, 0)) for seq in range(3)])
    first, second, third = letters.all()
    assert letters.drop([first.id, third.id, "unknown"]) == 2
    assert letters.all() == [second]
    assert letters.drop([]) == 0 and letters.drop([first.id]) == 0
    with refused(sl.NotFound, deadletter=first.id):
        letters.count_refusal(first.id, "no", 400)


def test_a_replay_that_fails_is_counted_with_its_reason(letters, consumer):
    letters.save(consumer, "intent-1", [dead()])
    (letter,) = letters.all()
    letters.count_refusal(letter.id, "still no such column", 400)
    letters.count_refusal(letter.id, "no answer", None)
    now = letters.get(letter.id)
    assert (now.attempts, now.reason, now.status) == (2, "no answer", None)
    assert (now.keys, now.at, now.created_s) == (letter.keys, letter.at, letter.created_s)


def test_the_words_of_a_destination_are_kept_whatever_they_are(letters, consumer):
    letters.save(consumer, "intent-1", [dead(reason="nul \0, half \ud800, ünï")])
    letters.save(consumer, "intent-2", [dead(reason="x" * 1_000_000)])
    reasons = {each.reason for each in letters.all()}
    assert max(map(len, reasons)) == module.REASON_CHARACTERS
    assert any(reason.startswith("nul \ufffd, half ") and reason.endswith(", ünï") for reason in reasons)


def test_keys_that_cannot_be_read_are_corrupt(letters, state, consumer):
    letters.save(consumer, "intent-1", [dead()])
    for damage in (b"", b"nonsense", dead().keys[:40]):
        with state.transaction() as connection:
            connection.execute(update(module.deadletters).values(key_bytes=damage))
        (letter,) = letters.all()
        with refused(sl.Corrupt, deadletter=letter.id):
            _ = letter.key_table
        with refused(sl.Corrupt, deadletter=letter.id):
            letters.forget("g1", pa.table({"id": [1]}))


# --- purge -----------------------------------------------------------------------------------------------------


def test_a_purge_takes_keys_out_of_letters_and_letters_that_have_none_left(letters, state, consumer):
    other = Registry(state).register("b", **FACTS | {"table_generation": "g2"}).consumer
    letters.save(consumer, "intent-1", [dead((0, 1, 0), [1, 2, 3]), dead((0, 2, 0), [2]), dead((0, 3, 0), [4])])
    letters.save(other, "intent-1", [dead((0, 1, 0), [2])])
    assert letters.forget("g1", pa.table({"id": pa.array([2, 3, 9], pa.int32())})) == 3
    assert {each.at[1]: (each.rows, each.key_table["id"].to_pylist()) for each in letters.all("a")} == {
        1: (1, [1]),
        3: (1, [4]),
    }
    assert {each.at[1]: each.reason for each in letters.all("a")} == {1: module.ERASED, 3: "no such column"}
    assert [each.rows for each in letters.all("b")] == [1], "another table"
    assert letters.forget("g1", pa.table({"id": pa.array([2, 3, 9], pa.int64())})) == 0


def test_what_a_purge_erases_leaves_the_file(tmp_path):
    """Free pages and the rest of pages are overwritten, not only given up."""
    with Database(f"sqlite:///{tmp_path}/state.db") as state:
        letters, who = DeadLetters(state), Registry(state).register("a", **FACTS).consumer
        wide = "purged-" * 2000
        for intent, name in enumerate(["purged-key", wide, "other"]):
            letters.save(who, f"intent-{intent}", [dead(reason=f"{name} is odd", name=[name, f"stays {intent}"])])
        assert letters.forget("g1", pa.table({"name": ["purged-key", wide]})) == 2
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"purged-" not in kept and b"other is odd" in kept


def test_a_purge_compares_every_kind_of_key(letters, consumer):
    moment = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    keys = pa.table(
        {
            "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
            "far": pa.array([1 << 60, 0, -(1 << 60)], pa.int64()).cast(pa.timestamp("us")),
            "name": ["ä", "", "ä"],
            "raw": [b"\0", b"", b"\0"],
            "day": pa.array([1, 2, 1], pa.date32()),
        }
    )
    letters.save(consumer, "intent-1", [RefusedRows((0, 1, 0), 3, ipc(keys), "no")])
    assert letters.forget("g1", keys.slice(0, 1).select(["day", "raw", "name", "far", "at"])) == 1
    (letter,) = letters.all()
    assert letter.key_table == keys.slice(1).combine_chunks()
    assert letters.forget("g1", keys) == 2 and letters.all() == []


def test_a_purge_leaves_letters_of_rows_without_a_key(letters, consumer):
    keys = pa.table({"_seq": [5], "_row": [0]})
    letters.save(consumer, "intent-1", [RefusedRows((0, 5, 0), 1, ipc(keys), "no")])
    assert letters.forget("g1", pa.table({"id": [5]})) == 0
    assert letters.forget("g1", keys) == 1


def test_a_reason_that_an_earlier_version_kept_is_shown_without_what_a_terminal_obeys(letters, consumer):
    letters.save(consumer, "1", [dead()])
    with letters._state.transaction() as connection:
        connection.execute(text("UPDATE strandline_deadletters SET reason = :it"), {"it": "\x1b[2Jno\nentry\u202e"})
    [letter] = letters.all()
    assert letter.reason == "\ufffd[2Jno entry\ufffd"
