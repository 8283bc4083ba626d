"""What the tasks of a load tell the driver: a small file for each attempt to read a part.

The rows go through Spark's shuffle; reports take another way, since few bytes must reach the driver even when there are
many bad rows. The files are named as other unclaimed files of a table, so a vacuum deletes them after a crash.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline import errors
from strandline.errors import Conflict, Internal, StrandlineError
from strandline.jobs.column_names import ColumnMatcher
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile

_PREFIX = "spool-"
_JOB_SIGNS, _PART_SIGNS, _TRY_SIGNS = 12, 8, 11


@dataclass
class NamesAsked:
    """Names of a file and the columns that they were given: all at once, or `is_each` one after another."""

    is_each: bool
    sources: list[str]
    columns: list[str]


class RecordingMatcher(ColumnMatcher):
    """A matcher that keeps its answers, so that the driver can compare them with those in the order of the files."""

    asked: list[NamesAsked]

    def start_file(self) -> list[NamesAsked]:
        """The list of the answers from now on."""
        self.asked = []
        return self.asked

    def match(self, sources: Any) -> list[str]:
        columns = super().match(sources)
        self.asked.append(NamesAsked(False, list(sources), columns))
        return columns

    def one_by_one(self) -> Any:
        give, answers = super().one_by_one(), NamesAsked(True, [], [])
        self.asked.append(answers)

        def match(source: str) -> str:
            column = give(source)
            answers.sources.append(source)
            answers.columns.append(column)
            return column

        return match


@dataclass
class PieceReport:
    """What a task read: its good rows and its bad ones, and what is remembered of the file. `columns` are those of the
    file, where they matter."""

    at: int
    rows: int = 0
    faults: int = 0
    size: int = 0
    lines: int = 0
    is_open: bool = False
    digest: str = ""
    dialect: str | None = None
    columns: list[str] | None = None
    asked: list[NamesAsked] = field(default_factory=list)


@dataclass
class PartReport:
    """An attempt to read a part. `rejects` are files with its bad rows. With an `error` the part was not read to its
    end."""

    number: int
    pieces: list[PieceReport] = field(default_factory=list)
    rejects: list[DataFile] = field(default_factory=list)
    error: StrandlineError | None = None

    def to_text(self) -> str:
        error = None
        if self.error is not None:
            error = {**self.error.to_dict(), "fields": self.error.fields}
        files = [{**vars(file), "partition": dict(file.partition)} for file in self.rejects]
        files = [{name: value for name, value in file.items() if name != "stats"} for file in files]
        said = {"number": self.number, "pieces": list(map(asdict, self.pieces)), "rejects": files, "error": error}
        return json.dumps(said, default=str)

    @staticmethod
    def parse(text: str) -> PartReport:
        said = json.loads(text)
        pieces = [PieceReport(**{**p, "asked": [NamesAsked(**a) for a in p["asked"]]}) for p in said["pieces"]]
        error = said["error"] and _parse_error(said["error"])
        return PartReport(said["number"], pieces, [DataFile(**file) for file in said["rejects"]], error)


def _parse_error(said: Mapping[str, Any]) -> StrandlineError:
    kind = getattr(errors, said["kind"], Internal)
    found: StrandlineError = kind(said["message"], hint=said["hint"], **said["fields"])
    return found


class Reports:
    """The reports of one job, in a folder of the lake."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._job = uuid.uuid4().hex[:_JOB_SIGNS]

    def write(self, report: PartReport) -> None:
        end = "f" if report.error is not None else "0"
        name = f"{_PREFIX}{self._job}{report.number:0{_PART_SIGNS}x}{uuid.uuid4().hex[:_TRY_SIGNS]}{end}.parquet"
        with self._storage.output(f"{self._folder}/{name}") as stream:
            pq.write_table(pa.table({"report": [report.to_text()]}), stream)

    def _names(self) -> Iterator[str]:
        start = f"{self._folder}/{_PREFIX}{self._job}"
        # Only names of this job sort after `start` and begin with it.
        for info in self._storage.list(self._folder, after=start):
            if info.path.startswith(start):
                yield info.path

    def failed_before(self, number: int) -> bool:
        """Whether an earlier part has failed, so that reading this one is of no use."""
        start = len(self._folder) + 1 + len(_PREFIX) + _JOB_SIGNS
        failed = (path for path in self._names() if path.endswith("f.parquet"))
        return any(int(path[start : start + _PART_SIGNS], 16) < number for path in failed)

    def read(self) -> list[list[PartReport]]:
        """The attempts for each part that has some, by the number of the part."""
        found: dict[int, list[PartReport]] = {}
        for path in sorted(self._names()):
            text = pq.read_table(self._storage.input(path)).column("report")[0].as_py()
            report = PartReport.parse(text)
            found.setdefault(report.number, []).append(report)
        return [found[number] for number in sorted(found)]

    def delete(self) -> None:
        self._storage.delete(list(self._names()))


def choose_attempt(attempts: list[PartReport]) -> PartReport:
    """One of several attempts to read a part, which must have read the same; a failed one only when all have failed."""
    whole = [report for report in attempts if report.error is None]
    if len({str(report.pieces) for report in whole}) > 1:
        raise Conflict("a file was written while it was read; nothing was loaded")
    return (whole or attempts)[0]
