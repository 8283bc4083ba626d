"""Every code block of README and the pages in docs/ runs, and prints what the page says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pages import PageRun, find_blocks
from support import BIN, BUCKET, KEY, SECRET, environment, free_ports

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
    if "decisions" not in page.parts and find_blocks(page)
)


def _list_code(page: Path) -> str:
    return "\n".join(block.text for block in find_blocks(page) if block.language in ("python", "console", "sql"))


def _needs_spark(page: Path) -> bool:
    code = _list_code(page)
    words = ("to_spark()", "spark.", "Spark SQL", "lake.fixpoint(")
    return any(word in code for word in words)


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    page = ROOT / name
    port = free_ports(1)[0]
    more = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120", "NO_COLOR": "1"}
    needs_s3 = "s3://" in _list_code(page)
    if needs_s3:
        endpoint = request.getfixturevalue("seaweed")
        more |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        more |= {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    prefix = f"s3://{BUCKET}/{tmp_path.name}-{os.getpid()}"

    def substitute(text: str) -> str:
        text = text.replace("http://127.0.0.1:8333", more.get("AWS_ENDPOINT_URL", ""))
        return text.replace("8321", str(port)).replace("s3://bucket", prefix)

    spark = (lambda: request.getfixturevalue("spark")) if _needs_spark(page) else (lambda: None)
    spark()
    PageRun(page, tmp_path, environment(**more), substitute, spark).run()
