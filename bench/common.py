"""What every benchmark shares: the rows, the peers' processes, interleaved repeats and the printed results.

Contenders run one after another inside each round and the order turns from round to round, so that a noisy
minute of the machine falls on all of them alike. Figures are ratios of medians."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BENCH = Path(__file__).resolve().parent
PROJECT = BENCH.parent

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("session", pa.string()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("kind", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("n", pa.int32()),
        pa.field("text", pa.string()),
    ]
)

_started_s = time.perf_counter()


RESULTS = Path(__file__).parent / "results"


def say(message: str) -> None:
    """One progress line on stderr; stdout is for results."""
    print(f"[{time.perf_counter() - _started_s:7.1f} s] {message}", file=sys.stderr, flush=True)


def arguments(description: str, *, rows: int, repeats: int) -> argparse.ArgumentParser:
    """The options every benchmark takes; `parse` fills in what --quick makes small."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, help=f"rows in the table (default {rows:,})")
    parser.add_argument("--repeats", type=int, help=f"measured rounds (default {repeats})")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--dir", help="where the tables are written (default: the system's temporary folder)")
    parser.set_defaults(full_rows=rows, full_repeats=repeats)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    args.rows = args.rows or (20_000 if args.quick else args.full_rows)
    args.repeats = args.repeats or (2 if args.quick else args.full_repeats)
    return args


@contextmanager
def workspace(parent: str | None) -> Iterator[Path]:
    """A folder of this run's own, removed at the end."""
    if parent:
        Path(parent).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- rows ---------------------------------------------------------------------------------------------------


def make_rows(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows of SCHEMA for these ids. The text is eleven words of a fixed vocabulary, about 100 bytes."""
    rng = np.random.default_rng(seed)
    count = len(ids)
    micros = 1_700_000_000_000_000 + rng.integers(0, 10**13, count)
    words = np.random.default_rng(0).integers(0, 2**32, 4096)
    vocabulary = pa.array([f"{word:08x}" for word in words])
    kinds = pa.array(["view", "click", "error", "purchase"])
    text = [vocabulary.take(pa.array(rng.integers(0, len(vocabulary), count))) for _ in range(11)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "session": pc.binary_join_element_wise("session", pc.cast(pa.array(ids // 50), pa.string()), "-"),
            "ts": pa.array(micros).cast(pa.timestamp("us", "UTC")),
            "kind": kinds.take(pa.array(rng.integers(0, len(kinds), count))),
            "value": pa.array(rng.random(count)),
            "n": pa.array(rng.integers(0, 1000, count), pa.int32()),
            "text": pc.binary_join_element_wise(*text, " "),
        },
        schema=SCHEMA,
    )


def base_rows(count: int) -> pa.Table:
    """The table before the first batch: ids 0..count-1 in order, as an application would insert them."""
    return make_rows(np.arange(count), seed=1)


class Batches:
    """Random-key batches for a table that starts with `base` rows; `new_share` of each batch are new keys.

    Existing keys come from the first `base` only, so a contender that skips a round sees the same mix."""

    def __init__(self, base: int, *, new_share: float, seed: int = 7) -> None:
        self.base = base
        self.next_id = base
        self.new_share = new_share
        self.rng = np.random.default_rng(seed)

    def make(self, size: int) -> pa.Table:
        new = round(size * self.new_share)
        old_ids = self.rng.choice(self.base, size - new, replace=False)
        ids = np.concatenate([old_ids, np.arange(self.next_id, self.next_id + new)])
        self.next_id += new
        return make_rows(self.rng.permutation(ids), seed=int(self.rng.integers(2**31)))


def write_ipc(table: pa.Table, path: Path) -> Path:
    """Arrow's own file format: every contender's pyarrow reads it back as the same rows."""
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return path


def zstd_parquet_bytes(table: pa.Table) -> int:
    """How large these rows are when they are written once, plainly: the measure for write amplification."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().size


class Expected:
    """What `count(*)` and `sum(value)` must be after the batches a contender has taken."""

    def __init__(self, base: pa.Table) -> None:
        self.values = base["value"].to_numpy().copy()

    def apply(self, batch: pa.Table) -> None:
        ids = batch["id"].to_numpy()
        grown = int(ids.max()) + 1 - len(self.values)
        if grown > 0:
            self.values = np.concatenate([self.values, np.full(grown, np.nan)])
        self.values[ids] = batch["value"].to_numpy()

    def check(self, name: str, count: int, total: float) -> None:
        want_count, want_total = int(np.count_nonzero(~np.isnan(self.values))), float(np.nansum(self.values))
        if count != want_count or abs(total - want_total) > 1e-9 * abs(want_total):
            raise SystemExit(f"{name} answers {count} rows, sum {total}; expected {want_count}, {want_total}")


# --- files --------------------------------------------------------------------------------------------------


def file_sizes(folder: Path) -> dict[tuple[str, int], int]:
    """Size of every file, by path and inode: a file replaced under its old name is a new file."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.stat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            sizes[os.path.join(parent, name), stat.st_ino] = stat.st_size
    return sizes


def bytes_written(before: dict[tuple[str, int], int], after: dict[tuple[str, int], int]) -> int:
    """All of a new file, and what an old one grew by (a database's pages rewritten in place are not seen)."""
    return sum(max(0, size - before.get(file, 0)) for file, size in after.items())


# --- contenders in processes of their own -------------------------------------------------------------------


VENVS = {
    "ducklake": ("duckdb==1.5.5", "duckdb-extension-ducklake==1.5.5", "pyarrow==26.0.1"),
    "pyiceberg": ("pyiceberg[pyarrow,sql-sqlite]==0.12.0", "pyarrow==26.0.1"),
    "pypaimon": ("pypaimon==2.1.0",),
}


@dataclass(frozen=True)
class Contender:
    """One system under test: a class of peers.py, by its name there.

    `venv` names its entry in VENVS; without one it runs on this interpreter. `max_rounds` and `max_reads`
    spare the slow ones: they take part in the first rounds of each batch size only."""

    name: str
    venv: str | None = None
    max_rounds: int = 1_000
    max_reads: int = 1_000


def python_for(venv: str | None, venvs: Path) -> str:
    """The interpreter to run on; makes `<venvs>/<venv>` on first use or when a pin has changed."""
    if venv is None:
        return sys.executable
    folder = venvs / venv
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    pins = "\n".join(VENVS[venv]) + "\n"
    if stamp.exists() and stamp.read_text() == pins:
        return str(python)
    say(f"installing {', '.join(VENVS[venv])} in {folder}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, stdout=sys.stderr)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *VENVS[venv]], check=True, stdout=sys.stderr)
    stamp.write_text(pins)  # last: an interrupted installation is made again
    return str(python)


class Worker:
    """A contender in its own process; commands and answers are one JSON object per line.

    The process takes the time around just the operation: neither this pipe nor reading the batch counts."""

    def __init__(self, contender: Contender, folder: Path, venvs: Path) -> None:
        self.contender = contender
        self.folder = folder
        folder.mkdir(parents=True)
        python = python_for(contender.venv, venvs)
        self.process = subprocess.Popen(
            [python, str(BENCH / "peers.py"), contender.name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str, **fields: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"command": command, **fields}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.contender.name} ended during {command}, exit code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()


# --- measuring ----------------------------------------------------------------------------------------------


def turned(items: Sequence[Any], round_: int) -> list[Any]:
    """The same items, another one first in each round."""
    start = round_ % len(items) if items else 0
    return [*items[start:], *items[:start]]


def interleave(actions: dict[str, Callable[[int], object]], *, repeats: int, warmups: int = 1) -> dict[str, Samples]:
    """Run every action once a round; an action gets the round's number, so all do the same work in it."""
    samples = {name: Samples() for name in actions}
    for round_ in range(warmups + repeats):
        for name in turned(list(actions), round_):
            begin = time.perf_counter()
            actions[name](round_)
            samples[name].add(time.perf_counter() - begin, is_warmup=round_ < warmups)
    return samples


@dataclass
class Samples:
    """Seconds of one operation; warm-up rounds are kept apart."""

    seconds: list[float] = field(default_factory=list)
    warmup_seconds: list[float] = field(default_factory=list)

    def add(self, seconds: float, *, is_warmup: bool = False) -> None:
        (self.warmup_seconds if is_warmup else self.seconds).append(seconds)

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def rounded(self) -> list[float | None]:
        return [significant(second) for second in self.seconds]


def ratio(above: float | None, below: float | None) -> float | None:
    """above / below to three digits, or None where one was not measured."""
    return significant(above / below) if above is not None and below else None


def significant(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


# --- results ------------------------------------------------------------------------------------------------


def show(value: float | None, unit: str = "") -> str:
    """A table cell: `ms` and `x` format themselves, None is a dash."""
    if value is None:
        return "-"
    if unit == "ms":
        return f"{value * 1000:,.1f} ms"
    return f"{value:,.2f}{unit}"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A fixed-width table: first column left, the others right."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_result(name: str, figures: dict[str, float | None], detail: dict[str, Any]) -> None:
    """The last line of stdout; a run that measured everything at full size is kept for the report too."""
    result = json.dumps({**figures, "detail": detail})
    if not {"--quick", "--only", "--rows"} & {word.split("=")[0] for word in sys.argv}:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(result + "\n")
    print()
    print(result, flush=True)
