"""Mirrors: a tick of changed rows into a Delta and an Iceberg table, against deltalake's merge and pyiceberg's upsert.

One table of ours has a mirror in Delta and one in Iceberg; the peers' tables start with the same rows. In every round
each contender takes the same rows into its own table: `near` ones, the latest keys and a tenth of new ones, as an
application changes them, or `scattered` ones, random keys. The time of ours is that of the tick, which reads the log,
rewrites files and commits; the upsert into our own table is before it. Afterwards count and sum of every destination
must be right. Rewritten bytes are those of new Parquet files in the destination, against the same rows written once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

import common
import strandline as sl
from common import Expected, Samples, ratio, say, show, significant

SIZES = (100, 10_000)
SHAPES = ("near", "scattered")
NEW_SHARE = 0.1
OURS = {"delta": "mirror_delta", "iceberg": "mirror_iceberg"}
PEERS = {"delta": "deltalake_merge", "iceberg": "pyiceberg_upsert"}


class Destinations:
    """Our table with two mirrors, and the tables of the peers."""

    def __init__(self, folder: Path, base: pa.Table) -> None:
        self.folder = folder
        self.lake = sl.Lake(str(folder / "lake"))
        self.table = self.lake.create_table("t", base.schema, key=["id"], vnodes=16)
        self.table.upsert(base)
        self.table.compact(full=True)
        (folder / "catalog").mkdir()
        settings = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog' / 'catalog.db'}",
            "warehouse": f"file://{folder / 'warehouse'}",
        }
        self.lake.sink("delta", "t", to=sl.DeltaSink(str(folder / OURS["delta"]), mode="mirror"))
        self.lake.sink("iceberg", "t", to=sl.IcebergSink(settings, "ns.mirror", mode="mirror"))
        self.catalog = load_catalog("default", **settings)
        self.first_s = {kind: self._time(lambda kind=kind: self._tick(kind)) for kind in OURS}
        write_deltalake(str(folder / PEERS["delta"]), base)
        self.delta = DeltaTable(str(folder / PEERS["delta"]))
        self.iceberg = self.catalog.create_table("ns.peer", base.schema)
        self.iceberg.append(base)

    def take(self, name: str, rows: pa.Table) -> None:
        """Take a batch; that of ours is in our table already."""
        if name in OURS.values():
            self._tick(next(kind for kind, ours in OURS.items() if ours == name))
        elif name == PEERS["delta"]:
            merge = self.delta.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        else:
            self.iceberg.upsert(rows, join_cols=["id"])

    def read(self, name: str) -> tuple[int, float]:
        if name in (OURS["delta"], PEERS["delta"]):
            values = DeltaTable(str(self.folder / name)).to_pyarrow_table(columns=["value"])
        else:
            table = self.catalog.load_table("ns.mirror" if name == OURS["iceberg"] else "ns.peer")
            values = table.scan(selected_fields=("value",)).to_arrow()
        return values.num_rows, pc.sum(values["value"]).as_py()

    def parquet_files(self, name: str) -> dict[tuple[str, int], int]:
        places = {OURS["iceberg"]: "warehouse/ns/mirror", PEERS["iceberg"]: "warehouse/ns/peer"}
        sizes = common.file_sizes(self.folder / places.get(name, name))
        return {file: size for file, size in sizes.items() if file[0].endswith(".parquet")}

    def _tick(self, kind: str) -> None:
        (report,) = self.lake.tick(only=[kind]).sinks
        if report.error is not None:
            raise report.error

    def _time(self, act: Callable[[], None]) -> float:
        begin = time.perf_counter()
        act()
        return time.perf_counter() - begin


def make_batch(shape: str, size: int, rows: int, next_id: int, rng: np.random.Generator) -> pa.Table:
    new = round(size * NEW_SHARE)
    old = size - new
    ids = rng.choice(rows, old, replace=False) if shape == "scattered" else np.arange(next_id - old, next_id)
    return common.make_rows(np.concatenate([ids, np.arange(next_id, next_id + new)]), seed=int(rng.integers(2**31)))


def measure(folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    base = common.base_rows(rows)
    there, expected = Destinations(folder, base), Expected(base)
    say(f"loaded {rows:,} rows; the first tick of each mirror took {there.first_s}")
    names, rng, next_id = [*OURS.values(), *PEERS.values()], np.random.default_rng(7), rows
    samples: dict[str, dict[str, Samples]] = {}
    written: dict[str, dict[str, int]] = {}
    plain: dict[str, int] = {}
    for shape in SHAPES:
        for size in SIZES:
            what = f"{shape}_{size}"
            samples[what], written[what], plain[what] = {n: Samples() for n in names}, dict.fromkeys(names, 0), 0
            for round_ in range(repeats + 1):
                batch = make_batch(shape, min(size, rows // 4), rows, next_id, rng)
                next_id += round(batch.num_rows * NEW_SHARE)
                expected.apply(batch)
                there.table.upsert(batch)
                plain[what] += common.zstd_parquet_bytes(batch)
                for name in common.turned(names, round_):
                    before, begin = there.parquet_files(name), time.perf_counter()
                    there.take(name, batch)
                    samples[what][name].add(time.perf_counter() - begin, is_warmup=round_ == 0)
                    written[what][name] += common.bytes_written(before, there.parquet_files(name))
            for name in names:
                expected.check(name, *there.read(name))
            say(f"{what}: { ({name: each.rounded for name, each in samples[what].items()}) }")
    return {"samples": samples, "written": written, "plain": plain, "first_s": there.first_s}


def main() -> None:
    args = common.parse(common.arguments("mirror benchmark", rows=1_000_000, repeats=5))
    with common.workspace(args.dir) as folder:
        found = measure(folder, args.rows, args.repeats)
    samples, written, plain = found["samples"], found["written"], found["plain"]
    figures: dict[str, float | None] = {}
    for what, by_name in samples.items():
        common.print_table(
            f"{what.replace('_', ', ')} rows into {args.rows:,} (medians)",
            ["contender", "time", "x ours", "bytes rewritten / changed"],
            [
                [
                    name,
                    show(by_name[name].median, "ms"),
                    show(ratio(by_name[name].median, by_name[OURS[kind]].median), "x"),
                    show(ratio(written[what][name], plain[what]), "x"),
                ]
                for kind in OURS
                for name in (OURS[kind], PEERS[kind])
            ],
        )
        for kind in OURS:
            figures[f"{kind}_{what}"] = ratio(by_name[PEERS[kind]].median, by_name[OURS[kind]].median)
            figures[f"{kind}_{what}_rewritten"] = ratio(written[what][OURS[kind]], plain[what])
    detail = {
        "rows": args.rows,
        "seconds": {what: {name: each.rounded for name, each in by.items()} for what, by in samples.items()},
        "written": written,
        "changed_bytes": plain,
        "first_s": {kind: significant(seconds) for kind, seconds in found["first_s"].items()},
    }
    common.print_result("mirror", figures, json.loads(json.dumps(detail)))


if __name__ == "__main__":
    main()
