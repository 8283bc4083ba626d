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


def figures(result: Mapping[str, Any]) -> str:
    return table(["figure", "value"], [[k, str(v)] for k, v in result.items() if k != "detail"]) + "\n"


def readme() -> None:
    """Put the headline figures between the marks in the README."""
    detail = load("upsert")["detail"]
    small, large = milliseconds(detail["upsert_s"], "100"), milliseconds(detail["upsert_s"], "10000")
    rows = [[name, f"{small[name]:,.1f} ms", f"{large[name]:,.1f} ms"] for name in sorted(small, key=small.__getitem__)]
    path = DOCS.parent / "README.md"
    start, end = "<!-- benchmark:start -->\n", "<!-- benchmark:end -->"
    before, rest = path.read_text().split(start)
    after = rest.split(end)[1]
    block = table(["", "100 rows", "10,000 rows"], rows)
    path.write_text(f"{before}{start}\n{block}\n\n{end}{after}")


def main() -> None:
    (DOCS / "charts").mkdir(exist_ok=True)
    head = (
        "# Benchmarks\n\nWritten by `make report` from the last full runs of `make bench`; `bench/README.md` says"
        " what each figure means. Two cores, local disk. Compare ratios: they were taken within one run.\n"
    )
    (DOCS / "benchmarks.md").write_text("\n".join([head, upsert(), merge_read()]))
    readme()


if __name__ == "__main__":
    main()
