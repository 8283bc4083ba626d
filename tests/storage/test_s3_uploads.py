"""Large and staged files on a real S3 server: over a network that fails, by writers that are killed."""

import contextlib
import json
import os
import time
import uuid
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.storage import s3_uploads
from strandline.storage.open import S3Storage
from support import (
    BUCKET,
    KEY,
    SECRET,
    answer_of,
    is_completion,
    is_part,
    options_for,
    proxied,
    python,
    refused,
    start_python,
)

BIG = os.urandom(1 << 20) * 27 + b"the end"
PARTS = 4
SLOW_DOWN = (503, "SlowDown")
GONE = (404, "NoSuchUpload")


@pytest.fixture(scope="module")
def network(seaweed):
    with proxied(seaweed) as proxy:
        yield proxy


@pytest.fixture
def proxy(network):
    network.faults, network.seen, network.requests, network.is_down = [], [], [], False
    yield network
    network.is_down = False


@pytest.fixture
def honest(seaweed):
    """What is really on the server, seen past the proxy."""
    return S3Storage(BUCKET, uuid.uuid4().hex, options_for(seaweed))


@pytest.fixture
def storage(honest, proxy):
    return S3Storage(BUCKET, honest.prefix, options_for(proxy.endpoint))


@pytest.fixture
def hasty(storage):
    """The same storage, for a caller who does not wait long."""
    return S3Storage(BUCKET, storage.prefix, {**storage.options, "retry_config": {"max_retries": 1}})


def put(storage, path, data=BIG):
    with storage.output(path) as stream:
        for at in range(0, len(data), 3_000_000):
            stream.write(data[at : at + 3_000_000])


def put_in_two_steps(storage, path, data=BIG):
    storage.publish([staged(storage, path, data)])


def staged(storage, path, data=BIG):
    with storage.stage(path) as stage:
        for at in range(0, len(data), 3_000_000):
            stage.stream.write(data[at : at + 3_000_000])
    return stage.staged


WAYS = pytest.mark.parametrize("write", [put, put_in_two_steps])


def swept(storage):
    """Abort what is unfinished; how much that was."""
    found = [info.path for info in storage.temporaries("")]
    storage.delete(found)
    assert list(storage.temporaries("")) == []
    return len(found)


# --- what is sent ----------------------------------------------------------------------------------------------


def test_ten_thousand_parts_make_a_terabyte():
    assert sum(map(s3_uploads.part_bytes, range(s3_uploads.PARTS))) >= 10**12
    assert s3_uploads.part_bytes(0) == s3_uploads.part_bytes(100) == 8 << 20
    assert max(map(s3_uploads.part_bytes, range(s3_uploads.PARTS))) <= 256 << 20


def test_parts_grow_as_they_add_up(honest, monkeypatch):
    monkeypatch.setattr(s3_uploads, "_GROWS_EVERY", 1)
    put(honest, "grown")
    assert honest.read("grown") == BIG
    found = staged(honest, "more", BIG + BIG)
    assert len(found.parts) == 4, "of 8, 16, 24 and what is left of 54 megabytes"
    honest.publish([found])
    assert honest.read("more") == BIG + BIG


@pytest.mark.parametrize("size", [0, 1, (8 << 20) - 1])
def test_an_output_that_fits_into_a_part_is_one_request(storage, proxy, size):
    put(storage, "small", b"s" * size)
    assert [request.split("?")[0] for request in proxy.requests] == [f"PUT /{BUCKET}/{storage.prefix}/small"]
    assert storage.read("small") == b"s" * size


@pytest.mark.parametrize("size", [8 << 20, (8 << 20) + 1, 16 << 20])
def test_an_output_of_whole_parts_has_no_empty_one(storage, proxy, size):
    put(storage, "even", b"e" * size)
    assert sum(is_part(*request.split()) for request in proxy.requests) == -(-size // (8 << 20))
    assert storage.read("even") == b"e" * size


def test_options_may_carry_their_long_names_or_come_from_the_environment(honest, seaweed):
    long = {f"aws_{name}": value for name, value in options_for(seaweed).items()}
    # For obstore, which takes plain HTTP only when it is told so; the client of uploads needs no such word.
    put_in_two_steps(S3Storage(BUCKET, honest.prefix, {**long, "allow_http": "true"}), "long", b"named")
    assert honest.read("long") == b"named"
    code = """
import sys
from strandline.storage.open import S3Storage
storage = S3Storage(*sys.argv[1:])
with storage.stage("env") as stage:
    stage.stream.write(b"ironment")
storage.publish([stage.staged])
print(storage.read("env").decode())
"""
    settings = {"AWS_ENDPOINT": seaweed, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    done = python(code, BUCKET, honest.prefix, AWS_REGION="us-east-1", AWS_ALLOW_HTTP="true", **settings)
    assert done.stdout.split() == ["ironment"], done.stderr


def test_a_lake_in_a_folder_loads_no_client(tmp_path):
    code = """
import sys
import pyarrow as pa
import strandline as sl
lake = sl.Lake(sys.argv[1])
lake.create_table("t", pa.schema([("id", pa.int64())]), key=["id"]).upsert([{"id": 1}])
lake.vacuum()
print("botocore" in sys.modules)
"""
    done = python(code, str(tmp_path / "lake"))
    assert done.stdout.split() == ["False"], done.stderr


# --- a network that fails --------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("fault", ["cut", "lost", "unsent", "busy", SLOW_DOWN], ids=str)
def test_parts_that_do_not_arrive_are_sent_again(storage, honest, proxy, write, fault):
    proxy.is_aimed, proxy.faults = is_part, ["ok", fault, fault]
    write(storage, "x/big")
    assert proxy.faults == []
    assert len(proxy.seen) == PARTS + 2
    assert honest.read("x/big") == BIG
    assert swept(honest) == 0


@WAYS
@pytest.mark.parametrize(
    "faults",
    [["lost"], ["lost", "lost"], ["lost", GONE], ["unsent"], [SLOW_DOWN], [(200, "InternalError")]],
    ids=str,
)
def test_a_completion_whose_answer_is_lost_has_happened_once(storage, honest, proxy, write, faults):
    proxy.is_aimed, proxy.faults = is_completion, list(faults)
    write(storage, "x/big")
    assert proxy.faults == []
    assert honest.read("x/big") == BIG
    assert swept(honest) == 0


@pytest.mark.parametrize("fault", ["cut", "busy", (500, "InternalError"), (403, "AccessDenied")], ids=str)
def test_parts_that_never_arrive_leave_nothing(hasty, honest, proxy, fault):
    for write_to in (put, staged):
        proxy.is_aimed, proxy.faults = is_part, ["ok", *[fault] * 20]
        with refused(sl.Unavailable, path="x/big"):
            write_to(hasty, "x/big")
        proxy.faults = []
        assert list(honest.list("")) == []
        assert swept(honest) == 0, "the abort came through"


@pytest.mark.parametrize("fault", ["busy", (200, "InternalError")], ids=str)
def test_a_completion_that_never_succeeds_shows_nothing(hasty, honest, proxy, fault):
    proxy.is_aimed, proxy.faults = is_completion, [fault] * 20
    with refused(sl.Unavailable, path="x/big"):
        put(hasty, "x/big")
    assert list(honest.list("")) == []
    assert swept(honest) == 0
    proxy.faults = []
    found = staged(hasty, "x/big")
    proxy.faults = [fault] * 20
    with refused(sl.Unavailable, path="x/big"):
        hasty.publish([found])
    assert list(honest.list("")) == []
    proxy.faults = []
    hasty.publish([found])
    assert honest.read("x/big") == BIG


@pytest.mark.parametrize("sent", range(PARTS))
def test_a_network_that_goes_away_leaves_an_upload_that_can_be_swept(hasty, honest, proxy, sent):
    proxy.is_aimed, proxy.faults = is_part, [*["ok"] * sent, "down"]
    with refused(sl.Unavailable, path="x/big"):
        staged(hasty, "x/big")
    proxy.is_down = False
    assert list(honest.list("")) == []
    assert swept(hasty) == 1


def test_a_network_that_goes_away_before_the_end_leaves_a_staged_file_whole(hasty, honest, proxy):
    found = staged(hasty, "x/big")
    proxy.is_aimed, proxy.faults = is_completion, ["down"]
    with refused(sl.Unavailable, path="x/big"):
        hasty.publish([found])
    proxy.is_down = False
    assert list(honest.list("")) == []
    hasty.publish([found])
    assert honest.read("x/big") == BIG


def test_an_upload_that_is_gone_was_published_only_if_the_file_is_there(storage, honest, proxy):
    found = staged(storage, "x/big")
    proxy.is_aimed, proxy.faults = is_completion, [GONE]
    with refused(sl.Conflict, path="x/big"):
        storage.publish([found])
    put(honest, "x/big", BIG[::-1])
    proxy.faults = [GONE]
    with refused(sl.Conflict, path="x/big"):
        storage.publish([found])
    storage.publish([found])
    proxy.faults = [GONE]
    storage.publish([found])
    assert honest.read("x/big") == BIG


def test_where_tags_tell_nothing_name_and_size_do(storage, proxy):
    found = staged(storage, "x/y", b"whatever")
    storage.publish([found])
    unknown = replace(found, parts=("one-of-a-kind",))
    proxy.is_aimed, proxy.faults = is_completion, [GONE, GONE]
    storage.publish([unknown])
    with refused(sl.Conflict, path="x/y"):
        storage.publish([replace(unknown, size=7)])


def test_a_bucket_that_is_not_there_is_a_plain_file_not_found(storage, proxy):
    proxy.is_aimed, proxy.faults = is_part, [(404, "NoSuchBucket")]
    with pytest.raises(FileNotFoundError, match="x/y"):
        staged(storage, "x/y", b"nowhere to go")


def test_a_store_without_a_list_of_uploads_has_nothing_to_sweep(storage, proxy):
    proxy.is_aimed = lambda command, path: command == "GET" and "uploads" in path
    proxy.faults = [(501, "NotImplemented")]
    assert list(storage.temporaries("")) == []
    assert proxy.faults == []
    proxy.faults = [(403, "AccessDenied")]
    assert list(storage.temporaries("")) == [], "who may only read has nothing to sweep"
    proxy.faults = [(403, "SignatureDoesNotMatch")]
    with refused(sl.Unavailable):
        list(storage.temporaries(""))


@pytest.mark.parametrize("sent", [0, 1])
def test_a_parquet_writer_tells_why_it_failed(hasty, honest, proxy, sent):
    table = pa.table({"blob": [os.urandom(1 << 20) for _ in range(27)]})
    proxy.is_aimed, proxy.faults = is_part, [*["ok"] * sent, *["busy"] * 20]
    with refused(sl.Unavailable, path="x.parquet"), hasty.output("x.parquet") as stream:
        pq.write_table(table, stream, row_group_size=4, compression="none")
    proxy.faults = []
    assert list(honest.list("")) == []
    assert swept(honest) == 0


def test_a_writer_whose_upload_was_swept_is_told_so(storage, honest):
    with refused(sl.Conflict, path="x/big"), storage.output("x/big") as stream:
        stream.write(BIG[: 9 << 20])
        deadline_s = time.monotonic() + 30
        while not sum(info.size for info in honest.temporaries("")):
            assert time.monotonic() < deadline_s, "the first part never arrives"
        assert swept(honest) == 1
        stream.write(BIG)
    assert list(honest.list("")) == []
    assert swept(honest) == 0


# --- writers that die ------------------------------------------------------------------------------------------

ENDLESS = """
import json, sys, time
from strandline.storage.open import S3Storage
storage = S3Storage(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
with storage.output(sys.argv[4]) as stream:
    for n in range(10_000):
        stream.write(b"%08d" % n * (1 << 17))
        if n == 40:
            print("under way", flush=True)
        time.sleep(0.01)
"""


@contextlib.contextmanager
def writer(storage, path):
    """A process in the middle of a large upload, killed at the end of the block at the latest."""
    process = start_python(ENDLESS, storage.bucket, storage.prefix, json.dumps(dict(storage.options)), path)
    try:
        assert process.stdout.readline() == "under way\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_writer_that_is_killed_leaves_an_upload_that_can_be_swept(honest):
    with writer(honest, "x/big"):
        pass
    assert list(honest.list("")) == []
    (left,) = honest.temporaries("x")
    assert left.path.startswith("x/big?uploadId=")
    assert left.size >= 8 << 20
    assert abs(left.modified_s - honest.now_s()) < 60
    honest.delete([left.path])
    assert list(honest.temporaries("")) == []
    assert list(honest.list("")) == []


def test_a_vacuum_ends_the_uploads_of_dead_writers_and_leaves_young_ones_alone(s3_lake):
    lake = s3_lake()
    table = lake.create_table("items", pa.schema([("id", pa.int64())]), key=["id"], vnodes=1)
    table.upsert([{"id": 1}])
    with writer(lake.storage, f"{table.log.folder}/0000-{'0' * 32}.parquet"):
        pass
    (old,) = lake.storage.temporaries("")
    assert lake.vacuum(grace="1h").leftovers == ()
    assert [info.path for info in lake.storage.temporaries("")] == [old.path]
    time.sleep(max(0.0, old.modified_s + 6 - lake.storage.now_s()))
    young = staged(lake.storage, f"{table.log.folder}/0000-{'1' * 32}.parquet", b"young")
    (dry,) = lake.vacuum(grace="4s", dry_run=True).leftovers
    assert [info.path for info in dry.infos] == [old.path]
    (found,) = lake.vacuum(grace="4s").leftovers
    # A part that was on its way when the writer was killed may have arrived after that.
    assert [info.path for info in found.infos] == [old.path]
    assert found.bytes >= old.size
    assert [info.path for info in lake.storage.temporaries("")] == [young.temporary]
    lake.storage.publish([young])
    assert table.to_arrow()["id"].to_pylist() == [1]


def test_a_writer_that_is_slow_is_not_taken_for_dead(honest):
    with honest.stage("x/slow") as stage:
        stage.stream.write(BIG[: 9 << 20])
        time.sleep(3)
        stage.stream.write(BIG[9 << 20 :])
    (info,) = honest.temporaries("")
    assert honest.now_s() - info.modified_s < 2.5, "the time of its last part counts"
    honest.delete([info.path])


STREAM = """
import json, re, sys
from strandline.storage.open import S3Storage
storage = S3Storage(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
with storage.stage("warm") as stage:
    stage.stream.write(b"up")
storage.publish([stage.staged])
def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak_kib()
with storage.output("big") as stream:
    for n in range(300):
        stream.write(b"%08d" % n * (1 << 17))
print(json.dumps((peak_kib() - before) / 1024))
"""


def test_a_large_file_is_streamed_in_little_memory(honest):
    process = start_python(STREAM, honest.bucket, honest.prefix, json.dumps(dict(honest.options)))
    grown_mib = answer_of(process)
    assert [info.size for info in honest.list("") if info.path == "big"] == [300 << 20]
    print(f"memory grew by {grown_mib:.0f} MiB")
    assert 8 < grown_mib < 60
