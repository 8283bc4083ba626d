"""Random-key batches into a large table: what a write costs, in time and bytes, and the first read after it.

Strandline and its peers take the same batches in turn, each in a process of its own. The answer of every read
is compared with the rows the contender was given, so nobody is quick by being wrong."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import common
import strandline as sl
from common import Contender, Samples, Worker, ratio, say, show
from strandline.storage import commits
from strandline.storage.delta_files import CommitChain
from strandline.storage.digest import DigestStream

SMALL, LARGE = 100, 10_000
NEW_SHARE = 0.1
WARMUPS = 1

CONTENDERS = [
    Contender("strandline"),
    Contender("deltalake"),
    Contender("ducklake", venv="ducklake"),
    Contender("ducklake_inlined", venv="ducklake"),
    Contender("pyiceberg", venv="pyiceberg", max_rounds=3),
    Contender("pypaimon", venv="pypaimon", max_reads=1),
]
DEFAULT = ["strandline", "deltalake", "ducklake", "pyiceberg", "pypaimon"]


@dataclass
class Run:
    """One contender's process and what was measured on it, by batch size."""

    worker: Worker
    expected: common.Expected
    writes: dict[int, Samples] = field(default_factory=lambda: defaultdict(Samples))
    reads: dict[int, Samples] = field(default_factory=lambda: defaultdict(Samples))
    bytes_written: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    bytes_changed: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, batch: pa.Table, path: Path, *, round_: int, with_read: bool) -> None:
        """Upsert the batch, then read."""
        size, is_warmup = batch.num_rows, round_ < WARMUPS
        before = common.file_sizes(self.worker.folder)
        self.writes[size].add(self.worker.ask("upsert", path=str(path))["seconds"], is_warmup=is_warmup)
        self.bytes_written[size] += common.bytes_written(before, common.file_sizes(self.worker.folder))
        self.bytes_changed[size] += common.zstd_parquet_bytes(batch)
        self.expected.apply(batch)
        if with_read:
            reply = self.worker.ask("read")
            self.reads[size].add(reply["seconds"], is_warmup=is_warmup)
            self.expected.check(self.worker.contender.name, *reply["answer"])

    def write_amp(self, size: int, *, extra_bytes: int = 0) -> float | None:
        changed = self.bytes_changed[size]
        return common.significant((self.bytes_written[size] + extra_bytes) / changed) if changed else None


def start(contender: Contender, base: pa.Table, base_path: Path, folder: Path, venvs: Path) -> Run | None:
    """The contender with the table loaded, or None if its environment cannot be made here."""
    say(f"{contender.name}: loading {base.num_rows:,} rows")
    try:
        worker = Worker(contender, folder, venvs)
    except subprocess.CalledProcessError as error:
        say(f"{contender.name}: left out, its environment could not be made: {error}")
        return None
    worker.ask("load", path=str(base_path))
    return Run(worker, common.Expected(base))


def measure(runs: dict[str, Run], batches: common.Batches, size: int, repeats: int, folder: Path) -> None:
    """Measured rounds of one batch size after a warm-up; every contender takes each batch in its turn."""
    for round_ in range(WARMUPS + repeats):
        batch = batches.make(size)
        path = common.write_ipc(batch, folder / "batch.arrow")
        for name in common.turned(list(runs), round_):
            contender = runs[name].worker.contender
            if round_ < WARMUPS + contender.max_rounds:
                # A contender with few reads skips those of the warm-up.
                first_read = 0 if contender.max_reads > repeats else WARMUPS
                with_read = first_read <= round_ < WARMUPS + contender.max_reads
                runs[name].take(batch, path, round_=round_, with_read=with_read)
        medians = ", ".join(f"{name} {show(run.writes[size].median, 'ms')}" for name, run in runs.items())
        say(f"{size:,} rows, round {round_ + 1} of {WARMUPS + repeats}: {medians}")


def measure_growth(rows: int, repeats: int, folder: Path, venvs: Path) -> dict[int, float | None]:
    """Seconds of a small Strandline upsert by table size: a tenth and two and a half times the main table."""
    runs: dict[int, Run] = {}
    for count in (rows // 10, rows * 5 // 2):
        base = common.base_rows(count)
        path = common.write_ipc(base, folder / "base.arrow")
        run = start(Contender("strandline"), base, path, folder / f"growth-{count}", venvs)
        assert run
        runs[count] = run
    batches = common.Batches(rows // 10, new_share=0.0)
    for round_ in range(WARMUPS + repeats):
        batch = batches.make(SMALL)
        path = common.write_ipc(batch, folder / "batch.arrow")
        for count in common.turned(list(runs), round_):
            runs[count].take(batch, path, round_=round_, with_read=False)
    for run in runs.values():
        run.worker.close()
    return {count: run.writes[SMALL].median for count, run in runs.items()}


def measure_digests(base: pa.Table, batches: common.Batches, repeats: int, folder: Path) -> dict[str, float]:
    """Seconds of small commits in this process, and how many of them go into noticing damage: the digest of the data
    file (with the writing that it stands beside), the seal of the commit file against the same actions without one,
    and the look for a lost commit."""
    table = sl.Lake(str(folder / "digests")).create_table("t", base.schema, key=["id"], vnodes=16)
    table.upsert(base)
    spent: dict[str, float] = defaultdict(float)
    original = commits.seal_actions

    def timed(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return act(*args)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    def plain(actions: list[commits.Action]) -> bytes:
        return b"\n".join(json.dumps(action, separators=(",", ":")).encode() for action in actions)

    def seal(path: str, actions: list[commits.Action], previous: str) -> tuple[bytes, str]:
        timed("unsealed", plain)(actions)
        return timed("sealed", original)(path, actions, previous)

    for round_ in range(WARMUPS + repeats):
        batch = batches.make(SMALL)
        if round_ == WARMUPS:
            spent.clear()
        with (
            mock.patch.object(commits, "seal_actions", seal),
            mock.patch.object(DigestStream, "write", timed("tap", DigestStream.write)),
            mock.patch.object(CommitChain, "sees_later", timed("look", CommitChain.sees_later)),
        ):
            timed("commit", table.upsert)(batch)
    return dict(spent)


def digest_share(spent: dict[str, float]) -> float | None:
    """What noticing damage takes of a small commit."""
    if not spent:
        return None
    extra = spent["sealed"] - spent["unsealed"] + spent["tap"] + spent["look"]
    return ratio(extra, spent["commit"] - spent["unsealed"])


def seconds(samples: dict[int, Samples]) -> dict[int, list[float | None]]:
    return {size: samples[size].rounded for size in (SMALL, LARGE)}


def main() -> None:
    parser = common.arguments("upsert benchmark", rows=1_000_000, repeats=7)
    known = [contender.name for contender in CONTENDERS]
    parser.add_argument("--only", help=f"contenders, by comma; known: {', '.join(known)}")
    parser.add_argument("--venvs", default=common.PROJECT / ".venv-peers", help="the peers' environments")
    args = common.parse(parser)
    names = args.only.split(",") if args.only else DEFAULT
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown contender {', '.join(unknown)}; known: {', '.join(known)}")
    venvs = Path(args.venvs)

    runs: dict[str, Run] = {}
    growth: dict[int, float | None] = {}
    digests: dict[str, float] = {}
    fold_bytes = 0
    with common.workspace(args.dir) as folder:
        base = common.base_rows(args.rows)
        path = common.write_ipc(base, folder / "base.arrow")
        for contender in CONTENDERS:
            if contender.name in names:
                run = start(contender, base, path, folder / contender.name, venvs)
                runs.update({contender.name: run} if run else {})
        batches = common.Batches(args.rows, new_share=NEW_SHARE)
        for size in (SMALL, LARGE):
            measure(runs, batches, size, args.repeats, folder)
        if ours := runs.get("strandline"):
            before = common.file_sizes(ours.worker.folder)
            ours.worker.ask("fold")
            fold_bytes = common.bytes_written(before, common.file_sizes(ours.worker.folder))
        for run in runs.values():
            run.worker.close()
        if ours:
            growth = measure_growth(args.rows, max(args.repeats, 15), folder, venvs)
            digests = measure_digests(base, batches, 10 * args.repeats, folder)

    def write(name: str, size: int) -> float | None:
        return runs[name].writes[size].median if name in runs else None

    def read(name: str, size: int) -> float | None:
        return runs[name].reads[size].median if name in runs else None

    for size in (SMALL, LARGE):
        common.print_table(
            f"{size:,} rows, {1 - NEW_SHARE:.0%} of them updates, into {args.rows:,} rows (medians)",
            ["contender", "upsert", "x ours", "first read after", "x ours", "bytes written / changed"],
            [
                [
                    name,
                    show(write(name, size), "ms"),
                    show(ratio(write(name, size), write("strandline", size)), "x"),
                    show(read(name, size), "ms"),
                    show(ratio(read(name, size), read("strandline", size)), "x"),
                    show(run.write_amp(size), "x"),
                ]
                for name, run in runs.items()
            ],
        )
    if growth:
        common.print_table(
            f"Strandline, {SMALL} rows into tables of two sizes",
            ["rows in the table", "upsert"],
            [[f"{count:,}", show(seconds, "ms")] for count, seconds in growth.items()],
        )

    ours_10k, ours_100 = write("strandline", LARGE), write("strandline", SMALL)
    figures = {
        "vs_deltalake_10k": ratio(write("deltalake", LARGE), ours_10k),
        "vs_ducklake_10k": ratio(write("ducklake", LARGE), ours_10k),
        "vs_pypaimon_10k": ratio(write("pypaimon", LARGE), ours_10k),
        "vs_pyiceberg_10k": ratio(write("pyiceberg", LARGE), ours_10k),
        "vs_deltalake_100": ratio(write("deltalake", SMALL), ours_100),
        "vs_ducklake_100": ratio(write("ducklake", SMALL), ours_100),
        "vs_pypaimon_100": ratio(write("pypaimon", SMALL), ours_100),
        "growth": ratio(growth[max(growth)], growth[min(growth)]) if growth else None,
        "digest_share": digest_share(digests),
        "write_amp": ours.write_amp(LARGE) if ours else None,
        "read_after_write_vs_ducklake": ratio(read("ducklake", LARGE), read("strandline", LARGE)),
    }
    detail = {
        "rows": args.rows,
        "repeats": args.repeats,
        "upsert_s": {name: seconds(run.writes) for name, run in runs.items()},
        "read_s": {name: seconds(run.reads) for name, run in runs.items()},
        "write_amp": {name: run.write_amp(LARGE) for name, run in runs.items()},
        "write_amp_with_fold": ours.write_amp(LARGE, extra_bytes=fold_bytes) if ours else None,
        "digests_s": {name: common.significant(value) for name, value in digests.items()},
        "growth_s": {count: common.significant(seconds) for count, seconds in growth.items()},
    }
    common.print_result("upsert", figures, detail)


if __name__ == "__main__":
    main()
