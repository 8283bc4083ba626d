"""The schema of a table that is created from the files of one call.

A column gets a type only when every value that was looked at has it, in the first file and in those that follow, up to
`_MOST_BYTES` and `_MOST_FILES`. Columns without any value become text. The types of JSON files are found in
`json_types`.

No library infers the types, because a type must keep every value as it is written. Arrow reads 00712 as 712, a number
of 20 digits as a float and `nan` as null; DuckDB reads all identifiers in JSON as floats when one of them has 20
digits. Both infer types (times of day, dates in national formats) that ingest does not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from strandline.errors import Invalid
from strandline.jobs.column_names import find_columns, name_columns, new_map
from strandline.jobs.ingest.bad_rows import FORMS_HINT
from strandline.jobs.ingest.csv_file import guess_columns
from strandline.jobs.ingest.csv_types import ColumnGuess
from strandline.jobs.ingest.json_types import MOST_COLUMNS, JsonGuess, guess_json_columns
from strandline.jobs.ingest.parquet import infer_parquet
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text_columns import add_folders
from strandline.jobs.ingest.text_options import TextOptions, types_option
from strandline.model.name_map import NameMap, Rule
from strandline.model.schema_text import type_text
from strandline.model.types import JSON, KEY_TYPES, canonical_schema, relax_schema

_MOST_BYTES = 256 << 20
_MOST_FILES = 1_000

_Guesses = list[tuple[str, ColumnGuess]] | list[tuple[str, JsonGuess]]


def infer(
    source: Source,
    options: TextOptions,
    *,
    is_tolerant: bool = False,
    key: Sequence[str] = (),
    rule: Rule | None = None,
    others: Sequence[Source] = (),
) -> tuple[pa.Schema, NameMap]:
    """The schema of files, of this one and of the `others` of the call, and the names in the file that are not those of
    their columns. `is_tolerant` skips bad rows. Types that `options` says are not inferred. Columns of the `key` get a
    type that a key may have."""
    schema = _read_schema(source, options, is_tolerant, others, rule)
    columns = name_columns(schema.names, rule=rule)
    names = new_map(schema.names, columns, rule)
    schema = pa.schema([field.with_name(column) for field, column in zip(schema, columns, strict=True)])
    key = find_columns(key, columns, names)
    for at, field in enumerate(schema):
        if field.name in key and field.type not in KEY_TYPES and source.is_text and field.type != JSON:
            schema = schema.set(at, field.with_type(pa.string()))
    schema = options.for_columns(columns, names).override(schema, source.uri)
    schema = _canonical_schema(schema, source)
    for name in key:
        if name in schema.names and schema.field(name).type not in KEY_TYPES:
            raise _explain_key(source, schema.field(name))
    return schema, names


def _explain_key(source: Source, field: pa.Field) -> Invalid:
    """The error for a column that cannot be a key, with the type that helps."""
    what, kind = f"is {type_text(field.type)}, which cannot be a key", "int64"
    if source.kind == "jsonl" and field.type == JSON:
        what, kind = "has values of several types, or lists or objects", "string"
    return Invalid(
        f"{source.uri}: the key column {field.name!r} {what}",
        hint=f"Read it as another type: {types_option(field.name, kind)}. Or name another key.",
        file=source.uri,
        column=field.name,
    )


def _read_schema(
    source: Source, options: TextOptions, is_tolerant: bool, others: Sequence[Source], rule: Rule | None
) -> pa.Schema:
    """The names in the files, which may repeat, and their types."""
    if source.kind == "parquet":
        return infer_parquet([source, *(other for other in others if other.kind == "parquet" and other != source)])
    guesses = _guess_types(source, options, is_tolerant)
    if guesses:
        _merge_guesses(guesses, _choose_others(source, others), options, rule)
    schema = pa.schema([pa.field(name, guess.type) for name, guess in guesses])
    if not len(schema) and is_tolerant and source.kind != "csv":
        # Not one good row: the error of the first bad one, if there is one, says more than the ones below.
        _explain_first_row(source)
    if not len(schema) and source.unfinished_bytes:
        raise Invalid(
            f"{source.uri} has no complete line: its only line does not end with a newline",
            hint="End the line with a newline, or load it as it is: --last-line load",
            file=source.uri,
        )
    if not len(schema):
        raise Invalid(
            f"{source.uri} {'has no row with names' if source.size else 'is empty'}, so its columns are not known",
            hint='Create the table first: strandline table create NAME --schema "id:int64,…" --key id',
            file=source.uri,
        )
    return add_folders(schema, source, others)


def _guess_types(source: Source, options: TextOptions, is_tolerant: bool) -> _Guesses:
    if source.kind == "csv":
        return guess_columns(source, options)
    return guess_json_columns(source, is_tolerant=is_tolerant)


def _choose_others(source: Source, others: Sequence[Source]) -> Iterator[Source]:
    """The files after the first one that are looked at."""
    size = source.size
    for other in others[:_MOST_FILES]:
        if other.kind == source.kind and other.uri != source.uri:
            size += other.size
            if size > _MOST_BYTES:
                return
            yield other


def _merge_guesses(guesses: _Guesses, others: Iterable[Source], options: TextOptions, rule: Rule | None) -> None:
    """Take the values of other files into account, and the names that only they have: of JSON files, because objects
    leave names out. A CSV file with other columns is refused when it is read, as bad rows and damaged files are."""
    places: dict[tuple[str, ...], list[int | None]] = {}
    for other in others:
        try:
            found = _guess_types(other, options, is_tolerant=True)
        except Invalid:
            continue
        names = tuple(name for name, _ in found)
        if names not in places:
            count = len(guesses)
            if other.kind == "jsonl":
                _add_names(guesses, found, rule)
            if len(guesses) > count:
                places.clear()
            places[names] = _find_places(guesses, names, rule)
        for at, (_, guess) in zip(places[names], found, strict=True):
            if at is not None:
                guesses[at][1].merge(guess)  # type: ignore[arg-type]


def _add_names(guesses: _Guesses, found: _Guesses, rule: Rule | None) -> None:
    """Add the names that mean no column yet, without their values."""
    places = _find_places(guesses, [name for name, _ in found], rule)
    new = [(name, JsonGuess()) for (name, _), at in zip(found, places, strict=True) if at is None]
    guesses.extend(new[: MOST_COLUMNS - len(guesses)])  # type: ignore[arg-type]


def _find_places(guesses: _Guesses, sources: Sequence[str], rule: Rule | None) -> list[int | None]:
    """The number of the column that each name of a later file means."""
    names = [name for name, _ in guesses]
    columns = name_columns(names, rule=rule)
    places = {column: at for at, column in enumerate(columns)}
    met = name_columns(sources, known=new_map(names, columns, rule), columns=columns, rule=rule)
    return [places.get(column) for column in met]


def _explain_first_row(source: Source) -> None:
    """`Invalid` when the first row is bad, for a caller who keeps bad rows aside."""
    try:
        guess_json_columns(source, is_tolerant=False)
    except Invalid as error:
        hint = f"The file has no good row, from which a table could be made. {FORMS_HINT}"
        raise Invalid(error.message, hint=hint, **error.fields) from error


def _canonical_schema(schema: pa.Schema, source: Source) -> pa.Schema:
    try:
        return canonical_schema(relax_schema(schema))
    except Invalid as error:
        raise Invalid(
            f"{source.uri}: {error.message}",
            hint=error.hint,
            **{"file": source.uri, **error.fields},
        ) from error
