"""Read a CSV file: its layout, the types of its columns, its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.engines.ahead import convert_ahead
from strandline.errors import Invalid
from strandline.jobs.column_names import ColumnMatcher
from strandline.jobs.ingest.bad_rows import BadRow
from strandline.jobs.ingest.blocks import Block, Reading
from strandline.jobs.ingest.csv import Delimited
from strandline.jobs.ingest.csv_types import ColumnGuess
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.sniff import Layout, sniff
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text_options import TextOptions


@dataclass(frozen=True)
class CsvFile:
    """A CSV file whose fields are matched with the columns of a table."""

    form: Delimited
    layout: Layout

    def read(self, reading: Reading) -> Iterator[pa.Table | BadRow]:
        """The rows of a reading: good ones as tables, bad ones with their lines."""
        blocks = _skip_prefix(reading, self.form, self.layout)
        for found in convert_ahead(lambda block: list(self.form.read(block)), blocks):
            yield from found


def open_csv(source: Source, schema: pa.Schema, options: TextOptions, names: ColumnMatcher) -> CsvFile:
    """The file, the names of its header matched with the columns of the table."""
    layout = sniff(source, options, [*schema.names, *names.known.columns])
    if layout is None:
        return CsvFile(Delimited(schema, [], Dialect()), Layout(Dialect(), [], b""))
    columns = _match_columns(source, schema, layout, options, names)
    line = layout.prefix.count(b"\n") if layout.dialect.has_header else layout.dialect.skipped_lines + 1
    for field in schema:
        if not field.nullable and field.name not in columns:
            raise Invalid(
                f"{source.uri}, line {max(line, 1)}: the header lacks {field.name!r}, for which the table requires"
                " values",
                file=source.uri,
                line=max(line, 1),
                column=field.name,
            )
    return CsvFile(Delimited(schema, columns, layout.dialect), layout)


def _match_columns(
    source: Source, schema: pa.Schema, layout: Layout, options: TextOptions, names: ColumnMatcher
) -> list[str]:
    if options.header is False:
        if len(layout.names) > len(schema):
            raise Invalid(
                f"{source.uri} has lines of {len(layout.names)} fields; the table has {len(schema)} columns",
                file=source.uri,
            )
        return list(schema.names[: len(layout.names)])
    line = layout.dialect.skipped_lines + 1
    place = f"{source.uri}, line {line}"
    return names.require(layout.names, place, hint=_header_hint(layout), file=source.uri, line=line)


def _header_hint(layout: Layout) -> str:
    if layout.dialect.has_header:
        return ""
    return (
        "\nThe file seems to have no header. If its first line is one: --header. If its fields are the columns of the"
        " table in their order: --no-header"
    )


def guess_columns(source: Source, options: TextOptions) -> list[tuple[str, ColumnGuess]]:
    """The names in a CSV file, and what its texts can be. All rows are looked at, except bad ones."""
    layout = sniff(source, options)
    if layout is None:
        return []
    places = [str(at) for at in range(len(layout.names))]
    form = Delimited(pa.schema([(place, pa.string()) for place in places]), places, layout.dialect)
    guesses = [ColumnGuess(layout.dialect.null) for _ in places]
    reading = Reading.whole(source, layout.dialect.encoding, layout.dialect.newline)
    for found in CsvFile(form, layout).read(reading):
        if isinstance(found, pa.Table):
            for at, guess in enumerate(guesses):
                guess.add(found.column(at))
            if all(guess.is_text for guess in guesses):
                break
    return list(zip(layout.names, guesses, strict=True))


def _skip_prefix(reading: Reading, form: Delimited, layout: Layout) -> Iterator[Block]:
    """The blocks without the text before the first row."""
    left = 0 if reading.start else len(layout.prefix)
    for block in reading.blocks(form.cut):
        skipped = min(left, len(block.data))
        left -= skipped
        yield Block(block.data[skipped:], block.line + block.data.count(b"\n", 0, skipped))
