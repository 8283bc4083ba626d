"""Shared by the sinks that write files and by the export: the lane that writes Parquet files, the destination folder,
and the notes that say which files count.

A lane's files do not count before `finish`: they are staged, or no commit names them yet. After a crash: unfinished
files are leftovers that no reader takes for data.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, TypeVar
from uuid import uuid4

import pyarrow as pa

from strandline.errors import Corrupt, Internal, Invalid, NotFound, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.change import OP, SEQ
from strandline.model.types import conform, conform_column, type_text
from strandline.sinks.contract import Batch, Result, drop_withheld
from strandline.storage.open import LocalStorage, StagedFile, Storage, open_storage
from strandline.storage.parquet import writer
from strandline.storage.snapshot import DataFile

WrittenFile = tuple[DataFile, StagedFile | None]
Note = TypeVar("Note")

_COPIED_BYTES = 8 << 20
_SPOOL = "files"
_log = logging.getLogger("strandline.sinks")


@dataclass(frozen=True)
class FileLane:
    """Write the rows to send as Parquet files below `folder`, with the columns of `schema`.

    The path of a file starts at the root of the storage. Its name is `<prefix>-<unique id>.parquet`. The name of a
    staged file has a digest of its bytes instead: the same rows, written again, give the same file, and a name always
    stands for the same bytes. It is complete on the local disk before it is sent."""

    storage: Storage
    batch: Batch
    folder: str
    prefix: str
    is_staged: bool
    schema: pa.Schema | None = None
    budget: writer.Budget = writer.DEFAULT

    @property
    def columns(self) -> pa.Schema:
        """The exact columns of the files. Without `schema` all are nullable, since a delete has only its key."""
        if self.schema is not None:
            return self.schema
        return pa.schema([f if f.name in (OP, SEQ) else f.with_nullable(True) for f in self.batch.file_schema])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Result]:
        count = _Count()
        done: list[WrittenFile] = []
        try:
            for written in self._write(self._conform_batches(batches, count)):
                done.append(written)
        except BaseException as error:
            self._delete_written(done)
            if not isinstance(error, Exception):
                raise
            yield Result(error=self._translate_error(error))
            return
        size = sum(file.size for file, _ in done)
        yield Result(rows=count.rows, withheld=count.withheld, bytes=size, files=tuple(done))

    def _conform_batches(self, batches: Iterator[pa.RecordBatch], count: _Count) -> Iterator[pa.RecordBatch]:
        """The rows to send, with the columns of the files."""
        schema = self.columns
        for batch in batches:
            rows, withheld = drop_withheld(batch)
            count.rows += rows.num_rows
            count.withheld += withheld
            if rows.num_rows:
                yield from _conform_rows(pa.Table.from_batches([rows]), schema).to_batches()

    def _write(self, exact: Iterator[pa.RecordBatch]) -> Iterator[WrittenFile]:
        columns = self.columns
        in_file = set(columns.names)
        cluster_by = self.batch.cluster_by if in_file.issuperset(self.batch.cluster_by) else ()
        if self.is_staged:
            with TemporaryDirectory(prefix="strandline-") as place:
                spool = LocalStorage(place)
                for file in writer.write_files(
                    spool, _SPOOL, self._new_name, exact, columns, cluster_by=cluster_by, budget=self.budget
                ):
                    yield self._send(spool, file)
        else:
            for file in writer.write_files(
                self.storage, self.folder, self._new_name, exact, columns, cluster_by=cluster_by, budget=self.budget
            ):
                yield replace(file, path=f"{self.folder}/{file.path}"), None

    def _send(self, spool: Storage, file: DataFile) -> WrittenFile:
        """Stage a copy of a file under the name that its bytes give it."""
        here = f"{_SPOOL}/{file.path}"
        with open(spool.url(here), "rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        path = f"{self.folder}/{self.prefix}-{digest}.parquet"
        with spool.input(here) as source, self.storage.stage(path) as stage:
            while piece := source.read(_COPIED_BYTES):
                stage.stream.write(piece)
        spool.delete([here])
        return replace(file, path=path), stage.staged

    def _new_name(self) -> str:
        return f"{self.prefix}-{uuid4().hex}.parquet"

    def _delete_written(self, done: Sequence[WrittenFile]) -> None:
        # The error that led here must be reported, not one from the clean-up.
        with suppress(StrandlineError, OSError):
            self.storage.delete([file.path if staged is None else staged.temporary for file, staged in done])

    def _translate_error(self, error: Exception) -> StrandlineError:
        if isinstance(error, StrandlineError):
            return error
        if isinstance(error, OSError):
            return _storage_error(self.storage.uri, error)
        return Internal(f"a sink's task failed: {type(error).__name__}: {error}")


def collect_files(results: Sequence[Result]) -> list[WrittenFile]:
    """The files of all lanes of a batch; raises when a lane failed: half a batch must not count."""
    for result in results:
        if result.error is not None:
            raise result.error
    return [written for result in results for written in result.files]


@dataclass
class _Count:
    rows: int = 0
    withheld: int = 0


def _conform_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        exact = conform(rows, schema)
    except pa.ArrowException:
        for column in schema:
            if column.name in rows.column_names:
                _check_cast(rows.column(column.name), column)
        raise
    for column in schema:
        if not column.nullable and exact.column(column.name).null_count:
            raise Invalid(
                f"column {column.name!r}: the destination requires a value, and a row has none",
                hint="Make the column nullable there: a delete has only its key.",
                column=column.name,
            )
    return exact


def _check_cast(values: pa.ChunkedArray, column: pa.Field) -> None:
    try:
        conform_column(values, column.type)
    except pa.ArrowException as error:
        raise Invalid(
            f"column {column.name!r}: a value cannot be written as {type_text(column.type)}: {error}",
            column=column.name,
        ) from error


@dataclass(frozen=True)
class FileSink:
    """A sink whose destination is a folder or an S3 prefix. `options` are S3 settings as a lake takes them."""

    kind: ClassVar[str]
    access: ClassVar[tuple[str, ...]] = ("options",)
    is_ordered: ClassVar[bool] = False

    uri: str
    options: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False, hash=False)

    def __post_init__(self) -> None:
        uri = os.fspath(self.uri) if isinstance(self.uri, os.PathLike) else self.uri
        if isinstance(uri, str) and "@" in uri and not uri.startswith(("/", "file:")) and "://" in uri:
            raise Invalid(
                "the address of a sink that writes files holds an @: it must not name a user or password",
                hint="Give S3 keys as options: options={'access_key_id': …, 'secret_access_key': 'env:NAME'}",
            )
        # An absolute address, which does not depend on the working directory.
        object.__setattr__(self, "uri", open_storage(uri, self.options).uri)

    @property
    def keeps_rows(self) -> bool:
        return False

    @property
    def destination(self) -> str:
        return self.uri

    @property
    def lanes(self) -> int:
        return 1

    def to_dict(self) -> dict[str, Any]:
        options = self.options or {}
        shown = {
            name: secret.reference(value) if secret.is_secret_name(name) else value for name, value in options.items()
        }
        return {"uri": self.uri, "options": shown or None}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        return cls(facts["uri"], options=facts.get("options"))

    def storage(self) -> Storage:
        """The open destination, with the secrets that its options refer to."""
        known = {
            name: secret.resolve(value, f"option {name!r} of {self.uri}")
            if secret.is_secret_name(name) or secret.is_reference(str(value))
            else value
            for name, value in (self.options or {}).items()
        }
        return open_storage(self.uri, known)


@contextmanager
def translate_errors(storage: Storage) -> Iterator[None]:
    """Turn the errors of a disk or a store into ours."""
    try:
        yield
    except OSError as error:
        raise _storage_error(storage.uri, error) from error


def _storage_error(uri: str, error: OSError) -> StrandlineError:
    if isinstance(error, FileNotFoundError):
        return NotFound(
            f"nothing can be written to {uri}: there is no such place ({error})",
            hint="Create the bucket, or correct the address." if "://" in uri else "Correct the path of the folder.",
            path=uri,
        )
    return Unavailable(f"{uri} cannot be written or read: {error}", path=uri)


def describe_files(files: Sequence[DataFile]) -> dict[str, Any]:
    """The files of a batch or an export, for its note."""
    return {
        "rows": sum(file.rows for file in files),
        "files": [{"path": file.path, "rows": file.rows, "size": file.size} for file in files],
    }


def read_note(storage: Storage, path: str, take: Callable[[Any], Note], hint: str) -> Note | None:
    """What `take` finds in a JSON file; None when there is no file, `Corrupt` when it is not of the expected form."""
    try:
        return take(json.loads(storage.read(path)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{storage.url(path)} is not readable: {error!r}", hint=hint, path=path) from error


def clear_unfinished(
    storage: Storage, folder: str = "", *, named: re.Pattern[str] | None = None, kept: Collection[str] = ()
) -> None:
    """Remove unfinished files of earlier attempts; with `named`, only those whose path matches."""
    try:
        found = [info.path for info in storage.temporaries(folder)]
        storage.delete([path for path in found if path not in kept and (named is None or named.search(path))])
    except (StrandlineError, OSError) as error:
        # The store may forbid the listing; the delivery counts all the same.
        _log.warning("unfinished files in %s could not be removed: %s", storage.url(folder), error)
