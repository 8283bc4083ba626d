"""The contenders, each as a user of that library would write it, and the loop that serves one of them.

    python peers.py <contender> <folder>

reads one JSON command per line (`load`, `upsert`, `read`, `fold`) and answers each with one JSON line.
It runs in the contender's own virtual environment, so it imports nothing of this project but `strandline`
itself, and each library only in the class that uses it. Every contender keeps its table open between
commands, as a long-running writer does, and does no maintenance beyond its defaults."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

QUERY = "select count(*), sum(value) from t"


class Strandline:
    """A log commit per batch. The aggregate is answered by `lake.sql`, as a user would ask it."""

    def __init__(self, folder: Path) -> None:
        import strandline

        self.lake = strandline.Lake(str(folder / "lake"))

    def load(self, rows: pa.Table) -> None:
        self.table = self.lake.create_table("t", rows.schema, key=["id"], vnodes=16)
        self.table.upsert(rows)
        self.table.compact(full=True)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def fold(self) -> None:
        self.table.compact(full=True)

    def read(self) -> tuple[int, float]:
        return first_row(self.lake.sql(QUERY))


class DeltaLake:
    """delta-rs: MERGE with update-all and insert-all; its own SQL for the aggregate."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "table")

    def load(self, rows: pa.Table) -> None:
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(self.path, rows)
        self.table = DeltaTable(self.path)

    def upsert(self, rows: pa.Table) -> None:
        merge = self.table.merge(rows, predicate="t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self) -> tuple[int, float]:
        from deltalake import QueryBuilder

        return first_row(pa.table(QueryBuilder().register("t", self.table).execute(QUERY).read_all()))


class DuckLake:
    """MERGE INTO, with a DuckDB catalog file and every setting at its default.

    Data inlining is on by default, for changes of at most 10 rows: these batches go to files."""

    options = ""

    def __init__(self, folder: Path) -> None:
        import duckdb

        self.connection = duckdb.connect()
        self.connection.execute(f"load '{extension_file('ducklake')}'")
        catalog, data = folder / "catalog.ducklake", folder / "data"
        self.connection.execute(f"attach 'ducklake:{catalog}' as lake (data_path '{data}/'{self.options})")
        self.connection.execute("use lake")

    def load(self, rows: pa.Table) -> None:
        self.connection.execute("create table t as select * from rows")

    def upsert(self, rows: pa.Table) -> None:
        self.connection.execute(
            "merge into t using rows on t.id = rows.id when matched then update when not matched then insert"
        )

    def read(self) -> tuple[int, float]:
        count, total = self.connection.execute(QUERY).fetchall()[0]
        return count, total


class DuckLakeInlined(DuckLake):
    """DuckLake with data inlining raised so that 100-row batches stay in the catalog."""

    options = ", data_inlining_row_limit 1000"


class PyIceberg:
    """`Table.upsert` on a SQLite catalog."""

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        self.catalog.create_namespace("bench")

    def load(self, rows: pa.Table) -> None:
        self.table = self.catalog.create_table("bench.t", schema=rows.schema)
        self.table.append(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows, join_cols=["id"])

    def read(self) -> tuple[int, float]:
        return count_and_sum(self.table.scan(selected_fields=("value",)).to_arrow())


class PyPaimon:
    """A primary-key table in a file-system warehouse, one write and commit per batch.

    One fixed bucket, the quickest mode at this size (the default, dynamic buckets, took 7 times as long)."""

    def __init__(self, folder: Path) -> None:
        from pypaimon import CatalogFactory

        self.catalog = CatalogFactory.create({"warehouse": f"file://{folder}"})
        self.catalog.create_database("bench", True)

    def load(self, rows: pa.Table) -> None:
        from pypaimon import Schema

        schema = Schema.from_pyarrow_schema(rows.schema, primary_keys=["id"], options={"bucket": "1"})
        self.catalog.create_table("bench.t", schema, False)
        self.table = self.catalog.get_table("bench.t")
        self.upsert(rows)

    def upsert(self, rows: pa.Table) -> None:
        builder = self.table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(rows)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def read(self) -> tuple[int, float]:
        builder = self.table.new_read_builder().with_projection(["value"])
        return count_and_sum(builder.new_read().to_arrow(builder.new_scan().plan().splits()))


CONTENDERS: dict[str, Any] = {
    "strandline": Strandline,
    "deltalake": DeltaLake,
    "ducklake": DuckLake,
    "ducklake_inlined": DuckLakeInlined,
    "pyiceberg": PyIceberg,
    "pypaimon": PyPaimon,
}


def extension_file(name: str) -> Path:
    """The extension inside its PyPI wheel: LOAD takes the path, so no INSTALL and no network is needed."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert spec and spec.submodule_search_locations, f"pip install duckdb-extension-{name}"
    return next(Path(spec.submodule_search_locations[0]).glob(f"extensions/*/{name}.duckdb_extension"))


def first_row(answer: pa.Table) -> tuple[int, float]:
    return answer.column(0)[0].as_py(), answer.column(1)[0].as_py()


def count_and_sum(rows: pa.Table) -> tuple[int, float]:
    return rows.num_rows, pc.sum(rows["value"]).as_py()


def read_ipc(path: str) -> pa.Table:
    with pa.OSFile(path) as source:
        return pa.ipc.open_file(source).read_all()


def serve(name: str, folder: Path) -> None:
    # The answers get a descriptor of their own; what a library prints goes to stderr and not between them.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender = CONTENDERS[name](folder)
    for line in sys.stdin:
        request = json.loads(line)
        operation = getattr(contender, request["command"])
        arguments = [read_ipc(request["path"])] if "path" in request else []
        begin = time.perf_counter()
        answer = operation(*arguments)
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "answer": answer}), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
