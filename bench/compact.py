"""Compaction: of a thousand small commits, against its peers and under load; then of a table that is updated on and on.

All tables get the same commits, half of each overwriting earlier keys. Ours keeps one row a key; deltalake's optimize
and DuckLake's merge pack files and keep every row. `deltalake_latest` does our work with deltalake: it appends to a log
table, finds the latest row of each key, merges these into a second table and optimizes that. Each compaction runs in a
new process, on a new copy of its table.
Then readers and a writer use ours while it is compacted: every answer must be the table after a whole number of
commits, no older than what was acknowledged before the read. Last, 50 rounds of updates, each followed by
`table.compact()`, which folds only what is due, and by scans of all rows, in turn with those of a compacted table of as
many rows; and tiny commits (see `tiny_commits`)."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import peers

with suppress(ModuleNotFoundError):  # a peer's environment has no numpy: `build` and `compact` do without
    import numpy as np

    import common
    from common import Contender, Samples, ratio, say, show, significant
    from tiny_commits import TINY_ROWS, measure_tiny_commits

COMMIT_ROWS = 1_000
HALF = COMMIT_ROWS // 2
LOAD_S = 20
WRITER_IDS = 10**9
ROUNDS = 50
CHANGED_SHARE = 0.01
SCANS = 5


# --- the contenders, each in processes of its own -----------------------------------------------------------


class Strandline(peers.Strandline):
    def create(self, schema: pa.Schema) -> None:
        self.table = self.lake.create_table("t", schema, key=["id"], vnodes=16)

    def open(self) -> None:
        self.table = self.lake.table("t")

    def append(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def compact(self) -> None:
        self.table.compact(full=True)


class DeltaLake(peers.DeltaLake):
    def create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        self.table = DeltaTable.create(self.path, schema)

    def open(self) -> None:
        from deltalake import DeltaTable

        self.table = DeltaTable(self.path)

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.table, rows, mode="append")

    def compact(self) -> None:
        self.table.optimize.compact()


class DeltaLakeLatest(peers.DeltaLake):
    """A log of all commits, with their numbers, and a table with the latest row of each key."""

    LATEST = "select * exclude (seq) from (select *, max(seq) over (partition by id) as last from log) where seq = last"

    def create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        self.log = DeltaTable.create(f"{self.path}-log", schema.append(pa.field("seq", pa.int64())))
        self.table = DeltaTable.create(self.path, schema)
        self.commits = 0

    def open(self) -> None:
        from deltalake import DeltaTable

        self.log, self.table = DeltaTable(f"{self.path}-log"), DeltaTable(self.path)

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        self.commits += 1
        numbers = pa.array([self.commits] * rows.num_rows, pa.int64())
        write_deltalake(self.log, rows.append_column("seq", numbers), mode="append")

    def compact(self) -> None:
        from deltalake import QueryBuilder

        latest = QueryBuilder().register("log", self.log).execute(self.LATEST)
        merge = self.table.merge(latest, predicate="t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        self.table.optimize.compact()


class DuckLake(peers.DuckLake):
    """Inlining is at its default: commits of 1,000 rows are files."""

    def create(self, schema: pa.Schema) -> None:
        self.load(schema.empty_table())

    def open(self) -> None:
        self.connection.execute("from t limit 0")

    def append(self, rows: pa.Table) -> None:
        self.connection.execute("insert into t select * from rows")

    def compact(self) -> None:
        self.connection.execute("call ducklake_merge_adjacent_files('lake', 't')")


CONTENDERS: dict[str, Any] = {
    "strandline": Strandline,
    "deltalake": DeltaLake,
    "deltalake_latest": DeltaLakeLatest,
    "ducklake": DuckLake,
}
FOLDING = ("strandline", "deltalake_latest")  # these keep one row a key


def build(name: str, folder: str, path: str) -> dict[str, Any]:
    """The rows of `path` as commits of COMMIT_ROWS."""
    contender, rows = CONTENDERS[name](Path(folder)), peers.read_ipc(path)
    contender.create(rows.schema)
    begin = time.perf_counter()
    for start in range(0, rows.num_rows, COMMIT_ROWS):
        contender.append(rows.slice(start, COMMIT_ROWS))
    return {"seconds": time.perf_counter() - begin}


def compact(name: str, folder: str, for_s: str) -> dict[str, Any]:
    """Open and compact; the time is of the first compaction alone. More follow until `for_s` are over."""
    contender = CONTENDERS[name](Path(folder))
    contender.open()
    idle = memory_mb("VmRSS")
    begin = time.perf_counter()
    contender.compact()
    seconds, peak, times = time.perf_counter() - begin, memory_mb("VmHWM"), 1
    while time.perf_counter() < begin + float(for_s):
        contender.compact()
        times += 1
    return {"seconds": seconds, "idle_mb": idle, "peak_mb": peak, "times": times, "answer": contender.read()}


def memory_mb(field: str) -> float:
    """Of this process. Not getrusage: its maximum begins with that of the process which started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


# --- readers and a writer -----------------------------------------------------------------------------------


def write(folder: str) -> dict[str, Any]:
    """Upsert until the file `stop` is there. The lengths of `begun` and `acknowledged` count the commits.

    Commit k gives COMMIT_ROWS keys n = k, counted from 1: half of them are new, half are of the commit before."""
    ours, root = Strandline(Path(folder)), Path(folder)
    ours.open()
    commits = 0
    with open(root / "begun", "ab", buffering=0) as begun, open(root / "acknowledged", "ab", buffering=0) as done:
        while not (root / "stop").exists():
            rows = common.make_rows(WRITER_IDS + HALF * commits + np.arange(COMMIT_ROWS), seed=commits)
            commits += 1
            at = rows.schema.get_field_index("n")
            rows = rows.set_column(at, rows.schema.field(at), pa.array([commits] * COMMIT_ROWS, pa.int32()))
            begun.write(b".")
            ours.append(rows)
            done.write(b".")
            if commits == 1:
                print("ready", flush=True)
    return {"commits": commits}


def written_n(commits: int) -> np.ndarray:
    """The column n of the writer's keys, in their order, after that many commits."""
    return np.minimum(np.arange(HALF * (commits + 1)) // HALF + 1, commits) if commits else np.arange(0)


def written(commits: int) -> tuple[int, int]:
    """Count and sum of `written_n`."""
    return (HALF * (commits + 1), HALF * (commits * (commits + 1) // 2 + commits)) if commits else (0, 0)


def watch(folder: str, how: str, count: str, total: str) -> dict[str, Any]:
    """Read until the file `stop` is there; `count` and `total` are count(*) and sum(n) without the writer's rows."""
    ours, root = Strandline(Path(folder)), Path(folder)
    ours.open()

    def by_sql() -> tuple[int, int]:
        return peers.first_row(ours.lake.sql("select count(*), sum(n) from t"))

    def by_arrow() -> tuple[int, int]:
        rows = ours.table.to_arrow()
        return rows.num_rows, pc.sum(rows["n"]).as_py()

    read = {"sql": by_sql, "arrow": by_arrow}[how]
    reads = failed = 0
    while not (root / "stop").exists():
        least = length(root / "acknowledged")
        try:
            answer = read()
            most = length(root / "begun")
            if (answer[0] - int(count), answer[1] - int(total)) not in map(written, range(least, most + 1)):
                raise AssertionError(f"wrong answer {answer} with {least} to {most} commits")
        except Exception as error:  # whatever it is, this reader failed
            failed += 1
            print(f"reader: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        reads += 1
        if reads == 1:
            print("ready", flush=True)
    return {"reads": reads, "failed": failed}


def length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


COMMANDS: dict[str, Callable[..., Any]] = {"build": build, "compact": compact, "write": write, "watch": watch}


def start(python: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([python, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the command returned, once its process ends."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args[2:])} ended with exit code {process.returncode}")
    return json.loads(output.splitlines()[-1])


# --- a thousand commits -------------------------------------------------------------------------------------


def commit_rows(commits: int) -> pa.Table:
    """The rows of all commits in their order; half of the keys of each are of an earlier one."""
    rng = np.random.default_rng(11)
    ids, known = [np.arange(COMMIT_ROWS)], COMMIT_ROWS
    for _ in range(commits - 1):
        both = [rng.choice(known, HALF, replace=False), np.arange(known, known + HALF)]
        ids.append(rng.permutation(np.concatenate(both)))
        known += HALF
    return common.make_rows(np.concatenate(ids), seed=12)


def latest(rows: pa.Table) -> pa.Table:
    """The last row of each key, by key."""
    _, from_end = np.unique(rows["id"].to_numpy()[::-1], return_index=True)
    return rows.take(pa.array(rows.num_rows - 1 - from_end))


def copied(folder: Path) -> Path:
    """`live`, as it was built. Synced, so that no contender's fsync pays for the copy."""
    shutil.rmtree(folder / "live", ignore_errors=True)
    shutil.copytree(folder / "built", folder / "live")
    os.sync()
    return folder / "live"


def data_files(folder: Path) -> dict[tuple[str, int], int]:
    sizes = common.file_sizes(folder)
    return {file: size for file, size in sizes.items() if file[0].endswith(".parquet") and "_delta_log" not in file[0]}


def build_all(rows: pa.Table, folder: Path, venvs: Path) -> dict[str, str]:
    """A built table for each contender; returns their interpreters, without those that cannot be installed here."""
    path = common.write_ipc(rows, folder / "rows.arrow")
    pythons = {}
    for name in CONTENDERS:
        contender = Contender(name, venv="ducklake") if name == "ducklake" else Contender(name)
        try:
            pythons[name] = common.python_for(contender.venv, venvs)
        except subprocess.CalledProcessError as error:
            say(f"{name}: left out, its environment could not be made: {error}")
            continue
        live = folder / name / "live"  # built where it is used: DuckLake's catalog names its folder
        live.mkdir(parents=True)
        seconds = result(start(pythons[name], "build", name, live, path))["seconds"]
        commits = rows.num_rows // COMMIT_ROWS
        assert len(data_files(live)) == commits, f"{name} wrote {len(data_files(live))} files in {commits} commits"
        live.rename(folder / name / "built")
        say(f"{name}: {commits:,} commits in {seconds:.1f} s")
    return pythons


def measure(pythons: dict[str, str], rows: pa.Table, folder: Path, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Every compaction's answers, the contenders in turn; each must have kept its rows."""
    wanted = {name: latest(rows) if name in FOLDING else rows for name in pythons}
    wanted = {name: peers.count_and_sum(kept) for name, kept in wanted.items()}
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for round_ in range(repeats):
        for name in common.turned(list(pythons), round_):
            answer = result(start(pythons[name], "compact", name, copied(folder / name), 0))
            count, total = answer["answer"]
            if count != wanted[name][0] or abs(total - wanted[name][1]) > 1e-9 * wanted[name][1]:
                raise SystemExit(f"{name} answers {count} rows, sum {total}; expected {wanted[name]}")
            answers[name].append(answer)
            say(f"{name}, round {round_ + 1} of {repeats}: {show(answer['seconds'], 'ms')}")
    return answers


def measure_under_load(rows: pa.Table, folder: Path) -> dict[str, Any]:
    """Two readers and a writer while the table is compacted, for LOAD_S seconds; then all of its rows are checked."""
    kept, live = latest(rows), copied(folder / "strandline")
    bounds = kept.num_rows, pc.sum(kept["n"]).as_py()
    python = sys.executable
    readers = [start(python, "watch", live, how, *bounds) for how in ("sql", "arrow")]
    writer = start(python, "write", live)
    try:
        for process in (*readers, writer):
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"{' '.join(process.args[2:])} ended with exit code {process.wait()}")
        compacted = result(start(python, "compact", "strandline", live, LOAD_S))
    finally:
        (live / "stop").touch()
        for process in (*readers, writer):  # before their folder goes, and the file `stop` with it
            process.wait()
    read, commits = [result(reader) for reader in readers], result(writer)["commits"]

    ours = Strandline(live)
    ours.open()
    ours.compact()
    ours.table.vacuum(grace=0, keep=0)
    ids = np.concatenate([kept["id"].to_numpy(), WRITER_IDS + np.arange(len(written_n(commits)))])
    wanted = ids << 20 | np.concatenate([kept["n"].to_numpy(), written_n(commits)])
    left = ours.table.to_arrow(columns=["id", "n"])
    found = left["id"].to_numpy() << 20 | left["n"].to_numpy()
    missing = len(np.setdiff1d(wanted, found))
    return {
        "seconds": significant(compacted["seconds"]),
        "compactions": compacted["times"],
        "reads": sum(reader["reads"] for reader in read),
        "readers_failed": sum(reader["failed"] for reader in read),
        "commits": commits,
        # Missing or with an old value; and whatever is there besides: doubled, or the old value again.
        "rows_lost": missing + len(found) - (len(wanted) - missing),
    }


# --- fifty rounds -------------------------------------------------------------------------------------------


def scans(tables: Sequence[Any], times: int) -> tuple[list[Samples], list[pa.Table]]:
    """Scans of the tables in turn, and the rows of the last ones."""
    samples, found = [Samples() for _ in tables], [None for _ in tables]
    for round_ in range(times):
        for at in common.turned(list(range(len(tables))), round_):
            found[at] = None  # what the scan before has read is freed outside of the time
            begin = time.perf_counter()
            found[at] = tables[at].to_arrow()
            samples[at].add(time.perf_counter() - begin)
    return samples, found


def measure_steady(rows: int, folder: Path) -> dict[str, Any]:
    """Updates, `table.compact()` and scans in turn; bytes are those of data files, nothing is vacuumed. A scan is
    compared with those of a compacted table of as many rows in the same seconds."""
    import strandline

    say(f"loading {rows:,} rows twice")
    base = common.base_rows(rows)
    expected = common.Expected(base)
    lake = strandline.Lake(str(folder / "lake"))
    table, fresh = (lake.create_table(name, base.schema, key=["id"], vnodes=16) for name in ("t", "fresh"))
    for each in (table, fresh):
        each.upsert(base)
        each.compact(full=True)
    folder = Path(lake.storage.url(table.entry.folder))
    scans((table, fresh), SCANS)
    batches = common.Batches(rows, new_share=0.0)
    changed = folded = 0
    by_round, fresh_by_round, folded_in, shares, log_files = [], [], [], [], []
    for round_ in range(ROUNDS):
        batch = batches.make(round(rows * CHANGED_SHARE))
        expected.apply(batch)
        before = data_files(folder)
        table.upsert(batch)
        upserted = data_files(folder)
        waiting = table.plan_compaction()
        table.compact()
        compacted = data_files(folder)
        changed += common.bytes_written(before, upserted)
        if compacted != upserted:
            folded += common.bytes_written(upserted, compacted)
            folded_in.append(round_ + 1)
        (samples, fresh_samples), (found, _) = scans((table, fresh), SCANS)
        expected.check("strandline", *peers.count_and_sum(found))
        by_round.append(samples)
        fresh_by_round.append(fresh_samples)
        shares.append(significant(waiting.waiting_rows / rows))
        log_files.append(len(table.merge().log_files()))
        say(f"round {round_ + 1} of {ROUNDS}: scan {show(samples.median, 'ms')}, {show(fresh_samples.median, 'ms')}")
    before = data_files(folder)
    table.compact(full=True)
    last = common.bytes_written(before, data_files(folder))
    _, (found, _) = scans((table, fresh), SCANS)
    expected.check("strandline", *peers.count_and_sum(found))
    pairs = list(zip(by_round, fresh_by_round, strict=True))
    times_fresh = [ratio(ours.median, theirs.median) for ours, theirs in pairs]
    fresh_s = statistics.median(samples.median for samples in fresh_by_round)
    return {
        "fresh_s": significant(fresh_s),
        "scan_s": [significant(samples.median) for samples in by_round],
        "times_fresh": times_fresh,
        "waiting_share": shares,
        "log_files": log_files,
        "first_read_s": [significant(samples.seconds[0]) for samples in by_round],
        "folded_in": folded_in,
        "worst": max(times_fresh),
        "worst_first_read": max(ratio(ours.seconds[0], theirs.median) for ours, theirs in pairs),
        "first_round": times_fresh[0],
        "last_round": times_fresh[-1],
        "write_amp": ratio(changed + folded, changed),
        "write_amp_all_folded": ratio(changed + folded + last, changed),
    }


def main() -> None:
    parser = common.arguments("compaction benchmark", rows=1_000_000, repeats=3)
    parser.add_argument("--venvs", default=common.PROJECT / ".venv-peers", help="the peers' environments")
    parser.add_argument("--tiny-commits", type=int, help="commits of ten rows (default: one for every 100 rows)")
    args = common.parse(parser)
    with common.workspace(args.dir) as folder:
        rows = commit_rows(args.rows // COMMIT_ROWS)
        pythons = build_all(rows, folder, Path(args.venvs))
        answers = measure(pythons, rows, folder, args.repeats)
        load = measure_under_load(rows, folder)
        say(f"under load: {load}")
        steady = measure_steady(args.rows, folder / "steady")
        tiny = measure_tiny_commits(args.rows, args.tiny_commits or args.rows // 100, folder / "tiny")
        say(f"tiny commits: {tiny}")

    def median(name: str, field: str) -> float | None:
        return statistics.median(answer[field] for answer in answers[name]) if name in answers else None

    def against(name: str) -> float | None:
        return ratio(median(name, "seconds"), median("strandline", "seconds"))

    rows_left = {name: answer[0]["answer"][0] for name, answer in answers.items()}
    common.print_table(
        f"{args.rows // COMMIT_ROWS:,} commits of {COMMIT_ROWS:,} rows, compacted: medians; some only pack",
        ["contender", "compaction", "x ours", "rows left", "idle MB", "peak MB"],
        [
            [
                name,
                show(median(name, "seconds"), "ms"),
                show(against(name), "x"),
                f"{rows_left[name]:,}",
                f"{median(name, 'idle_mb'):,.0f}",
                f"{median(name, 'peak_mb'):,.0f}",
            ]
            for name in answers
        ],
    )
    common.print_table(
        f"Strandline, compacted for {LOAD_S} s with two readers and a writer",
        ["first compaction", "compactions", "reads", "failed", "commits", "rows lost"],
        [[show(load["seconds"], "ms"), *(f"{value:,}" for value in list(load.values())[1:])]],
    )
    common.print_table(
        f"{args.rows:,} rows, {ROUNDS} rounds of {CHANGED_SHARE:.0%} random updates; scans against those of"
        f" a compacted table, {show(steady['fresh_s'], 'ms')}",
        ["worst round", "worst first read", "first round", "last round", "rounds that folded", "written / changed"],
        [
            [
                *(show(steady[key], "x") for key in ("worst", "worst_first_read", "first_round", "last_round")),
                f"{len(steady['folded_in'])}",
                show(steady["write_amp"], "x"),
            ]
        ],
    )
    common.print_table(
        f"{args.rows:,} rows, {tiny['commits']:,} commits of {TINY_ROWS} rows, with ticks in between",
        ["written / commits", "files per read", "files of the log", "commit p50", "commit p99", "slowest", "tick"],
        [
            [
                show(tiny["amp"], "x"),
                f"{tiny['files_per_read']:,}",
                f"{tiny['log_files']:,}",
                *(
                    show(tiny[key] / 1000, "ms")
                    for key in ("commit_p50_ms", "commit_p99_ms", "commit_max_ms", "tick_ms")
                ),
            ]
        ],
    )
    figures = {
        "vs_deltalake": against("deltalake"),
        "vs_deltalake_latest": against("deltalake_latest"),
        "vs_ducklake": against("ducklake"),
        "write_amp": steady["write_amp"],
        "peak_rss_mb": significant(median("strandline", "peak_mb")),
        "idle_rss_mb": significant(median("strandline", "idle_mb")),
        "readers_failed": load["readers_failed"],
        "rows_lost": load["rows_lost"],
        "steady_scan": steady["worst"],
        "tiny_commits_amp": tiny["amp"],
        "files_per_read": tiny["files_per_read"],
    }
    detail = {
        "rows": args.rows,
        "commits": args.rows // COMMIT_ROWS,
        "repeats": args.repeats,
        "compact_s": {n: [significant(answer["seconds"]) for answer in a] for n, a in answers.items()},
        "rows_left": rows_left,
        "peak_mb": {name: significant(median(name, "peak_mb")) for name in answers},
        "load": load,
        "steady": steady,
        "tiny_commits": tiny,
    }
    common.print_result("compact", figures, detail)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
    else:
        main()
