"""Files to load, found by name or pattern, with their size and time at that moment."""

from __future__ import annotations

import codecs
import fnmatch
import glob
import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from stat import S_ISREG
from typing import Literal

from strandline.errors import Invalid, NotFound
from strandline.jobs.foreign_tables import DELTA_LOG, FOREIGN_TABLES, is_hidden
from strandline.jobs.ingest.json_scan import is_inside
from strandline.jobs.parquet_files import ENDINGS
from strandline.jobs.partitions import Partitions, partitions_of
from strandline.storage.open import LocalStorage, Storage, open_storage, to_address

Kind = Literal["jsonl", "csv", "parquet"]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One path or several."""
Compression = Literal["gzip", "zstd", "bz2"]

_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".geojson": "jsonl",
    ".csv": "csv", ".tsv": "csv", **dict.fromkeys(ENDINGS, "parquet"),
}  # fmt: skip
_UNREAD = {".xz", ".zip", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".br"}
_OTHERS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "Save the sheet as CSV first."),
    **dict.fromkeys((".orc", ".avro", ".feather", ".arrow"), "Write it as Parquet first."),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), "Write its tables as CSV or Parquet first."),
}
_PACKED: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
_KNOWN = ".jsonl .ndjson .json .csv .tsv (also .gz .zst .bz2) and .parquet"
_IMPORT_HINT = "Import it: strandline table import NAME PATH"
_WILD = "*?["
_TAIL_BYTES = 64 << 10


def list_paths(files: Paths) -> list[str]:
    """The paths as texts."""
    if isinstance(files, str | os.PathLike):
        return [to_address(files)]
    if not isinstance(files, Iterable):
        raise Invalid(f"files is {files!r}; expected a path, or a list of paths")
    return [to_address(file) for file in files]


@dataclass(frozen=True)
class Source:
    """A file: its place, and what is known without reading it. `inode` is empty where files have none.

    The first `size` bytes count; `unfinished_bytes` follow, of a last line without newline. `encoding`, and the columns
    to `skip`, are what the caller said. `partitions` are the columns that its folders hold."""

    storage: Storage
    path: str
    kind: Kind
    compression: Compression | None
    size: int
    mtime_ns: int
    inode: str
    unfinished_bytes: int = 0
    encoding: str | None = None
    partitions: Partitions = field(default_factory=dict)
    skip: tuple[str, ...] = ()

    @property
    def uri(self) -> str:
        return self.storage.url(self.path)

    @cached_property
    def place(self) -> str:
        """A short hash of the file's address. All links to a file have the same place."""
        uri = os.path.realpath(self.uri) if self.storage.is_local else self.uri
        return hashlib.sha256(uri.encode(errors="surrogateescape")).hexdigest()[:16]

    @property
    def stem(self) -> str:
        """The path in small letters, without the ending of its compression."""
        return _split_packing(self.path)[0].lower()

    @cached_property
    def is_wide(self) -> bool:
        """Whether this is text of two or four bytes a letter. The first bytes tell."""
        start = b"".join(self.chunks(0, min(self.size, 4), 4))
        return self.encoding in WIDE or start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start

    @property
    def may_grow(self) -> bool:
        """Whether new lines may follow at the end of the file. Compressed files, Parquet files and texts of two bytes a
        letter always count as a whole."""
        return self.is_text and self.compression is None and not self.is_wide

    @property
    def is_text(self) -> bool:
        return self.kind != "parquet"

    def chunks(self, start: int, stop: int, size: int) -> Iterator[bytes]:
        """The stored bytes in `[start, stop)`."""
        try:
            with self.storage.input(self.path) as file:
                file.seek(start)
                while start < stop:
                    data = file.read(min(size, stop - start))
                    if not data:
                        raise Invalid(f"{self.uri} became shorter while it was read", file=self.uri)
                    start += len(data)
                    yield data
        except FileNotFoundError as error:
            raise NotFound(f"{self.uri} is gone", file=self.uri) from error

    def finished(self) -> Source:
        """The file up to its last newline: the rest may be half a line that is still being written."""
        if not self.may_grow:
            return self
        stop = self.size
        while stop:
            start = max(0, stop - _TAIL_BYTES)
            end = b"".join(self.chunks(start, stop, _TAIL_BYTES)).rfind(b"\n") + 1
            if end:
                stop = start + end
                break
            stop = start
        if self.kind == "jsonl" and self._ends_value(stop):
            return self
        return replace(self, size=stop, unfinished_bytes=self.size - stop)

    def _ends_value(self, start: int) -> bool:
        """Whether the JSON text from `start` on, after the last newline, is complete: its brackets and strings are
        closed. Of a long text only the last bytes are looked at."""
        tail = b"".join(self.chunks(max(start, self.size - _TAIL_BYTES), self.size, _TAIL_BYTES)).rstrip()
        return not is_inside(tail) if self.size - start <= _TAIL_BYTES else tail.endswith((b"}", b"]"))

    def is_unchanged(self) -> bool:
        """Whether the file is still the one that was found."""
        now = _stat(self.storage, self.path)
        return now == (self.size, self.mtime_ns, self.inode)


def find(
    patterns: Sequence[str],
    options: Mapping[str, str] | None,
    kind: Kind | None = None,
    encoding: str | None = None,
    skip: Sequence[str] = (),
) -> list[Source]:
    """The files of names, folders and glob patterns, in that order, each once; the files of one pattern or folder are
    sorted by name.

    `options` are S3 settings for `s3://` addresses; `kind` overrides the endings of the file names. `encoding` is that
    of the text, `skip` the columns to leave out."""
    found: dict[str, Source] = {}
    for pattern in patterns:
        _check_path(pattern)
        remote = pattern.startswith("s3://")
        for source in _find_remote(pattern, options, kind) if remote else _find_local(pattern, kind):
            found.setdefault(source.uri, source)
    if not found:
        raise Invalid("no files were given", hint="Name files or patterns: strandline ingest TABLE 'inbox/*.jsonl'")
    return [replace(source, encoding=encoding, skip=tuple(skip)) for source in found.values()]


def _check_path(pattern: str) -> None:
    """A path may have bytes that are not UTF-8, as Python writes them (surrogateescape), but no NUL and no other
    surrogates."""
    try:
        is_path = b"\0" not in os.fsencode(pattern)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise Invalid(f"{pattern!r} cannot be the name of a file")
    scheme, sign, _ = pattern.partition("://")
    if sign and scheme not in ("s3", "file") and "/" not in scheme:
        hint = "Files are read from folders and from s3://bucket/prefix. Fetch the file first."
        raise Invalid(f"{pattern}: addresses with {scheme}:// are not read", hint=hint, file=pattern)
    if pattern == "-" and not os.path.lexists(pattern):
        hint = "A file is loaded once, which needs its name. Write the text into a file first."
        raise Invalid("what a program prints is not read", hint=hint, file=pattern)


def _find_local(pattern: str, kind: Kind | None) -> list[Source]:
    pattern = os.path.expanduser(pattern.removeprefix("file://"))
    if os.path.lexists(pattern) or not any(sign in pattern for sign in _WILD):
        paths = [pattern]
    else:
        paths = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not paths:
            raise _no_match(pattern)
    if os.path.isdir(paths[0]):
        paths = _files_below(pattern, LocalStorage(os.path.abspath(pattern)), "", kind)
    sources = []
    for path in paths:
        folder, name = os.path.split(os.path.abspath(path))
        source = _describe_file(LocalStorage(folder), name, kind)
        sources.append(replace(source, partitions=partitions_of(path)))
    return sources


def _files_below(written: str, storage: Storage, prefix: str, kind: Kind | None) -> list[str]:
    """The data files in a folder, at any depth, as the caller would write them. `Invalid` for a table of another kind:
    its files may hold rows that are deleted."""
    start = f"{prefix}/" if prefix else ""
    names = sorted(info.path.removeprefix(start) for info in storage.list(prefix))
    for begin, what in FOREIGN_TABLES.items():
        if any(name.startswith(begin) for name in names):
            raise Invalid(f"{written} is {what}", hint=_IMPORT_HINT if begin == DELTA_LOG else None, file=written)
    data = [name for name in names if not is_hidden(name) and (kind or _known_kind(name))]
    if not data:
        raise NotFound(f"the folder {written} has no files of a known format", hint=f"Known: {_KNOWN}", file=written)
    return [f"{written.rstrip('/')}/{name}" for name in data]


def _find_remote(pattern: str, options: Mapping[str, str] | None, kind: Kind | None) -> list[Source]:
    bucket, _, rest = pattern.removeprefix("s3://").partition("/")
    storage = open_storage(f"s3://{bucket}", options)
    is_wild = any(sign in rest for sign in _WILD)
    fixed = rest[: min(rest.index(sign) for sign in _WILD if sign in rest)] if is_wild else rest
    infos = storage.list(fixed.rpartition("/")[0])
    matching = [i for i in infos if (fnmatch.fnmatchcase(i.path, rest) if is_wild else i.path == rest)]
    if not matching and not is_wild and (folder := rest.rstrip("/")) and (inside := storage.list(folder)):
        below = set(_files_below(pattern, storage, folder, kind))
        matching = [i for i in inside if f"s3://{bucket}/{i.path}" in below]
    if not matching:
        raise _no_match(pattern) if is_wild else _no_file(pattern)
    return [
        Source(
            storage,
            i.path,
            *_kind_of(i.path, kind),
            i.size,
            int(i.modified_s * 1e9),
            "",
            partitions=partitions_of(i.path),
        )
        for i in sorted(matching, key=lambda i: i.path)
    ]


def _describe_file(storage: LocalStorage, path: str, kind: Kind | None) -> Source:
    try:
        size, mtime_ns, inode = _stat(storage, path)
    except FileNotFoundError as error:
        raise _no_file(storage.url(path)) from error
    return Source(storage, path, *_kind_of(path, kind), size, mtime_ns, inode)


def _no_match(pattern: str) -> NotFound:
    folder = shlex.quote(pattern.rpartition("/")[0] or ".")
    return NotFound(
        f"no file matches {pattern!r}",
        hint=f"See what is in {folder}; * and ? match characters in a name, ** matches folders of any depth.",
        file=pattern,
    )


def _no_file(uri: str) -> NotFound:
    return NotFound(
        f"no file {uri}", hint="Check the spelling; a relative path starts at the current folder.", file=uri
    )


def _stat(storage: Storage, path: str) -> tuple[int, int, str]:
    if storage.is_local:
        uri = storage.url(path)
        stat = os.stat(uri)
        if not S_ISREG(stat.st_mode):
            hint = "A pipe or a device has no size, and cannot be read twice. Write its text into a file first."
            raise Invalid(f"{uri} is not a file", hint=hint, file=uri)
        return stat.st_size, stat.st_mtime_ns, f"{stat.st_dev:x}.{stat.st_ino:x}"
    for info in storage.list(path.rpartition("/")[0]):
        if info.path == path:
            return info.size, int(info.modified_s * 1e9), ""
    raise FileNotFoundError(storage.url(path))


def _kind_of(path: str, kind: Kind | None) -> tuple[Kind, Compression | None]:
    compression = _split_packing(path)[1]
    found = kind or _known_kind(path)
    ending = os.path.splitext(path)[1].lower()
    if ending in _UNREAD:
        hint = "Unpack it first. Read as they are: .gz .zst .bz2"
        raise Invalid(f"{path}: {ending} is not read", hint=hint, file=path)
    if found is None and ending in _OTHERS:
        raise Invalid(f"{path}: {ending} is not read", hint=_OTHERS[ending], file=path)
    if found is None or (found == "parquet" and compression):
        raise Invalid(
            f"{path}: the format of the file is not clear from its name",
            hint=f"Known: {_KNOWN}; or name it: --format csv, jsonl or parquet",
            file=path,
        )
    return found, compression


def _known_kind(path: str) -> Kind | None:
    stem, compression = _split_packing(path)
    found = _KINDS.get(os.path.splitext(stem)[1].lower())
    return None if found == "parquet" and compression else found


def _split_packing(path: str) -> tuple[str, Compression | None]:
    """A path without the ending that tells its compression, and the compression."""
    stem, ending = os.path.splitext(path)
    compression = _PACKED.get(ending.lower())
    return (stem, compression) if compression else (path, None)
