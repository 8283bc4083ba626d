"""Changes as Parquet files: a batch counts once, whoever finishes it how often, and nothing is left beside it."""

import contextlib
import json
import re
import shutil
import signal
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    delete,
    deliver,
    new_batch,
    run_lanes,
    upsert,
    upserts,
    withheld,
)
from strandline.model.types import JSON
from strandline.sinks import contract
from strandline.sinks.parquet import MANIFESTS, ParquetDelivery, ParquetSink
from support import BUCKET, files_below, is_completion, is_part, options_for, proxied, python, refused


@pytest.fixture
def place(tmp_path):
    return tmp_path / "archive"


@pytest.fixture
def delivery(place):
    return ParquetSink(place).open(PRODUCER)


def manifest_of(delivery, upto):
    path = f"{MANIFESTS}/{delivery.producer.generation}/{upto:020d}.json"
    return json.loads(delivery.storage.read(path))


def held(delivery):
    """The changes that anyone who reads all files sees."""
    paths = [info.path for info in delivery.storage.list("data")]
    found = []
    for path in paths:
        with delivery.storage.input(path) as stream:
            found += pq.read_table(stream).to_pylist()
    return found


def check_whole(delivery, *uptos):
    """Nothing lies there but the manifests of these batches and the files that they name."""
    manifests = [manifest_of(delivery, upto) for upto in uptos]
    named = {file["path"] for manifest in manifests for file in manifest["files"]}
    assert {info.path for info in delivery.storage.list("data")} == named
    assert list(delivery.storage.temporaries("")) == []
    for manifest in manifests:
        assert manifest["rows"] == sum(file["rows"] for file in manifest["files"])


# --- what is written -------------------------------------------------------------------------------------------


def test_a_batch_becomes_files_and_a_manifest_that_describes_them(delivery, place):
    (result,) = deliver(delivery, FIRST, ROWS)
    assert changes(held(delivery)) == changes(ROWS)
    assert (result.rows, result.withheld, result.bytes) == (len(ROWS), 0, result.files[0][0].size)
    manifest = manifest_of(delivery, 5)
    (file,) = manifest.pop("files")
    assert re.fullmatch(rf"data/b{{32}}/{5:020d}-{FIRST.id}/part-[0-9a-f]{{32}}\.parquet", file["path"])
    assert (file["rows"], file["size"]) == (len(ROWS), (place / file["path"]).stat().st_size)
    assert manifest.pop("written_at")
    assert manifest == {
        "format": 1,
        "lake_id": "lake",
        "consumer": "archive",
        "table": "parts",
        "table_generation": "a" * 32,
        "generation": "b" * 32,
        "batch": FIRST.id,
        "after": 0,
        "upto": 5,
        "columns": ["_op", "_seq", *PARTS.names],
        "rows": len(ROWS),
    }
    check_whole(delivery, 5)


def test_files_have_op_and_seq_first_and_keep_json(delivery, place):
    deliver(delivery, FIRST, ROWS)
    schema = pq.read_schema(place / manifest_of(delivery, 5)["files"][0]["path"])
    assert schema.names == ["_op", "_seq", *PARTS.names]
    found = duckdb.sql(f"SELECT typeof(tools), count(*) FROM '{place}/data/**/*.parquet' GROUP BY ALL").fetchall()
    assert found == [("JSON", len(ROWS))]


def test_a_delete_is_its_key_and_nulls_also_where_the_table_requires_values(delivery):
    columns = pa.schema([f.with_nullable(False) for f in PARTS])
    deliver(delivery, new_batch(0, 5, columns=columns), [delete(5, 2, 1)])
    empty = {"text": None, "tools": None}
    assert held(delivery) == [{"_op": "delete", "_seq": 5, "session": "s2", "part": 1, **empty}]


def test_the_current_rows_follow_from_the_changes_by_the_documented_queries(delivery, place):
    deliver(delivery, FIRST, ROWS)
    deliver(delivery, SECOND, MORE)
    text = (Path(__file__).parents[2] / "docs" / "sinks-files.md").read_text()
    queries = re.findall(r"```sql\n-- DuckDB.*?\n(.*?)```", text, re.S)
    assert len(queries) >= 2
    live = {(row["session"], row["part"]): row["text"] for row in sorted([*ROWS, *MORE], key=lambda r: r["_seq"])
            if row["_op"] == "upsert"}  # fmt: skip
    expected = sorted((*key, text) for key, text in live.items() if key not in {("s2", 1), ("s4", 2)})
    for query in queries:
        found = duckdb.sql(re.sub(r"'archive/", f"'{place}/", query))
        assert sorted(found.select("session", "part", "text").fetchall()) == expected


def test_batches_follow_one_another_and_the_position_is_the_last_ones(delivery):
    assert delivery.position(4) == {}
    deliver(delivery, FIRST, ROWS)
    deliver(delivery, SECOND, MORE)
    assert changes(held(delivery)) == changes([*ROWS, *MORE])
    assert delivery.position(4) == {vnode: 9 for vnode in range(4)}
    check_whole(delivery, 5, 9)


def test_a_new_column_is_in_the_files_from_then_on(delivery, place):
    deliver(delivery, FIRST, ROWS)
    wider = pa.schema([*PARTS, ("colour", pa.string())])
    deliver(delivery, new_batch(5, 9, columns=wider), [upsert(9, 1, 1, colour="red")])
    query = f"SELECT colour, count(*) FROM read_parquet('{place}/data/**/*.parquet', union_by_name = true) GROUP BY 1"
    assert sorted(duckdb.sql(query).fetchall(), key=repr) == [("red", 1), (None, len(ROWS))]


def test_a_batch_without_rows_is_a_manifest_and_withheld_rows_do_not_leave(delivery):
    deliver(delivery, FIRST)
    (result,) = deliver(delivery, SECOND, [withheld(7, 1, 1), withheld(8, 1, 2)])
    assert (result.rows, result.withheld, result.bytes, result.files) == (0, 2, 0, ())
    (result,) = deliver(delivery, new_batch(9, 10), [withheld(10, 1, 1), upsert(10, 1, 2)])
    assert (result.rows, result.withheld) == (1, 1)
    assert delivery.position(2) == {0: 10, 1: 10}
    assert changes(held(delivery)) == changes([upsert(10, 1, 2)])
    check_whole(delivery, 5, 9, 10)


def test_equal_rows_of_several_lanes_count_as_often_as_they_were_sent(delivery):
    """Rows of a table without a key may look the same."""
    batch = new_batch(0, 5, columns=pa.schema([("id", pa.int64())]), key=(), cluster_by=())
    lanes = [[{"_op": "upsert", "_vnode": 0, "_seq": 5, "_row": row, "id": 1}] for row in range(3)]
    for attempt in (batch, again(batch)):
        (delivery.storage.delete if attempt.is_replay else list)([f"{MANIFESTS}/{'b' * 32}/{5:020d}.json"])
        deliver(delivery, attempt, *lanes)
        assert [row["id"] for row in held(delivery)] == [1, 1, 1]
        check_whole(delivery, 5)


def test_a_clustered_batch_closes_its_row_groups_by_cluster_keys(delivery, place):
    deliver(delivery, FIRST, upserts(3, range(40)))
    (file,) = manifest_of(delivery, 5)["files"]
    assert pq.ParquetFile(place / file["path"]).num_row_groups == 3
    # Without the cluster column in it, rows and bytes alone close one.
    narrow = pa.schema([PARTS.field("part"), PARTS.field("text")])
    deliver(delivery, new_batch(5, 9, columns=narrow, key=("part",)), upserts(9, range(40)))
    (file,) = manifest_of(delivery, 9)["files"]
    assert pq.ParquetFile(place / file["path"]).num_row_groups == 1


# --- once ------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_delivered_is_said_to_be_and_finishing_it_again_changes_nothing(delivery, place):
    assert not delivery.is_delivered(FIRST)
    results = run_lanes(delivery, FIRST, [ROWS])
    delivery.finish(FIRST, results)
    before = {path: (place / path).stat().st_mtime_ns for path in files_below(place)}
    assert delivery.is_delivered(FIRST)
    assert delivery.is_delivered(again(FIRST))
    delivery.finish(FIRST, results)
    delivery.finish(again(FIRST), run_lanes(delivery, again(FIRST), [ROWS[::-1]]))
    assert {path: (place / path).stat().st_mtime_ns for path in files_below(place)} == before


CHILD = """
import sys
from deliveries import PRODUCER, deliver
from strandline.sinks.parquet import ParquetSink
import test_parquet as tests
deliver(ParquetSink(sys.argv[1]).open(PRODUCER), tests.FIRST, *tests.CUTS[sys.argv[2]])
"""
CUTS = {"whole": [ROWS], "halves": [ROWS[:12], ROWS[12:]], "turned": [ROWS[::-1]]}


def die(place, cuts, point):
    ended = python(CHILD, str(place), cuts, crash=point)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize("point", ["sink.staged", "sink.published", "sink.described"])
def test_a_process_killed_at_a_point_is_followed_by_one_that_doubles_nothing(tmp_path, point):
    die(tmp_path / "dead", "halves", point)
    is_visible = point != "sink.staged"
    for cuts in ("halves", "turned"):
        place = tmp_path / cuts
        shutil.copytree(tmp_path / "dead", place)
        delivery = ParquetSink(place).open(PRODUCER)
        dead = files_below(place / "data")
        assert len([path for path in dead if ".tmp-" not in path]) == (2 if is_visible else 0)
        assert delivery.is_delivered(again(FIRST)) == (point == "sink.described")
        deliver(delivery, again(FIRST), *CUTS[cuts])
        assert changes(held(delivery)) == changes(ROWS)
        check_whole(delivery, 5)
        if cuts == "halves" and is_visible:
            assert files_below(place / "data") == dead, "the same rows are the same files"
        deliver(delivery, SECOND, MORE)
        assert changes(held(delivery)) == changes([*ROWS, *MORE])


def test_what_two_dead_attempts_cut_differently_is_cleared_once_the_batch_counts(place):
    die(place, "halves", "sink.published")
    die(place, "turned", "sink.described")
    delivery = ParquetSink(place).open(PRODUCER)
    assert len(held(delivery)) == 2 * len(ROWS), "until someone looks"
    assert deliver(delivery, again(FIRST), ROWS) == []
    assert changes(held(delivery)) == changes(ROWS)
    check_whole(delivery, 5)


@pytest.mark.parametrize("cuts", [["whole"] * 4, ["whole", "halves", "turned", "halves"]])
def test_of_several_who_finish_a_batch_at_once_each_row_is_there_once(place, cuts):
    deliveries = [ParquetSink(place).open(PRODUCER) for _ in cuts]
    for number in range(5):
        batch = new_batch(5 * number, 5 * number + 5)
        results = [run_lanes(d, batch, CUTS[cut]) for d, cut in zip(deliveries, cuts, strict=True)]
        start = threading.Barrier(len(cuts))
        ended = []

        def finish(delivery, batch, results, start=start, ended=ended):
            start.wait()
            delivery.finish(batch, results)
            ended.append(True)

        threads = [
            threading.Thread(target=finish, args=(d, batch, r)) for d, r in zip(deliveries, results, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ended) == len(cuts)
        assert len(held(deliveries[0])) == len(ROWS) * (number + 1)
    check_whole(deliveries[0], *range(5, 26, 5))


class Overtaken:
    """A real storage before whose next call of one kind something else happens."""

    def __init__(self, real, call, first):
        self._real, self._call, self._first = real, call, first

    def __getattr__(self, name):
        if name == self._call:
            self._call = None
            self._first()
        return getattr(self._real, name)


@pytest.mark.parametrize("call", ["publish", "put_new", "delete"])
@pytest.mark.parametrize("cuts", ["whole", "halves", "turned"])
def test_one_who_is_overtaken_while_it_finishes_leaves_nothing_behind(delivery, call, cuts):
    ours, theirs = (run_lanes(delivery, FIRST, CUTS[each]) for each in (cuts, "whole"))
    storage = Overtaken(delivery.storage, call, lambda: delivery.finish(FIRST, theirs))
    ParquetDelivery(storage, PRODUCER).finish(FIRST, ours)
    assert changes(held(delivery)) == changes(ROWS)
    check_whole(delivery, 5)


def test_without_a_manifest_nothing_that_is_visible_is_removed(delivery):
    path = f"{MANIFESTS}/{'b' * 32}/{5:020d}.json"
    storage = Overtaken(delivery.storage, "list", lambda: None)
    storage.put_new = lambda path, data: True  # a manifest that someone removes at once
    ParquetDelivery(storage, PRODUCER).finish(FIRST, run_lanes(delivery, FIRST, [ROWS]))
    assert not delivery.storage.exists(path)
    assert changes(held(delivery)) == changes(ROWS)
    deliver(delivery, again(FIRST), ROWS)
    check_whole(delivery, 5)


# --- a destination that lost or got something ------------------------------------------------------------------


def test_a_destination_that_was_emptied_is_a_conflict_and_a_new_generation_starts_over(delivery, place):
    deliver(delivery, FIRST, ROWS)
    shutil.rmtree(place)
    with refused(sl.Conflict, consumer="archive", expected=5):
        deliver(delivery, SECOND, MORE)
    assert not place.exists()
    fresh = ParquetSink(place).open(replace(PRODUCER, generation="c" * 32))
    deliver(fresh, FIRST, ROWS)
    deliver(fresh, SECOND, MORE)
    assert changes(held(fresh)) == changes([*ROWS, *MORE])


def test_a_lost_manifest_is_a_conflict(delivery):
    deliver(delivery, FIRST, ROWS)
    delivery.storage.delete([f"{MANIFESTS}/{'b' * 32}/{5:020d}.json"])
    with refused(sl.Conflict, expected=5):
        delivery.is_delivered(SECOND)


def test_a_manifest_of_another_batch_up_to_the_same_seq_is_a_conflict(delivery):
    deliver(delivery, FIRST, ROWS)
    with refused(sl.Conflict, expected="other", found=FIRST.id):
        delivery.is_delivered(replace(FIRST, id="other"))


def test_a_manifest_that_is_no_manifest_is_named(delivery):
    deliver(delivery, FIRST, ROWS)
    path = f"{MANIFESTS}/{'b' * 32}/{5:020d}.json"
    delivery.storage.delete([path])
    delivery.storage.put_new(path, b"{")
    with refused(sl.Corrupt, path=path):
        delivery.is_delivered(FIRST)


def test_two_sinks_share_a_place_without_knowing_of_each_other(place):
    one, two = (ParquetSink(place).open(replace(PRODUCER, generation=g * 32)) for g in "bc")
    deliver(one, FIRST, ROWS)
    assert not two.is_delivered(FIRST)
    assert two.position(1) == {}
    deliver(two, FIRST, ROWS)
    assert len(held(one)) == 2 * len(ROWS)


# --- the sink as a value ---------------------------------------------------------------------------------------


def test_a_sink_is_rebuilt_from_what_is_kept_of_it(place, monkeypatch):
    sink = ParquetSink(str(place))
    assert isinstance(sink, ParquetSink)
    assert ParquetSink.from_dict(json.loads(json.dumps(sink.to_dict()))) == sink
    assert (sink.kind, sink.is_ordered, sink.lanes, sink.destination) == ("parquet", False, 1, str(place))
    monkeypatch.chdir(place.parent)
    assert ParquetSink("archive") == ParquetSink(place.as_uri()) == sink


# --- S3 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(seaweed):
    """Opens deliveries to a place of this test's own on the S3 server."""
    prefix = uuid.uuid4().hex

    def open_(endpoint=seaweed, **options) -> ParquetDelivery:
        return ParquetSink(f"s3://{BUCKET}/{prefix}", options={**options_for(endpoint), **options}).open(PRODUCER)

    return open_


def test_s3_takes_batches_once(s3):
    delivery = s3()
    deliver(delivery, FIRST, ROWS[:12], ROWS[12:])
    deliver(delivery, SECOND, MORE)
    assert deliver(s3(), again(SECOND), MORE) == []
    assert changes(held(delivery)) == changes([*ROWS, *MORE])
    assert delivery.position(2) == {0: 9, 1: 9}
    check_whole(delivery, 5, 9)


def test_unfinished_uploads_of_an_attempt_go_with_the_next_one(s3):
    delivery = s3()
    run_lanes(delivery, FIRST, [ROWS])
    assert len(list(delivery.storage.temporaries(""))) == 1
    deliver(delivery, again(FIRST), ROWS)
    check_whole(delivery, 5)


def is_manifest(command, path):
    return command == "PUT" and f"/{MANIFESTS}/" in path


@pytest.mark.parametrize(("is_aimed", "fault"), [(is_completion, "lost"), (is_manifest, "lost"), (is_manifest, "down")])
def test_an_answer_that_never_came_neither_loses_nor_doubles(s3, seaweed, is_aimed, fault):
    with proxied(seaweed) as proxy:
        delivery = s3(proxy.endpoint, retry_config={"max_retries": 1})
        deliver(delivery, FIRST, ROWS)
        proxy.is_aimed, proxy.faults = is_aimed, [fault]
        with contextlib.suppress(sl.Unavailable):
            deliver(delivery, SECOND, MORE)
        assert proxy.seen[0] == fault
        proxy.is_down, proxy.faults = False, []
        deliver(delivery, again(SECOND), MORE)
        assert changes(held(delivery)) == changes([*ROWS, *MORE])
        check_whole(delivery, 5, 9)


def test_wrong_credentials_and_a_missing_bucket_are_said_before_anything_is_sent(s3, seaweed):
    with refused(sl.Unavailable):
        deliver(s3(secret_access_key="wrong"), FIRST, ROWS)
    with proxied(seaweed) as proxy:
        for is_aimed in (is_check, is_part):
            proxy.is_aimed, proxy.faults = is_aimed, [(404, "NoSuchBucket")] * 20
            with refused(sl.NotFound):
                deliver(s3(proxy.endpoint), FIRST, ROWS)
            proxy.faults = []
    assert not s3().is_delivered(FIRST)


def is_check(command, path):
    return command == "PUT" and "/_check/" in path


def test_a_parquet_sink_is_a_sink(place):
    sink: contract.Sink = ParquetSink(place)
    delivery: contract.Delivery = sink.open(PRODUCER)
    delivery.close()
    assert JSON in delivery.lane(FIRST).columns.types
