"""Find out from the first lines of a CSV file how it is written, where the caller did not say.

The delimiter is the sign that splits most lines into the same number of fields. Lines before the table that have other
numbers of fields (a title, comments, blank lines) are skipped. The first line of the table is its header, unless it has
values where the lines below have values of the same kind.

DuckDB's sniffer is not asked: it reads files, not text that is unpacked and decoded, skips lines that are bad rows, and
turns quoting off when a quote is never closed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from strandline.errors import Invalid
from strandline.jobs.ingest.decode import UTF8, sniff_encoding, text_chunks, unpacked_chunks
from strandline.jobs.ingest.dialect import Dialect
from strandline.jobs.ingest.records import Records, spaced_field
from strandline.jobs.ingest.source import Source
from strandline.jobs.ingest.text_options import TextOptions

_SAMPLE_BYTES = 1 << 20
_SAMPLE_RECORDS = 300
_DELIMITERS = (",", ";", "\t", "|")
_UNUSED = "\x1f"
_ZERO_SHARE = 0.02
_COMMENT = "#"
_VALUE = re.compile(
    rb"[-+]?(\d+([.,]\d+)*|\.\d+)([eE][-+]?\d+)?%?|\d{4}-\d\d-\d\d.*|\d\d?[./]\d\d?[./]\d\d+.*|\d\d:\d\d.*"
)
# Spreadsheets write the delimiter into a line before the header.
_SEPARATOR_LINE = re.compile(rb'"?sep=([,;|\t])"?\r?\n', re.I)
_MAGIC = {
    b"\x1f\x8b": "gzip; its name should end with .gz",
    b"\x28\xb5\x2f\xfd": "zstd; its name should end with .zst",
    b"BZh": "bzip2; its name should end with .bz2",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet or a document",
    b"PAR1": "Parquet; its name should end with .parquet",
    b"%PDF-": "a PDF document",
    b"SQLite format 3": "an SQLite database",
}


@dataclass(frozen=True)
class Layout:
    """How a CSV file is written, the names of its columns, and the text before its first row."""

    dialect: Dialect
    names: list[str]
    prefix: bytes


@dataclass(frozen=True)
class _Line:
    """A record of the sample: the text before it, and its fields."""

    start: int
    end: int
    fields: list[bytes]


def sniff(source: Source, options: TextOptions, columns: Collection[str] = ()) -> Layout | None:
    """The layout of a CSV file; None when it has no line. `columns` are those of the table, if there is one."""
    encoding, text, is_whole = _read_sample(source, options.encoding)
    named = _SEPARATOR_LINE.match(text)
    if named and options.delimiter is None and options.skip_lines is None:
        options = replace(options, delimiter=named.group(1).decode(), skip_lines=1)
    newline = "\r" if b"\r" in text and b"\n" not in text else "\n"
    text = text.replace(b"\r", b"\n") if newline == "\r" else text
    said = Dialect(
        encoding=encoding,
        newline=newline,
        comment=options.comment or "",
        is_comment_said=bool(options.comment),
        null=options.null,
        short_rows=options.short_rows,
        escape=options.escape or "",
    )
    dialect = max(_candidates(said, source, options, text, is_whole), key=lambda one: _score(text, one, is_whole))
    lines = list(_split(text, dialect, is_whole))
    width = _common_width(lines)
    dialect, first = _skip_lines(lines, dialect, options, text, width)
    table = [line for line in lines[first:] if not _is_comment(line, dialect, width)]
    if not table:
        return None
    has_header = _has_header(table, options, columns)
    dialect = replace(dialect, has_header=has_header)
    start = lines[first].start
    dialect = replace(dialect, skipped_lines=text.count(b"\n", 0, start))
    if not has_header:
        return Layout(dialect, [f"column_{at + 1}" for at in range(max(width, 1))], text[:start])
    # A delimiter at the end of every row makes an empty field too many.
    is_trailing = all(not line.fields[-1] for line in table[1:] if len(line.fields) == width)
    return Layout(dialect, _name_fields(table[0], width, is_trailing, source, text), text[: table[0].end])


def _read_sample(source: Source, said: str | None) -> tuple[str, bytes, bool]:
    """The encoding, the first part of the text, and whether that is all of it."""
    raw = b""
    size = 0
    for chunk in unpacked_chunks(source, source.chunks(0, source.size, _SAMPLE_BYTES)):
        raw += chunk
        if len(raw) > _SAMPLE_BYTES:
            break
    size = len(raw)
    for magic, what in _MAGIC.items():
        if raw.startswith(magic):
            raise Invalid(f"{source.uri} is not CSV: it is {what}", file=source.uri)
    encoding = sniff_encoding(raw[:_SAMPLE_BYTES], said)
    if said is None and encoding == UTF8 and raw.count(0) > _ZERO_SHARE * len(raw):
        at = raw.index(0)
        line, byte = 1 + raw.count(b"\n", 0, at), at - raw.rfind(b"\n", 0, at)
        raise Invalid(
            f"{source.uri} is not text: it has zero bytes, the first one in line {line} at byte {byte}",
            hint="If it is: --encoding NAME",
            file=source.uri,
            line=line,
        )
    is_whole = size <= _SAMPLE_BYTES
    plain = replace(source, compression=None)
    # Decoded in one piece: an unfinished character at its end belongs to the part that is not looked at.
    text = b"".join(_take_text(text_chunks(plain, [raw[:_SAMPLE_BYTES]], encoding, is_start=True), is_whole))
    return encoding, text, is_whole


def _take_text(chunks: Iterator[bytes], is_whole: bool) -> Iterator[bytes]:
    yield next(chunks, b"")
    if is_whole:
        yield from chunks


def _candidates(said: Dialect, source: Source, options: TextOptions, text: bytes, is_whole: bool) -> list[Dialect]:
    """The dialects to choose from, the most usual ones first."""
    usual = ("\t", *_DELIMITERS) if source.stem.endswith((".tsv", ".tab")) else _DELIMITERS
    delimiters = usual if options.delimiter is None else (options.delimiter,)
    quotes = ('"', "'") if options.quote is None else (options.quote,)
    escapes = ("", "\\") if options.escape is None and b'\\"' in text else (said.escape,)
    found = [
        replace(
            said,
            delimiter=delimiter,
            quote=quote,
            escape=escape,
            spaced_quotes=_has_spaced_quotes(text, delimiter, quote, escape, is_whole),
        )
        for quote in quotes
        for escape in escapes
        for delimiter in dict.fromkeys(delimiters)
        if delimiter != quote
    ]
    if options.delimiter is None:
        free = next((sign for sign in usual if sign.encode() not in text), _UNUSED)
        found += [replace(said, delimiter=free, quote=quote) for quote in quotes[:1]]
    return found


def _has_spaced_quotes(text: bytes, delimiter: str, quote: str, escape: str, is_whole: bool) -> bool:
    """Whether fields are quoted after spaces, as in `1, "a"`: every quote after a delimiter and spaces has another one
    before the next delimiter."""
    signs = re.escape(delimiter.encode()), re.escape(quote.encode())
    if delimiter == " " or not quote or not re.search(rb"%b +%b" % signs, text):
        return False
    if escape:
        text = text.replace((escape + quote).encode(), quote.encode() * 2)
    found = [field for field in spaced_field(delimiter, quote).finditer(text) if field[1]]
    open_end = [] if is_whole else found[-1:]
    return bool(found) and all(field[4] is not None or (field in open_end and field[3] is None) for field in found)


def _score(text: bytes, dialect: Dialect, is_whole: bool) -> tuple[float, ...]:
    """How well a dialect fits: lines with the same number of fields, then more fields."""
    lines = [line for line in _split(text, dialect, is_whole) if not line.fields[0].startswith(_COMMENT.encode())]
    width = _common_width(lines)
    if dialect.quote == "'" and not _is_quoted_by(lines, text, dialect):
        return (-1, 0)
    if not lines or width < 2:
        # One column: better with a sign that does not occur in it.
        return (0.3 if dialect.delimiter.encode() in text else 0.4, 0)
    share = sum(len(line.fields) == width for line in lines) / len(lines)
    return (round(max(share, 0.5) if len(lines[0].fields) > 1 else share, 1), width)


def _is_quoted_by(lines: Sequence[_Line], text: bytes, dialect: Dialect) -> bool:
    """Whether apostrophes enclose fields: in most lines, and no field has double quotes around it."""
    sign = re.escape(dialect.delimiter.encode())
    if re.search(rb'(?:^|%b)"' % sign, text, re.M):
        return False
    enclosed = re.compile(rb"(?:^|%b) *'[^'\n]*' *(?:%b|\r?$)" % (sign, sign), re.M)
    count = sum(enclosed.search(text, line.start, line.end) is not None for line in lines)
    return count >= 2 and count >= 0.5 * len(lines)


def _split(text: bytes, dialect: Dialect, is_whole: bool) -> Iterator[_Line]:
    records = Records(dialect)
    ends = records.ends(text).tolist()
    if not is_whole and len(ends) > 1:
        ends.pop()
    start = count = 0
    comment = dialect.comment.encode() if dialect.is_comment_said else None
    for end in ends:
        record = text[start:end]
        if record.strip() and not (comment and record.startswith(comment)):
            yield _Line(start, end, records.fields(record))
            count += 1
        if count >= _SAMPLE_RECORDS:
            return
        start = end


def _common_width(lines: Sequence[_Line]) -> int:
    """The number of fields that most lines have; of several, that of the first line, or the largest. Empty fields at
    the end of a line may be too many."""
    counts = Counter(len(line.fields) for line in lines)
    first = len(lines[0].fields) if lines else 0
    return max(counts, key=lambda width: (counts[width], width == first, width), default=0)


def _is_comment(line: _Line, dialect: Dialect, width: int) -> bool:
    return (
        bool(dialect.comment)
        and len(line.fields) != width
        and line.fields[0].lstrip().startswith(dialect.comment.encode())
    )


def _skip_lines(
    lines: Sequence[_Line], dialect: Dialect, options: TextOptions, text: bytes, width: int
) -> tuple[Dialect, int]:
    """The dialect with its comment sign, and the number of the line where the table begins."""
    if options.skip_lines is not None:
        start = 0
        for _ in range(options.skip_lines):
            start = text.find(b"\n", start) + 1 or len(text)
        return dialect, next((at for at, line in enumerate(lines) if line.start >= start), len(lines))
    first = 0
    marked = [line.fields[0].startswith(_COMMENT.encode()) for line in lines]
    if options.comment is None and marked and marked[0] and not all(marked):
        first = marked.index(False)
        # The last line with the sign may be the header, as in #chrom, unless a header follows it.
        first -= width > 1 and len(lines[first - 1].fields) == width and not _has_words_above_values(lines[first:])
        if first:
            dialect = replace(dialect, comment=_COMMENT)
    table = next((at for at, line in enumerate(lines) if at >= first and 2 * len(line.fields) > width), len(lines))
    follows = sum(len(line.fields) == width for line in lines[table:])
    return dialect, table if table < len(lines) and follows > 1 else first


def _has_header(table: Sequence[_Line], options: TextOptions, columns: Collection[str]) -> bool:
    if options.header is not None:
        return options.header
    first = [field.strip() for field in table[0].fields]
    known = {column.lower() for column in columns}
    if known & {field.decode(errors="replace").lower() for field in first}:
        return True
    values = [at for at, field in enumerate(first) if _VALUE.fullmatch(field)]
    if not values or len(table) == 1:
        return len(table) > 1 or not values
    if _has_words_above_values(table):
        return True
    below = [line.fields for line in table[1:] if len(line.fields) == len(first)]
    years = [first[at] for at in values]
    if len(set(years)) == len(years) > 1 and all(re.fullmatch(rb"(1[5-9]|20)\d\d", year) for year in years):
        return True
    return not any(
        any(fields[at].strip() for fields in below)
        and all(_VALUE.fullmatch(fields[at].strip()) for fields in below if fields[at].strip())
        for at in values
    )


def _has_words_above_values(table: Sequence[_Line]) -> bool:
    """Whether some column has a word above values, or an empty name above other texts: the first line is a header."""
    first = [field.strip() for field in table[0].fields]
    below = [line.fields for line in table[1:] if len(line.fields) == len(first)]
    for at, field in enumerate(first):
        others = [fields[at].strip() for fields in below if fields[at].strip()]
        if others and not _VALUE.fullmatch(field) and (not field or all(_VALUE.fullmatch(each) for each in others)):
            return True
    return False


def _name_fields(header: _Line, width: int, is_trailing: bool, source: Source, text: bytes) -> list[str]:
    line = 1 + text.count(b"\n", 0, header.start)
    names = []
    for field in header.fields:
        try:
            names.append(field.decode())
        except UnicodeDecodeError as error:
            raise Invalid(
                f"{source.uri}, line {line}: the header is not UTF-8",
                hint="Name the encoding of the file: --encoding latin-1",
                file=source.uri,
                line=line,
                column=field.decode(errors="backslashreplace"),
            ) from error
    if width and len(names) > width and not any(names[width:]):
        # A delimiter at the end of the header alone.
        return names[:width]
    if 1 < len(names) == width - 1 and not is_trailing:
        # Programs such as R leave out the name of the first column, which has the names of the rows.
        return ["", *names]
    return names
