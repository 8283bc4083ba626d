"""How one CSV file is written: what separates its fields, encloses them, and stands before its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strandline.jobs.ingest.text_options import ShortRows


@dataclass(frozen=True)
class Dialect:
    """The signs of a CSV file. Where a sign is empty, the file has none.

    `newline` is a carriage return in files of old Macintosh programs. `skipped_lines` stand before the header or, in a
    file without a header, before the first row. Only a comment sign that was said (`is_comment_said`) makes a comment
    of a line that could be a row. With `spaced_quotes`, spaces between a delimiter and a quote do not count."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    comment: str = ""
    is_comment_said: bool = False
    has_header: bool = True
    encoding: str = "utf-8"
    newline: str = "\n"
    skipped_lines: int = 0
    null: tuple[str, ...] = ()
    short_rows: ShortRows = "reject"
    spaced_quotes: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "null": list(self.null)}

    def to_text(self) -> str:
        """The dialect as JSON, for a row that is kept with it."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def parse(text: str) -> Dialect:
        found = json.loads(text)
        return Dialect(**{**found, "null": tuple(found["null"])})


def skip_text(skip: Sequence[str]) -> str | None:
    """The names that a load left out, as JSON, for a JSON row that is kept without a dialect."""
    return json.dumps({"skip": sorted(skip)}) if skip else None


def skipped_names(text: str | None) -> tuple[str, ...]:
    """The names of `skip_text`."""
    return () if text is None else tuple(json.loads(text)["skip"])
