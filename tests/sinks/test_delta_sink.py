"""Changes as rows of a Delta table: a batch is in one commit, whoever finishes it how often."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

import strandline as sl
from deliveries import (
    FIRST,
    MORE,
    PARTS,
    PRODUCER,
    ROWS,
    SECOND,
    again,
    changes,
    deliver,
    new_batch,
    run_lanes,
    upsert,
    withheld,
)
from deltas import table_at
from strandline.model.types import storage_schema
from strandline.sinks import contract
from strandline.sinks.delta import DeltaDelivery, DeltaSink
from support import BUCKET, environment, is_commit, options_for, proxied, python, refused

APP = f"strandline/{PRODUCER.generation}"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "parts"


@pytest.fixture
def delivery(place):
    return DeltaSink(place).open(PRODUCER)


def held(place, **options):
    return table_at(place, **options).to_pyarrow_table().to_pylist()


def adds(table):
    """The commits that added files."""
    return [commit for commit in table.history() if commit["operation"] == "WRITE"]


# --- what is written -------------------------------------------------------------------------------------------


def test_a_batch_is_one_commit_of_a_table_that_is_made_for_it(delivery, place):
    assert delivery.position(2) == {}
    assert not delivery.is_delivered(FIRST)
    (result,) = deliver(delivery, FIRST, ROWS)
    table = table_at(place)
    assert changes(held(place)) == changes(ROWS)
    assert pa.schema(table.schema()) == pa.schema([("_op", pa.string()), ("_seq", pa.int64()), *storage_schema(PARTS)])
    assert (result.rows, result.withheld, result.bytes) == (len(ROWS), 0, result.files[0][0].size)
    assert (table.version(), table.transaction_version(APP)) == (1, 5)
    assert "delta.setTransactionRetentionDuration" not in table.metadata().configuration
    assert delivery.position(2) == {0: 5, 1: 5}


def test_other_engines_read_the_files_and_their_statistics(delivery, place):
    deliver(delivery, FIRST, ROWS[:12], ROWS[12:])
    deliver(delivery, SECOND, MORE)
    table = table_at(place)
    files = table.file_uris()
    assert len(files) == 3
    found = duckdb.sql(f"SELECT count(*), count(DISTINCT (session, part, _seq)) FROM read_parquet({files})").fetchall()
    assert found == [(len(ROWS) + len(MORE),) * 2]
    facts = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(row["num_records"] for row in facts) == sorted([12, len(ROWS) - 12, len(MORE)])
    assert {row["max._seq"] for row in facts} == {3, 5, 9}
    assert table.to_pyarrow_table(filters=[("_seq", ">", 5)]).num_rows == len(MORE)


def test_the_current_rows_follow_from_the_changes(delivery, place):
    deliver(delivery, FIRST, ROWS)
    deliver(delivery, SECOND, MORE)
    live = {}
    for row in sorted([*ROWS, *MORE], key=lambda row: row["_seq"]):
        live[row["session"], row["part"]] = None if row["_op"] == "delete" else row["text"]
    changed = table_at(place).to_pyarrow_table()
    last = "row_number() OVER (PARTITION BY session, part ORDER BY _seq DESC) = 1"
    found = duckdb.sql(f"SELECT session, part, text FROM changed QUALIFY {last} AND _op = 'upsert'").fetchall()
    assert changed.num_rows > len(found)
    assert sorted(found) == sorted((*key, text) for key, text in live.items() if text is not None)


def test_a_batch_without_rows_moves_the_position_and_withheld_rows_do_not_leave(delivery, place):
    deliver(delivery, FIRST)
    (result,) = deliver(delivery, SECOND, [withheld(7, 1, 1), withheld(8, 1, 2)])
    assert (result.rows, result.withheld, result.files) == (0, 2, ())
    assert delivery.position(1) == {0: 9}
    assert delivery.is_delivered(SECOND)
    deliver(delivery, new_batch(9, 10), [withheld(10, 1, 1), upsert(10, 1, 2)])
    assert changes(held(place)) == changes([upsert(10, 1, 2)])


# --- columns ---------------------------------------------------------------------------------------------------


def test_a_new_column_is_added_by_a_commit_of_its_own(delivery, place):
    deliver(delivery, FIRST, ROWS)
    wider = pa.schema([*PARTS, ("colour", pa.string())])
    deliver(delivery, new_batch(5, 9, columns=wider), [upsert(9, 1, 1, colour="red")])
    table = table_at(place)
    assert [commit["operation"] for commit in table.history()] == ["WRITE", "ADD COLUMN", "WRITE", "CREATE TABLE"]
    assert sorted((row["_seq"], row["colour"]) for row in held(place))[-1] == (9, "red")
    assert {row["colour"] for row in held(place)} == {None, "red"}
    # A sink that sends fewer columns again is no reason to change the table.
    deliver(delivery, new_batch(9, 10), [upsert(10, 1, 1)])
    assert table_at(place).version() == 4


def test_a_table_that_was_there_keeps_its_rows_and_columns(delivery, place):
    """Its own types where they hold the values; columns that we lack are null."""
    mine = pa.table({"session": ["mine"], "part": pa.array([1], pa.int64()), "owner": ["me"]})
    write_deltalake(str(place), mine)
    deliver(delivery, FIRST, ROWS)
    rows = held(place)
    assert [row["owner"] for row in rows if row["_op"] is None] == ["me"]
    assert changes(row for row in rows if row["_op"] is not None) == changes(ROWS)
    assert pa.schema(table_at(place).schema()).field("part").type == pa.int64()
    assert {row["owner"] for row in rows} == {"me", None}


# --- once ------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_delivered_is_said_to_be_and_finishing_it_again_changes_nothing(delivery, place):
    results = run_lanes(delivery, FIRST, [ROWS])
    delivery.finish(FIRST, results)
    assert delivery.is_delivered(FIRST)
    delivery.finish(FIRST, results)
    delivery.finish(again(FIRST), run_lanes(delivery, again(FIRST), [ROWS]))
    assert changes(held(place)) == changes(ROWS)
    assert table_at(place).version() == 1


CHILD = """
import sys
from deliveries import PRODUCER, deliver
from strandline.sinks.delta import DeltaSink
import test_delta_sink as tests
deliver(DeltaSink(sys.argv[1]).open(PRODUCER), tests.FIRST, tests.ROWS)
"""


@pytest.mark.parametrize("point", ["sink.files_written", "sink.committed"])
def test_a_process_killed_at_a_point_is_followed_by_one_that_doubles_nothing(delivery, place, point):
    ended = python(CHILD, str(place), crash=point)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(held(place)) == (len(ROWS) if point == "sink.committed" else 0)
    assert delivery.is_delivered(again(FIRST)) == (point == "sink.committed")
    deliver(delivery, again(FIRST), ROWS)
    assert changes(held(place)) == changes(ROWS)
    deliver(delivery, SECOND, MORE)
    assert changes(held(place)) == changes([*ROWS, *MORE])
    assert len(adds(table_at(place))) == 2


def test_a_replay_removes_what_a_dead_writer_left_unfinished(delivery, place):
    with delivery.storage.stage(f"data/{FIRST.id}/part-dead.parquet") as stage:
        stage.stream.write(b"half")
    deliver(delivery, again(FIRST), ROWS)
    assert list(delivery.storage.temporaries("")) == []


def test_a_commit_on_a_table_that_has_moved_on_is_refused_by_the_log(delivery, place):
    """What makes a check before the commit enough: it is tried for one version alone."""
    deliver(delivery, FIRST, ROWS)
    early, late = table_at(place), table_at(place)
    once = CommitProperties(app_transactions=[Transaction(APP, 9)], max_commit_retries=0)
    early.create_write_transaction([], "append", early.schema(), commit_properties=once)
    with pytest.raises(CommitFailedError):
        late.create_write_transaction([], "append", late.schema(), commit_properties=once)
    assert table_at(place).version() == 2


FINISHER = """
import json, sys
import test_delta_sink as tests
from deliveries import PRODUCER, new_batch, run_lanes
from strandline.sinks.delta import DeltaSink
delivery = DeltaSink(sys.argv[1]).open(PRODUCER)
for number in range(6):
    batch = new_batch(5 * number, 5 * number + 5)
    results = run_lanes(delivery, batch, [tests.ROWS])
    print("ready", flush=True)
    sys.stdin.readline()
    delivery.finish(batch, results)
    print("done", flush=True)
"""


def test_of_two_processes_that_finish_a_batch_at_once_one_adds_it(place):
    command = [sys.executable, "-c", FINISHER, str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=environment(), **pipes) for _ in range(2)]
    for number in range(6):
        assert [each.stdout.readline() for each in both] == ["ready\n"] * 2
        for each in both:
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.stdout.readline() for each in both] == ["done\n"] * 2
        assert len(held(place)) == len(ROWS) * (number + 1)
    for each in both:
        each.communicate()
        assert each.returncode == 0
    assert len(adds(table_at(place))) == 6


def test_of_several_threads_that_deliver_the_first_batch_at_once_one_adds_it(place):
    start = threading.Barrier(4)

    def run():
        start.wait()
        deliver(DeltaSink(place).open(PRODUCER), FIRST, ROWS)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert changes(held(place)) == changes(ROWS)


def test_other_writers_of_the_table_are_no_hindrance(delivery, place):
    deliver(delivery, FIRST, ROWS)
    stop = threading.Event()
    theirs = pa.table({"session": ["theirs"]})

    def write():
        while not stop.is_set():
            with contextlib.suppress(CommitFailedError):
                stop.wait(0.02)
                write_deltalake(str(place), theirs, mode="append", schema_mode="merge")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(6):
            deliver(delivery, new_batch(5 + number, 6 + number), [upsert(6 + number, 1, number)])
    finally:
        stop.set()
        writer.join()
    ours = [row for row in held(place) if row["_op"] is not None]
    assert len(ours) == len(ROWS) + 6
    assert len(held(place)) > len(ours)


def test_two_sinks_share_a_table_with_positions_of_their_own(place):
    one, two = (DeltaSink(place).open(replace(PRODUCER, generation=g * 32)) for g in "bc")
    deliver(one, FIRST, ROWS)
    assert not two.is_delivered(FIRST)
    deliver(two, replace(FIRST, id="other", upto=6), ROWS)
    assert (one.position(1), two.position(1)) == ({0: 5}, {0: 6})
    assert len(held(place)) == 2 * len(ROWS)


# --- a destination that lost something -------------------------------------------------------------------------


def test_a_table_that_was_removed_or_made_again_is_a_conflict(delivery, place):
    deliver(delivery, FIRST, ROWS)
    shutil.rmtree(place)
    with refused(sl.Conflict, consumer="archive", expected=5):
        deliver(delivery, SECOND, MORE)
    assert not place.exists()
    write_deltalake(str(place), pa.table({"session": ["new"]}))
    with refused(sl.Conflict, expected=5):
        deliver(delivery, SECOND, MORE)
    assert len(held(place)) == 1


def test_a_table_that_is_made_again_while_files_are_written_gets_none_of_them(delivery, place):
    results = run_lanes(delivery, FIRST, [ROWS])
    shutil.rmtree(place)
    with refused(sl.Conflict):
        delivery.finish(FIRST, results)
    DeltaSink(place).open(PRODUCER).lane(FIRST)
    with refused(sl.Conflict, path=results[0].files[0][0].path):
        delivery.finish(FIRST, results)
    assert held(place) == []


def test_a_position_outlives_the_commits_that_set_it(delivery, place):
    deliver(delivery, FIRST, ROWS)
    table_at(place).create_checkpoint()
    for commit in (place / "_delta_log").glob("*.json"):
        if int(commit.stem) < table_at(place).version():
            commit.unlink()
    write_deltalake(str(place), pa.table({"session": ["theirs"]}), mode="append", schema_mode="merge")
    table_at(place).create_checkpoint()
    (place / "_delta_log" / f"{1:020d}.json").unlink()
    assert delivery.position(1) == {0: 5}
    deliver(delivery, SECOND, MORE)
    assert len(held(place)) == len(ROWS) + len(MORE) + 1


def test_a_position_that_does_not_join_is_a_conflict(delivery):
    deliver(delivery, FIRST, ROWS)
    with refused(sl.Conflict, expected=7, found=5):
        delivery.is_delivered(new_batch(7, 9))


# --- the sink as a value ---------------------------------------------------------------------------------------


def test_a_delta_sink_is_rebuilt_from_what_is_kept_of_it(place):
    sink: contract.Sink = DeltaSink(place)
    assert DeltaSink.from_dict(json.loads(json.dumps(sink.to_dict()))) == sink
    assert (sink.kind, sink.is_ordered, sink.lanes, sink.destination) == ("delta", False, 1, str(place))
    delivery: contract.Delivery = sink.open(PRODUCER)
    delivery.close()
    secret = DeltaSink("s3://bucket/t", options={"secret_access_key": "hush"})
    assert "hush" not in json.dumps(secret.to_dict()) + repr(secret)
    with refused():
        DeltaSink("s3://key:hush@bucket/t")


def test_to_know_a_delta_sink_the_library_is_not_loaded():
    code = "import sys, strandline.sinks.delta; assert 'deltalake' not in sys.modules"
    assert python(code).returncode == 0


# --- S3 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(seaweed):
    """Opens deliveries to a table of this test's own on the S3 server."""
    prefix = uuid.uuid4().hex

    def open_(endpoint=seaweed, **options) -> DeltaDelivery:
        return DeltaSink(f"s3://{BUCKET}/{prefix}", options={**options_for(endpoint), **options}).open(PRODUCER)

    return open_


def s3_rows(delivery):
    return held(delivery.storage.uri, storage_options=dict(delivery.storage.delta_options))


def test_s3_takes_batches_once(s3):
    delivery = s3()
    deliver(delivery, FIRST, ROWS[:12], ROWS[12:])
    deliver(delivery, SECOND, MORE)
    assert deliver(s3(), again(SECOND), MORE) == []
    assert changes(s3_rows(delivery)) == changes([*ROWS, *MORE])
    assert delivery.position(2) == {0: 9, 1: 9}


@pytest.mark.parametrize("faults", [["lost"], ["unsent", "lost"], ["down"]])
def test_a_commit_without_an_answer_neither_loses_nor_doubles(s3, seaweed, faults):
    with proxied(seaweed) as proxy:
        delivery = s3(proxy.endpoint)
        deliver(delivery, FIRST, ROWS)
        proxy.is_aimed, proxy.faults, proxy.seen = is_commit, list(faults), []
        results = run_lanes(delivery, SECOND, [MORE])
        threading.Timer(1.0, lambda: setattr(proxy, "is_down", False)).start()
        with contextlib.suppress(sl.Unavailable):
            delivery.finish(SECOND, results)
        assert proxy.seen[0] == faults[0]
        deliver(delivery, again(SECOND), MORE)
        assert changes(s3_rows(s3())) == changes([*ROWS, *MORE])


def test_wrong_credentials_are_said_before_anything_is_sent(s3):
    with refused(sl.Unavailable):
        deliver(s3(secret_access_key="wrong"), FIRST, ROWS)
    assert s3().position(1) == {}


def test_the_page_about_files_names_what_a_reader_meets():
    text = (Path(__file__).parents[2] / "docs" / "sinks-files.md").read_text()
    assert [word for word in ("_op", "_seq", "DeltaSink", "ParquetSink", "_strandline") if word not in text] == []
