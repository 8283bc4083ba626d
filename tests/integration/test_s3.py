"""The core on an object store: a real S3 server, and one whose answers get lost on the way."""

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline import writer
from strandline.change import UPSERT
from strandline.consumers import compaction
from strandline.rows import checked
from support import BUCKET, ITEMS, by_id, options_for, refused, rows_of


def test_the_core_works_on_the_driver(s3_lake):
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    history = [{}]

    def step(call, now):
        call()
        history.append(now)

    step(lambda: table.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], token="t"), {1: "a", 2: "b"})
    step(lambda: table.delete([1]), {2: "b"})
    table.compact(full=True)
    step(lambda: table.upsert([{"id": 3, "name": "c"}]), {2: "b", 3: "c"})
    step(lambda: table.evolve(pa.schema([("colour", pa.string())])), {2: "b", 3: "c"})
    step(lambda: table.upsert([{"id": 2, "name": "B", "colour": "red"}]), {2: "B", 3: "c"})
    for handle in (table, s3_lake().table("items")):
        assert [by_id(handle, at=seq) for seq in range(6)] == history
    table.compact(full=True)
    fresh = s3_lake()
    assert [by_id(fresh.table("items"), at=seq) for seq in range(6)] == history
    assert fresh.table("items").upsert([{"id": 9}], token="t") == sl.Commit(1, 2, is_replay=True)
    assert fresh.sql("SELECT name FROM items WHERE colour = 'red'").to_pylist() == [{"name": "B"}]
    assert fresh.table("items").to_arrow(where="id = 3", columns=["name"]).to_pylist() == [{"name": "c"}]
    assert fresh.table("items").changes(3)["_seq"].to_pylist() == [5]
    with refused(sl.Invalid):
        fresh.sql("SELECT * FROM read_text('/etc/passwd')")


def test_other_engines_read_it(s3_lake):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert([{"id": n, "name": str(n)} for n in range(10)])
    table.compact(full=True)
    storage = table.log.storage
    for folder in (table.baseline.folder, table.log.folder):
        delta = DeltaTable(storage.url(folder), storage_options=dict(storage.delta_options))
        assert delta.to_pyarrow_table().num_rows == 10


def test_many_commits_are_checkpointed_and_read_on(s3_lake):
    table = s3_lake().create_table("items", ITEMS, key=["id"], vnodes=1)
    for n in range(55):
        table.upsert([{"id": n % 5, "name": str(n)}])
    assert any(info.path.endswith(".checkpoint.parquet") for info in table.log.storage.list(table.log.folder))
    fresh = s3_lake().table("items")
    assert by_id(fresh) == {n % 5: str(n) for n in range(50, 55)}
    assert by_id(fresh, at=7) == {0: "5", 1: "6", 2: "2", 3: "3", 4: "4"}


def test_spark_writes_reads_and_folds(spark, s3_lake):
    lake = s3_lake()
    table = lake.create_table("items", ITEMS, key=["id"], vnodes=2)
    table.upsert(spark.range(40).selectExpr("id", "'spark' AS name"))
    table.compact(full=True)
    table.upsert([{"id": n, "name": "driver"} for n in range(30, 50)])
    table.delete([0])
    expected = {n: "spark" if n < 30 else "driver" for n in range(1, 50)}
    assert by_id(table) == expected
    assert {row["id"]: row["name"] for row in table.to_spark().collect()} == expected
    assert {row["id"] for row in table.to_spark(at=1, where="id < 5").collect()} == set(range(5))
    compaction.compact(table, full=True, driver_rows=0)
    assert by_id(s3_lake().table("items")) == expected
    rows = checked([{"id": n % 50, "name": f"spool {n}"} for n in range(100)], table.schema)
    definition = table.definition
    commit = writer.write(table.log, rows, definition, UPSERT, tokens=(), spark=None, driver_bytes=1)
    assert commit.rows == 50
    assert by_id(table) == {n: f"spool {n + 50}" for n in range(50)}
    assert not [info for info in table.log.storage.list(table.log.folder) if "spool" in info.path]


def test_two_lakes_write_one_table_without_losing_a_commit(s3_lake):
    s3_lake().create_table("events", ITEMS, vnodes=2)
    seqs = []

    def write(number):
        table = s3_lake().table("events")
        for n in range(10):
            seqs.append(table.append([{"id": number * 100 + n}]).seq)

    threads = [threading.Thread(target=write, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 31))
    assert rows_of(s3_lake().table("events").to_arrow(columns=["id"])) == sorted(
        ((number * 100 + n,) for number in range(3) for n in range(10)), key=repr
    )


def test_wrong_credentials_are_not_an_empty_lake(seaweed):
    with pytest.raises(sl.StrandlineError):
        sl.Lake(f"s3://{BUCKET}/x", storage_options={**options_for(seaweed), "secret_access_key": "wrong"})


# --- a network that loses answers ------------------------------------------------------------------------------


class Proxy:
    """A real HTTP proxy in front of the S3 server. `faults` are taken one by one by the PUTs of commit files:
    lost: forwarded, and the connection is closed instead of an answer; unsent: closed at once; busy: a 503."""

    def __init__(self, upstream):
        self.faults = []
        self.seen = []
        self._lock = threading.Lock()
        host, port = upstream.removeprefix("http://").split(":")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.take(self.command, self.path)
                if fault == "unsent":
                    self.close_connection = True
                    return
                if fault == "busy":
                    self.answer(503, [], b"")
                    return
                upstream = http.client.HTTPConnection(host, int(port), timeout=30)
                try:
                    upstream.request(self.command, self.path, body=body, headers=dict(self.headers))
                    response = upstream.getresponse()
                    data = response.read()
                finally:
                    upstream.close()
                if fault == "lost":
                    self.close_connection = True
                    return
                self.answer(response.status, response.getheaders(), data)

            def answer(self, status, headers, data):
                self.send_response_only(status)
                known = {name.lower() for name, _ in headers}
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                if "content-length" not in known:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def take(self, command, path):
        with self._lock:
            if command == "PUT" and "/_delta_log/" in path and path.split("?")[0].endswith(".json"):
                fault = self.faults.pop(0) if self.faults else "ok"
                self.seen.append(fault)
                return fault
        return "ok"


@pytest.fixture(scope="module")
def proxy(seaweed):
    proxy = Proxy(seaweed)
    thread = threading.Thread(target=proxy.server.serve_forever, daemon=True)
    thread.start()
    yield proxy
    proxy.server.shutdown()
    proxy.server.server_close()


@pytest.mark.parametrize("faults", [["lost"], ["unsent"], ["lost", "lost"], ["busy", "lost"]], ids="-".join)
def test_a_commit_whose_answer_is_lost_on_the_way_lands_once(s3_lake, proxy, faults):
    honest = s3_lake().create_table("events", ITEMS, vnodes=2)
    table = s3_lake(proxy.endpoint).table("events")
    for number in range(2):
        proxy.faults = list(faults)
        commit = table.append([{"id": number}])
        assert commit == sl.Commit(number + 1, 1)
    assert proxy.faults == []
    assert honest.changes()["_seq"].to_pylist() == [1, 2]
    assert sorted(honest.to_arrow()["id"].to_pylist()) == [0, 1]
    proxy.faults = list(faults)
    assert table.compact(full=True).upto == 2
    assert sorted(s3_lake().table("events").to_arrow()["id"].to_pylist()) == [0, 1]
    assert honest.baseline.refresh().version == 1


def test_when_no_answer_comes_at_all_a_token_makes_the_retry_safe(s3_lake, proxy):
    honest = s3_lake().create_table("events", ITEMS, vnodes=2)
    table = s3_lake(proxy.endpoint).table("events")
    proxy.faults = ["lost"] + ["busy"] * 200
    with contextlib.suppress(sl.Unavailable):
        table.append([{"id": 1}], token="t")
    proxy.faults = []
    commit = table.append([{"id": 1}], token="t")
    assert (commit.seq, honest.to_arrow()["id"].to_pylist(), honest.head) == (1, [1], 1)
