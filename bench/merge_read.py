"""What reading through the log costs: a table with commits in its log against the same rows folded.

Two tables of one lake hold the same rows. Both take every commit; one is then folded, the other is not. At 0,
20 and 100 commits of 1% random updates each, both are read in turn: all columns, one column, one key, in
DuckDB on the driver and in Spark. A figure is the merged table's median time over the folded table's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import common
import strandline as sl
from common import Samples, ratio, say, show

STATES = (0, 20, 100)
CHANGED_SHARE = 0.01
ENGINES = ("duckdb", "spark")
# The JVM compiles a plan's code as it runs: the merged plan is new at 20 commits and needs its own warm-up.
WARMUPS = {"duckdb": 2, "spark": 5}


def driver_reads(table: Any, ids: np.ndarray) -> dict[str, Callable[[int], object]]:
    """Reads on the driver; a round looks up the same key in both tables."""
    return {
        "scan": lambda round_: table.to_arrow(),
        "column": lambda round_: table.to_arrow(columns=["value"]),
        "lookup": lambda round_: found(table.to_arrow(where=f"id = {ids[round_ % len(ids)]}")),
    }


def spark_reads(table: Any, ids: np.ndarray) -> dict[str, Callable[[int], object]]:
    """The same reads in Spark, planning included; a noop write forces all of the rows and keeps none."""

    def run(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    return {
        "scan": lambda round_: run(table.to_spark()),
        "column": lambda round_: run(table.to_spark().select("value")),
        "lookup": lambda round_: run(table.to_spark(where=f"id = {ids[round_ % len(ids)]}")),
    }


def found(rows: Any) -> Any:
    assert rows.num_rows == 1, f"a lookup of one existing key found {rows.num_rows} rows"
    return rows


def check_equal(merged: Any, folded: Any) -> None:
    """Both tables hold the same rows, or the comparison means nothing."""
    ours, theirs = (table.to_arrow(columns=["id", "value"]).sort_by("id") for table in (merged, folded))
    if not ours.equals(theirs):
        raise SystemExit(f"the tables differ: {ours.num_rows} rows merged, {theirs.num_rows} folded")


def measure(merged: Any, folded: Any, *, engine: str, ids: np.ndarray, repeats: int) -> dict[str, dict[str, Samples]]:
    """Every read of this engine, both tables in turn; the first warm-up folds the log in memory."""
    reads = {"duckdb": driver_reads, "spark": spark_reads}[engine]
    of_merged, of_folded = reads(merged, ids), reads(folded, ids)
    result = {}
    for read in of_merged:
        result[read] = common.interleave(
            {"merged": of_merged[read], "folded": of_folded[read]},
            repeats=repeats * 3 if read == "lookup" else repeats,
            warmups=WARMUPS[engine],
        )
        medians = ", ".join(f"{name} {show(s.median, 'ms')}" for name, s in result[read].items())
        say(f"{engine} {read}: {medians}")
    return result


def run(root: Path, *, rows: int, repeats: int, engines: list[str]) -> dict[tuple[str, int, str], dict[str, Samples]]:
    """Samples by (engine, commits, read), then by table."""
    samples = {}
    lake = sl.Lake(str(root))
    base = common.base_rows(rows)
    tables = [lake.create_table(name, base.schema, key=["id"], vnodes=16) for name in ("merged", "folded")]
    merged, folded = tables
    for table in tables:
        say(f"loading {rows:,} rows")
        table.upsert(base)
        table.compact(full=True)
    batches = common.Batches(rows, new_share=0.0)
    ids = np.random.default_rng(3).choice(rows, 100, replace=False)
    commits = 0
    for state in STATES:
        say(f"to {state} commits of {round(rows * CHANGED_SHARE):,} rows")
        for _ in range(state - commits):
            batch = batches.make(round(rows * CHANGED_SHARE))
            for table in tables:
                table.upsert(batch)
        commits = state
        folded.compact(full=True)
        for engine in engines:
            result = measure(merged, folded, engine=engine, ids=ids, repeats=repeats)
            samples.update({(engine, state, read): by_table for read, by_table in result.items()})
        check_equal(merged, folded)
    return samples


def main() -> None:
    parser = common.arguments("reading through the log", rows=1_000_000, repeats=7)
    parser.add_argument("--only", help=f"engines, by comma; known: {', '.join(ENGINES)}")
    args = common.parse(parser)
    engines = args.only.split(",") if args.only else list(ENGINES)
    if unknown := sorted(set(engines) - set(ENGINES)):
        parser.error(f"unknown engine {', '.join(unknown)}; known: {', '.join(ENGINES)}")

    with common.workspace(args.dir) as folder:
        samples = run(folder / "lake", rows=args.rows, repeats=args.repeats, engines=engines)

    def figure(engine: str, commits: int, read: str) -> float | None:
        by_table = samples.get((engine, commits, read))
        return ratio(by_table["merged"].median, by_table["folded"].median) if by_table else None

    common.print_table(
        f"{args.rows:,} rows, commits of {CHANGED_SHARE:.0%} random updates (medians)",
        ["read", "commits", "folded", "merged", "merged / folded", "first merged read"],
        [
            [
                f"{engine} {read}",
                str(commits),
                show(by_table["folded"].median, "ms"),
                show(by_table["merged"].median, "ms"),
                show(figure(engine, commits, read), "x"),
                show(by_table["merged"].warmup_seconds[0], "ms"),
            ]
            for (engine, commits, read), by_table in samples.items()
        ],
    )
    figures = {
        "scan_20": figure("duckdb", 20, "scan"),
        "scan_100": figure("duckdb", 100, "scan"),
        "scan_20_spark": figure("spark", 20, "scan"),
        "scan_100_spark": figure("spark", 100, "scan"),
        "column_20_spark": figure("spark", 20, "column"),
        "lookup_20_spark": figure("spark", 20, "lookup"),
        "column_20": figure("duckdb", 20, "column"),
        "lookup_20": figure("duckdb", 20, "lookup"),
        "lookup_100": figure("duckdb", 100, "lookup"),
    }
    detail: dict[str, Any] = {"rows": args.rows, "repeats": args.repeats, "ratios": {}, "seconds": {}}
    for (engine, commits, read), by_table in samples.items():
        label = f"{engine}_{read}_{commits}"
        detail["ratios"][label] = figure(engine, commits, read)
        detail["seconds"][label] = {
            name: {"median": common.significant(s.median), "first": common.significant(s.warmup_seconds[0])}
            for name, s in by_table.items()
        }
    common.print_result("merge_read", figures, detail)


if __name__ == "__main__":
    main()
