"""Write docs/benchmarks.md, its charts and the README's table from the kept results; none of it is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from common import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
BAR, GAP, LABEL, WIDTH = 22, 8, 150, 640
INK, OURS, THEIRS = "#1f2937", "#0f766e", "#94a3b8"


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def chart(title: str, values: Mapping[str, float], unit: str) -> str:
    """Horizontal bars as SVG, shortest first."""
    bars = sorted(values.items(), key=lambda item: item[1])
    longest = max(values.values())
    height = 34 + len(bars) * (BAR + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" fill="{INK}" font-weight="bold">{escape(title)}</text>',
    ]
    for at, (name, value) in enumerate(bars):
        y = 34 + at * (BAR + GAP)
        length = max(2, (WIDTH - LABEL - 110) * value / longest)
        color = OURS if name.startswith("strandline") or name == "merged" else THEIRS
        parts += [
            f'<text x="8" y="{y + 16}" fill="{INK}">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3" fill="{color}"/>',
            f'<text x="{LABEL + length + 8:.1f}" y="{y + 16}" fill="{INK}">{value:,.1f} {unit}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def milliseconds(seconds: Mapping[str, Mapping[str, list[float]]], size: str) -> dict[str, float]:
    return {name: median(by_size[size]) * 1000 for name, by_size in seconds.items() if by_size.get(size)}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def upsert() -> str:
    result = load("upsert")
    detail = result["detail"]
    parts = [f"## upsert\n\nRandom-key batches into {detail['rows']:,} rows; medians of {detail['repeats']} rounds.\n"]
    for size in ("100", "10000"):
        writes, reads = milliseconds(detail["upsert_s"], size), milliseconds(detail["read_s"], size)
        name = f"upsert-{size}.svg"
        (DOCS / "charts" / name).write_text(
            chart(f"Upsert of {int(size):,} rows, ms (shorter is better)", writes, "ms")
        )
        rows = [
            [
                n,
                f"{writes[n]:,.1f}",
                f"{writes[n] / writes['strandline']:.1f}x",
                f"{reads[n]:,.1f}" if n in reads else "",
            ]
            for n in writes
        ]
        parts += [
            f"![Upsert of {int(size):,} rows](charts/{name})\n",
            table(["contender", "upsert ms", "against ours", "first read after, ms"], rows) + "\n",
        ]
    return "\n".join([*parts, figures(result)])


def merge_read() -> str:
    result = load("merge_read")
    detail = result["detail"]
    rows = [
        [label.replace("_", " "), *(f"{seconds[t]['median'] * 1000:,.1f}" for t in ("folded", "merged")),
         f"{detail['ratios'][label]:.2f}x"]
        for label, seconds in detail["seconds"].items()
    ]  # fmt: skip
    return "\n".join(
        [
            f"## merge_read\n\nReads of {detail['rows']:,} rows through a log of N commits of 1% each, against"
            " the folded table.\n",
            table(["read, commits", "folded ms", "merged ms", "ratio"], rows) + "\n",
            figures(result),
        ]
    )


def compact() -> str:
    result = load("compact")
    detail = result["detail"]
    took = {name: median(seconds) * 1000 for name, seconds in detail["compact_s"].items()}
    commits, under_load, steady = f"{detail['commits']:,} commits", detail["load"], detail["steady"]
    (DOCS / "charts" / "compact.svg").write_text(
        chart(f"Compaction of {commits} of 1,000 rows, ms (shorter is better)", took, "ms")
    )
    rows = [
        [
            name,
            f"{took[name]:,.1f}",
            f"{took[name] / took['strandline']:.1f}x",
            f"{detail['rows_left'][name]:,}",
            f"{detail['peak_mb'][name]:,.0f}",
        ]
        for name in took
    ]
    return "\n".join(
        [
            f"## compact\n\n{commits} of 1,000 rows, half of each overwriting earlier keys; medians of"
            f" {detail['repeats']} rounds. deltalake's optimize and DuckLake's merge pack files and keep every row;"
            " Strandline keeps one row a key, and so does `deltalake_latest`: a window query and a merge.\n",
            f"![Compaction of {commits}](charts/compact.svg)\n",
            table(["contender", "compaction ms", "against ours", "rows left", "peak MB"], rows) + "\n",
            f"With two readers and a writer at work: {under_load['compactions']:,} compactions,"
            f" {under_load['reads']:,} reads of which {under_load['readers_failed']:,} failed,"
            f" {under_load['commits']:,} commits, {under_load['rows_lost']:,} rows lost.\n",
            f"{len(steady['scan_s'])} rounds of 1% random updates on {detail['rows']:,} rows, compacted as they fall"
            f" due (in {len(steady['folded_in'])} of the rounds): the worst scan took {steady['worst']:.2f} times that"
            " of a compacted table in the same round, the worst first read after a write"
            f" {steady['worst_first_read']:.2f} times.\n",
            *_tiny_commits(detail.get("tiny_commits")),
            figures(result),
        ]
    )


def _tiny_commits(tiny: dict[str, Any] | None) -> list[str]:
    if tiny is None:
        return []
    return [
        f"{tiny['commits']:,} commits of 10 rows into that many rows, with ticks in between, wrote {tiny['amp']:.1f}"
        f" times their own bytes in all; a read then opens {tiny['files_per_read']:,} files. A commit took"
        f" {tiny['commit_p50_ms']:.0f} ms (median), {tiny['commit_p99_ms']:.0f} ms (p99).\n"
    ]


def export() -> str:
    """Nothing until there was a whole run."""
    if not (RESULTS / "export.json").exists():
        return ""
    result = load("export")
    detail = result["detail"]
    took = {name: median(seconds) for name, seconds in detail["export_s"].items()}
    size = {name: count / 1e6 for name, count in detail["bytes"].items()}
    memory, raw = detail["memory"], detail["raw_bytes"]
    for name, title, values, unit in (
        ("export-seconds.svg", "Export, seconds (shorter is better)", took, "s"),
        ("export-bytes.svg", "Exported files, MB (shorter is better)", size, "MB"),
    ):
        (DOCS / "charts" / name).write_text(chart(title, values, unit))
    rows = [
        [
            name,
            f"{took[name]:,.2f}",
            f"{took[name] / took['strandline']:.2f}x",
            f"{size[name]:,.1f}",
            f"{detail['column_bytes'][name]['tools'] / 1e6:,.1f}",
            f"{size[name] / size['strandline']:.1f}x",
        ]
        for name in took
    ]
    return "\n".join(
        [
            f"## export\n\n{detail['rows']:,} messages to Parquet, {raw['tools'] / 1e9:.2f} GB of"
            f" {sum(raw.values()) / 1e9:.2f} GB raw in one column that repeats by conversation; medians of"
            f" {detail['repeats']} rounds. Only Strandline and `spark_zstd_clustered` lay the rows by conversation.\n",
            "![Export, seconds](charts/export-seconds.svg)\n",
            "![Export, bytes](charts/export-bytes.svg)\n",
            table(["contender", "seconds", "against ours", "MB", "tools MB", "against ours"], rows) + "\n",
            f"One lane over {memory['tenth']['rows']:,} rows took {memory['tenth']['peak_mb']:,.0f} MB at its peak,"
            f" over {memory['all']['rows']:,} rows {memory['all']['peak_mb']:,.0f} MB, over"
            f" {memory['ten times']['rows']:,} rows {memory['ten times']['peak_mb']:,.0f} MB; the idle worker has"
            f" {memory['all']['idle_mb']:,.0f} MB.\n",
            figures(result),
        ]
    )


def forward() -> str:
    """Nothing until there was a whole run."""
    if not (RESULTS / "forward.json").exists():
        return ""
    result = load("forward")
    detail = result["detail"]
    took = {name: median(seconds) * 1000 for name, seconds in detail["increment_s"].items()}
    still = {name: median(seconds) * 1000 for name, seconds in detail["idle_s"].items()}
    small, large = (f"{detail['rows'][size]:,}" for size in ("small", "large"))
    # A bar for the whole large table would leave the others none.
    shown = {name: value for name, value in took.items() if name != "resend_large"}
    (DOCS / "charts" / "forward.svg").write_text(
        chart(f"{detail['new_rows']:,} new rows sent, ms (shorter is better)", shown, "ms")
    )
    rows = [
        [
            name,
            large if name.endswith("_large") else small,
            f"{value:,.1f}",
            f"{value / took['strandline_large' if name.endswith('_large') else 'strandline']:,.1f}x",
        ]
        for name, value in took.items()
    ]
    rates = {f"backlog by {name}": rate for name, rate in detail["backlog_rows_per_s"].items()}
    rates["receiver alone"] = result["receiver_rows_per_s"]
    return "\n".join(
        [
            f"## forward\n\n{detail['new_rows']:,} new rows to a Strandline receiver, from tables of {small} and"
            f" {large} rows; medians of {detail['repeats']} rounds.\n",
            f"![{detail['new_rows']:,} new rows sent](charts/forward.svg)\n",
            table(["contender", "rows in the table", "ms", "against ours"], rows) + "\n",
            f"An idle tick takes {still['small']:,.1f} ms at {small} rows and {still['large']:,.1f} ms at {large};"
            f" it opened {detail['idle_connects']:,} connections and made {detail['idle_requests']:,} requests.\n",
            table(
                [f"{detail['backlog_rows']:,} rows", "rows/s"], [[name, f"{rate:,.0f}"] for name, rate in rates.items()]
            )
            + "\n",
            figures(result),
        ]
    )


def mirror() -> str:
    """Nothing until there was a whole run."""
    if not (RESULTS / "mirror.json").exists():
        return ""
    result = load("mirror")
    detail = result["detail"]
    peers = {"mirror_delta": "deltalake_merge", "mirror_iceberg": "pyiceberg_upsert"}
    rows = []
    for what, seconds in detail["seconds"].items():
        for ours, peer in peers.items():
            took = {name: median(seconds[name]) * 1000 for name in (ours, peer)}
            wrote = {name: detail["written"][what][name] / detail["changed_bytes"][what] for name in took}
            rows.append(
                [
                    what.replace("_", ", "),
                    f"{ours} against {peer}",
                    *(f"{took[name]:,.0f}" for name in took),
                    f"{took[peer] / took[ours]:.2f}x",
                    *(f"{wrote[name]:,.0f}x" for name in wrote),
                ]
            )
    header = ["rows", "contenders", "ours ms", "peer ms", "peer ÷ ours", "ours rewrites", "peer rewrites"]
    return "\n".join(
        [
            f"## mirror\n\nA tick of changed rows into a mirror of {detail['rows']:,} rows. Rows near each other are in"
            " few files of the destination, scattered ones in all: the formats' libraries can replace whole files only."
            " Rewritten bytes are against the changed rows written once.\n",
            table(header, rows) + "\n",
            figures(result),
        ]
    )


def spark() -> str:
    """Nothing until there was a whole run."""
    if not (RESULTS / "spark.json").exists():
        return ""
    result = load("spark")
    detail = result["detail"]
    seconds = {
        operation: {name: median(taken) for name, taken in by_name.items() if taken}
        for operation, by_name in detail["seconds"].items()
    }
    (DOCS / "charts" / "spark-write.svg").write_text(
        chart(f"{detail['rows']:,} rows written from Spark, seconds (shorter is better)", seconds["write"], "s")
    )
    names = ["strandline", "parquet", "parquet_sorted", "deltalake"]
    rows = [
        [operation.replace("_", " "), *(f"{took[name]:,.2f}" if name in took else "" for name in names)]
        for operation, took in seconds.items()
    ]
    return "\n".join(
        [
            f"## spark\n\n{detail['rows']:,} narrow rows and {detail['wide_rows']:,} wide ones in one Spark session;"
            f" medians of {detail['repeats']} rounds. `merged` is one large commit and two small ones; `parquet` is"
            " Spark's plain files.\n",
            "![Rows written from Spark](charts/spark-write.svg)\n",
            table(["seconds", *names], rows) + "\n",
            figures(result),
        ]
    )


def backfill() -> str:
    """Nothing until there was a whole run."""
    if not (RESULTS / "backfill.json").exists():
        return ""
    result = load("backfill")
    detail = result["detail"]
    took = {
        name: [f"{median(detail['seconds'][kind][name]):,.1f}" for kind in ("backfill", "export", "spark")]
        for name in ("narrow", "wide")
    }
    return "\n".join(
        [
            f"## backfill\n\nThe history of {detail['rows']:,} narrow rows and of {detail['wide_rows']:,} wide ones to"
            " Parquet files, on Spark, while a writer changes 1,000 rows a second.\n",
            table(["seconds", "backfill", "export", "Spark's read and write"], [[name, *took[name]] for name in took])
            + "\n",
            figures(result),
        ]
    )


def figures(result: Mapping[str, Any]) -> str:
    return table(["figure", "value"], [[k, str(v)] for k, v in result.items() if k != "detail"]) + "\n"


def readme() -> None:
    """Put the headline figures between the marks in the README."""
    detail = load("upsert")["detail"]
    small, large = milliseconds(detail["upsert_s"], "100"), milliseconds(detail["upsert_s"], "10000")
    compaction = {
        name: f"{median(took) * 1000:,.0f} ms" for name, took in load("compact")["detail"]["compact_s"].items()
    }
    rows = [
        [name, f"{small[name]:,.1f} ms", f"{large[name]:,.1f} ms", compaction.get(name, "")]
        for name in sorted(small, key=small.__getitem__)
    ]
    path = DOCS.parent / "README.md"
    start, end = "<!-- benchmark:start -->\n", "<!-- benchmark:end -->"
    before, rest = path.read_text().split(start)
    after = rest.split(end)[1]
    block = table(["", "100 rows", "10,000 rows", "compaction of 1,000 commits"], rows)
    path.write_text(f"{before}{start}\n{block}\n\n{end}{after}")


def main() -> None:
    (DOCS / "charts").mkdir(exist_ok=True)
    head = (
        "# Benchmarks\n\nWritten by `make report` from the last full runs of `make bench`; `bench/README.md` says"
        " what each figure means. Two cores, local disk. Compare ratios: they were taken within one run.\n"
    )
    (DOCS / "benchmarks.md").write_text(
        "\n".join(
            [
                head,
                *filter(None, (upsert(), merge_read(), compact(), export(), forward(), mirror(), spark(), backfill())),
            ]
        )
    )
    readme()


if __name__ == "__main__":
    main()
