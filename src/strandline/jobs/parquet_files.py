"""Other people's Parquet files, opened and read in one way by import and by ingest. A damaged file is `Invalid`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import Invalid, NotFound
from strandline.model.names import join_names, require_utf8_names
from strandline.storage.open import Storage
from strandline.storage.parquet import reader

ENDINGS = (".parquet", ".parq", ".pq")
_DECODE_ERRORS = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True)
class ForeignParquet:
    """An open file. `schema` has its columns in the types of the file; a name that occurs again has a number."""

    uri: str
    file: pq.ParquetFile
    schema: pa.Schema

    @property
    def rows(self) -> int:
        return int(self.file.metadata.num_rows)

    def batches(self, names: Collection[str]) -> Iterator[pa.RecordBatch]:
        """The rows with these columns, in batches of bounded size."""
        given = self.file.schema_arrow.names
        # Arrow finds columns by name, and takes a dot in it for a step into a struct.
        is_plain = given == self.schema.names and not any("." in name for name in given)
        row = 0
        try:
            for batch in reader.batches(self.file, list(names) if is_plain else None):
                yield (batch if is_plain else batch.rename_columns(self.schema.names)).select(list(names))
                row += batch.num_rows
        except _DECODE_ERRORS as error:
            raise Invalid(f"{self.uri} is damaged after row {row}: {_first_line(error)}", file=self.uri) from error


@contextmanager
def open_parquet(storage: Storage, path: str, skip: Collection[str] = ()) -> Iterator[ForeignParquet]:
    """The file, with times of the old type INT96 in a unit that keeps their values. Columns in `skip` are not looked
    at, but are there."""
    uri = storage.url(path)
    try:
        with require_utf8_names():
            file = _open_file(storage, path, "us")
            old = [column for column in _old_times(file) if column.partition(".")[0] not in skip]
            if old and _choose_unit(storage, path, old) == "ns":
                file = _open_file(storage, path, "ns")
            found = file.schema_arrow.remove_metadata()
            schema = pa.schema(
                [field.with_name(name) for field, name in zip(found, _number_repeats(found.names), strict=True)]
            )
    except FileNotFoundError as error:
        raise NotFound(f"{uri} is gone", file=uri) from error
    except Invalid as error:
        raise Invalid(f"{uri}: {error.message}", hint=error.hint, **{"file": uri, **error.fields}) from error
    except _DECODE_ERRORS as error:
        raise Invalid(
            f"{uri} is not a Parquet file that can be read: {_first_line(error)}",
            hint="It is damaged, or another kind of file: fetch it again, or say what it is with --format.",
            file=uri,
        ) from error
    with file:
        yield ForeignParquet(uri, file, schema)


def _number_repeats(names: Sequence[str]) -> list[str]:
    taken, found = set(names), []
    seen: set[str] = set()
    for name in names:
        label, number = name, 2
        while label in seen or (label != name and label in taken):
            label, number = f"{name}_{number}", number + 1
        seen.add(label)
        found.append(label)
    return found


def _open_file(storage: Storage, path: str, unit: Literal["us", "ns"]) -> pq.ParquetFile:
    return pq.ParquetFile(storage.input(path), coerce_int96_timestamp_unit=unit, page_checksum_verification=True)


def _old_times(file: pq.ParquetFile) -> list[str]:
    columns = (file.metadata.schema.column(at) for at in range(file.metadata.num_columns))
    return [column.path for column in columns if column.physical_type == "INT96"]


def _choose_unit(storage: Storage, path: str, columns: list[str]) -> Literal["us", "ns"]:
    """Microseconds, unless a time has more digits. In nanoseconds Arrow reads 9999 as 1816, in microseconds it cuts the
    digits after them; it reports neither. So both are read and compared."""
    is_fine = is_far = False
    with _open_file(storage, path, "us") as coarse, _open_file(storage, path, "ns") as fine:
        # The same columns and size, so both cut the rows at the same places.
        pairs = zip(
            coarse.iter_batches(reader.MOST_ROWS, columns=columns),
            fine.iter_batches(reader.MOST_ROWS, columns=columns),
            strict=True,
        )
        for micros, nanos in pairs:
            is_fine |= not micros.cast(nanos.schema, safe=False).equals(nanos)
            try:
                micros.cast(nanos.schema)
            except pa.ArrowInvalid:
                is_far = True
    if is_fine and is_far:
        raise Invalid(
            f"times of the old type INT96 ({', '.join(columns)}) have nanoseconds, and others lie outside of 1677-2262;"
            " no type holds both",
            hint=f"Leave them out: add --skip {shlex.quote(join_names(columns))}.",
            column=columns[0],
        )
    return "ns" if is_fine else "us"


def _first_line(error: BaseException) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return "its bytes have another meaning than they should" if "thrift" in text else text
