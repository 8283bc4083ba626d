"""Pack log files: few files with the changes of many, each change with its seq inside.

A pack has every change of its files, also those that later ones replace, in the order of their seqs: so the changes of
each range, and the table at each seq, are those from before. The rows of one file keep their order. One commit removes
the files and adds the pack, with nothing in between: a reader has either.

After a crash: the commit landed, or the new files are orphans and the old ones are valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.crash import crash_point
from strandline.engines.ahead import convert_ahead
from strandline.errors import Conflict, Corrupt
from strandline.model.change import HASH, PACKED, ROW, SEQ
from strandline.storage import digest
from strandline.storage.parquet import reader, writer
from strandline.storage.snapshot import DataFile, Pack, new_file_name, schema_id_of
from strandline.tables.log import Log, first_seq
from strandline.tables.pins import new_pin

LogFile = tuple[int, DataFile]
_AHEAD_BYTES = 4 << 20


@dataclass(frozen=True)
class Bundle:
    """Neighbouring files of one schema that become one pack of this tier."""

    files: tuple[LogFile, ...]
    tier: int

    @property
    def first(self) -> int:
        return min(first_seq(seq, file) for seq, file in self.files)

    @property
    def last(self) -> int:
        return max(seq for seq, _ in self.files)


def pack_files(log: Log, bundles: Sequence[Bundle], *, quiet_s: float = 0) -> list[DataFile]:
    """Write the packs and commit them in place of their files. `Conflict` when one of the files was removed
    meanwhile."""
    claim = new_pin("packing", writes_since_s=log.storage.now_s(), log_version=log.refresh().head)
    with log.pins.held(claim, quiet_s=quiet_s):
        added: list[DataFile] = []
        try:
            for bundle in bundles:
                added += _write_packs(log, bundle)
            crash_point("pack.files_written")
            log.pack([file for bundle in bundles for _, file in bundle.files], added)
        except (Conflict, Corrupt):
            log.discard(added)
            raise
    crash_point("pack.committed")
    return added


def _write_packs(log: Log, bundle: Bundle) -> list[DataFile]:
    """The files of a bundle as one file, or several when the writer ends one early."""
    ordered = sorted(bundle.files, key=_place_of)
    schema_id = schema_id_of(ordered[0][1])
    inside = pa.schema([pa.field(PACKED, pa.int64(), False), *_read_schema(log, ordered[0][1])])
    written: list[DataFile] = []
    try:
        for file in writer.write_files(
            log.storage, log.folder, lambda: new_file_name(schema_id), _read_rows(log, ordered, inside), inside
        ):
            written.append(_describe_pack(file, bundle))
        _check_rows(log, bundle, written)
    except BaseException:
        log.discard(written)
        raise
    finally:
        # A fold that follows would need its memory besides.
        pa.default_memory_pool().release_unused()
    return written


def _place_of(pair: LogFile) -> tuple[int, int, int]:
    """The place of a file in a pack. The files of one commit follow in the order of their rows."""
    seq, file = pair
    low = file.stats["minValues"]
    return first_seq(seq, file), int(low.get(ROW, low[HASH])), int(file.stats["maxValues"][HASH])


def _read_schema(log: Log, file: DataFile) -> pa.Schema:
    with _open_checked(log, file) as opened:
        return pa.schema([field for field in opened.schema_arrow if field.name != PACKED])


def _read_rows(log: Log, files: Iterable[LogFile], inside: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of files, each with its seq; `Corrupt` for a damaged file. Small files are read ahead."""

    def read(pair: LogFile) -> Iterable[pa.RecordBatch]:
        found = _read_file(log, *pair, inside)
        return list(found) if pair[1].raw_bytes <= _AHEAD_BYTES else found

    return chain.from_iterable(convert_ahead(read, files))


def _read_file(log: Log, seq: int, file: DataFile, inside: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _open_checked(log, file) as opened:
        for batch in reader.batches(opened):
            own = [] if file.pack is not None else [pa.repeat(pa.scalar(seq, pa.int64()), batch.num_rows)]
            yield pa.RecordBatch.from_arrays([*own, *batch.columns], schema=inside)


def _open_checked(log: Log, file: DataFile) -> pq.ParquetFile:
    """A file of the log, opened; `Corrupt` when it is damaged."""
    path = f"{log.folder}/{file.path}"
    if fault := digest.find_fault(log.storage, path, file):
        raise digest.corrupt(log.storage, path, fault)
    return reader.open_file(log.storage, path)


def _describe_pack(file: DataFile, bundle: Bundle) -> DataFile:
    """A written file as a pack, with the facts of the commits that it holds."""
    first, last = (int(file.stats[side][PACKED]) for side in ("minValues", "maxValues"))
    own = [(seq, each) for seq, each in bundle.files if seq >= first and first_seq(seq, each) <= last]
    single = {seq for seq, each in own if each.pack is None}
    commits = len(single) + sum(each.pack.commits for _, each in own if each.pack is not None)
    times = [(each.oldest_ms, each.modified_ms if each.pack is None else each.pack.until_ms) for _, each in own]
    pack = Pack(first, last, commits, bundle.tier, min(since for since, _ in times), max(until for _, until in times))
    return replace(file, partition={SEQ: str(last)}, pack=pack)


def _check_rows(log: Log, bundle: Bundle, written: Sequence[DataFile]) -> None:
    """`Corrupt` when the packs do not have as many rows as the commits of their files say."""
    expected, found = sum(file.rows for _, file in bundle.files), sum(file.rows for file in written)
    if expected != found:
        raise Corrupt(
            f"the files of {log.storage.url(log.folder)} from seq {bundle.first} to {bundle.last} hold {found} changes,"
            f" and their commits say {expected}; nothing was packed",
            hint="See what is affected: strandline doctor --deep",
            path=log.folder,
        )
