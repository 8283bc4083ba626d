"""A folder or an S3 prefix that collects a table's changes as Parquet files, a folder and a manifest for each batch.

    data/<generation>/<upto>-<batch>/part-<digest>.parquet    the rows
    _strandline/<generation>/<upto>.json                      the manifest: it makes the batch count

In a backfill `<upto>` is `<upto>-<round>`, until the whole history is there.

Lanes stage files. `finish` publishes them and then creates the manifest; only one of several finishers can create it. A
file's name is a digest of its bytes: a batch repeated with the same rows gives the same files, and publishing a file
again changes nothing. Nothing visible is deleted before the batch has its manifest; then all other files in its folder
are deleted.

After a crash: a batch without a manifest is repeated. Some of its files may be visible already. If the repetition cuts
the rows otherwise, the old files stay visible until the manifest exists.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from strandline.crash import crash_point
from strandline.errors import Conflict
from strandline.sinks import contract
from strandline.sinks.contract import WHOLE, Batch, Held, Producer, Result
from strandline.sinks.files import (
    FileLane,
    FileSink,
    WrittenFile,
    clear_unfinished,
    collect_files,
    describe_files,
    read_note,
    translate_errors,
)
from strandline.storage.open import Storage
from strandline.storage.snapshot import DataFile

MANIFESTS = "_strandline"
_FORMAT = 1
_MANIFEST = re.compile(r"/(\d{20})(?:-(\d{10}))?\.json\Z")


class ParquetSink(FileSink):
    """Changes as Parquet files below `uri`: a folder or `s3://bucket/prefix`."""

    kind: ClassVar[str] = "parquet"
    mode: ClassVar[str] = contract.CHANGES

    def open(self, producer: Producer) -> ParquetDelivery:
        return ParquetDelivery(self.storage(), producer)


@dataclass(frozen=True)
class ParquetDelivery:
    storage: Storage
    producer: Producer

    def is_delivered(self, batch: Batch) -> bool:
        """Whether the batch has its manifest; then other files of a repeated batch are cleared away. `Conflict` when
        the manifest of the batch before it is missing, or another batch has followed that one."""
        with translate_errors(self.storage):
            if self._manifest_files(batch) is not None:
                if batch.is_replay:
                    self._clear_folder(batch)
                return True
            if not batch.is_first and not self.storage.exists(self._manifest_path(batch.start)):
                return contract.is_delivered(None, batch, self.producer, self.storage.uri)
            other = self._read_successor(batch)
            if other is not None and other[0] != batch.id and self.storage.exists(self._manifest_path(other[1])):
                raise self._taken_conflict(batch, *other)
            return False

    def cuts(self) -> None:
        return None

    def lane(self, batch: Batch) -> FileLane:
        if batch.is_first:
            with translate_errors(self.storage):
                self.storage.check_put_new()
        return FileLane(self.storage, batch, self._folder(batch), "part", is_staged=True)

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        written = collect_files(results)
        crash_point("sink.staged")
        with translate_errors(self.storage):
            if not self.is_delivered(batch):
                self._claim_successor(batch)
                try:
                    self._publish_files(batch, written)
                except (Conflict, FileNotFoundError):
                    # Another finisher may have finished the batch and cleared these files away.
                    if not self.is_delivered(batch):
                        raise
            self._clear_folder(batch)

    def position(self, vnodes: int) -> Mapping[int, int]:
        with translate_errors(self.storage):
            listed = self.storage.list(f"{MANIFESTS}/{self.producer.generation}")
            found = [each for info in listed if (each := _MANIFEST.search(info.path))]
        held = max((Held(int(each[1]), int(each[2] or WHOLE)) for each in found), default=None)
        return contract.spread_position(held, vnodes, self.producer, self.storage.uri)

    def close(self) -> None:
        pass

    def _folder(self, batch: Batch) -> str:
        return f"data/{self.producer.generation}/{_place_text(batch.end)}-{batch.id}"

    def _manifest_path(self, held: Held) -> str:
        return f"{MANIFESTS}/{self.producer.generation}/{_place_text(held)}.json"

    def _publish_files(self, batch: Batch, written: Sequence[WrittenFile]) -> None:
        self.storage.publish(staged for _, staged in written if staged is not None)
        files = self._copy_twins([file for file, _ in written])
        crash_point("sink.published")
        manifest = json.dumps(self._describe_batch(batch, files), indent=1)
        # Another finisher of the same batch may have created it: then that manifest counts.
        self.storage.put_new(self._manifest_path(batch.end), manifest.encode())
        crash_point("sink.described")

    def _next_path(self, batch: Batch) -> str:
        # Nothing lies before a first batch, whatever it is.
        start = Held(0) if batch.is_first else batch.start
        return f"{MANIFESTS}/{self.producer.generation}/{_place_text(start)}.next"

    def _read_successor(self, batch: Batch) -> tuple[str, Held] | None:
        """The id and end of the batch that claimed this batch's place, if one did."""
        return read_note(
            self.storage,
            self._next_path(batch),
            lambda note: (str(note["batch"]), Held(int(note["upto"]), int(note.get("round", WHOLE)))),
            self._hint,
        )

    @property
    def _hint(self) -> str:
        return f"Restore that file, or send the table again: strandline mark reset {self.producer.consumer}"

    def _claim_successor(self, batch: Batch) -> None:
        """Claim the place after the batch before. An earlier claim whose batch never counted, because its state was
        lost, gives way."""
        claim = json.dumps({"batch": batch.id, "upto": batch.upto, "round": batch.end_round}).encode()
        if self.storage.put_new(self._next_path(batch), claim):
            return
        other = self._read_successor(batch)
        if other is not None and other[0] != batch.id:
            if self.storage.exists(self._manifest_path(other[1])):
                raise self._taken_conflict(batch, *other)
            with self.storage.output(self._next_path(batch)) as stream:
                stream.write(claim)

    def _taken_conflict(self, batch: Batch, id_: str, end: Held) -> Conflict:
        return Conflict(
            f"sink {self.producer.consumer!r} is at {batch.start}, but {self.storage.uri} has its changes from"
            f" there to {end} already: the lake and its state were restored from a copy, or others send there",
            hint=f"Nothing was sent. To send the table again: strandline mark reset {self.producer.consumer}",
            consumer=self.producer.consumer,
            expected=batch.after,
            found=end.seq,
        )

    def _copy_twins(self, files: Sequence[DataFile]) -> list[DataFile]:
        """The published files, each under its own name. Lanes with equal rows, which a table without a key may have,
        wrote the same bytes under one name; each further one gets a copy, so that its rows count too."""
        seen: Counter[str] = Counter()
        named = []
        for file in sorted(files, key=lambda file: file.path):
            path = file.path
            seen[path] += 1
            if seen[path] > 1:
                path = f"{path.removesuffix('.parquet')}-{seen[path]}.parquet"
                with self.storage.output(path) as stream:
                    stream.write(self.storage.read(file.path))
            named.append(replace(file, path=path))
        return named

    def _describe_batch(self, batch: Batch, files: Sequence[DataFile]) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "lake_id": self.producer.lake_id,
            "consumer": self.producer.consumer,
            "table": self.producer.table,
            "table_generation": self.producer.table_generation,
            "generation": self.producer.generation,
            "batch": batch.id,
            "after": batch.after,
            "upto": batch.upto,
            **({} if batch.end.has_history else {"round": batch.end_round}),
            "columns": batch.file_schema.names,
            **describe_files(files),
            "written_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }

    def _manifest_files(self, batch: Batch) -> Collection[str] | None:
        """The files in the batch's manifest, None without one; `Conflict` when it belongs to another batch."""
        path = self._manifest_path(batch.end)
        found = read_note(
            self.storage, path, lambda note: (note["batch"], {str(f["path"]) for f in note["files"]}), self._hint
        )
        if found is None:
            return None
        id_, named = found
        if batch.id and id_ != batch.id:
            raise Conflict(
                f"sink {self.producer.consumer!r} is to deliver batch {batch.id} up to seq {batch.upto}, but"
                f" {self.storage.url(path)} says that batch {id_} was: someone else sends there",
                hint=f"Nothing was sent. To send the table again: strandline mark reset {self.producer.consumer}",
                consumer=self.producer.consumer,
                expected=batch.id,
                found=id_,
            )
        return named

    def _clear_folder(self, batch: Batch) -> None:
        """Delete the files in the batch's folder that its manifest does not name; nothing without a manifest."""
        named = self._manifest_files(batch)
        if named is None:
            return
        folder = self._folder(batch)
        self.storage.delete([info.path for info in self.storage.list(folder) if info.path not in named])
        clear_unfinished(self.storage, folder)


def _place_text(held: Held) -> str:
    return f"{held.seq:020d}" if held.has_history else f"{held.seq:020d}-{held.round:010d}"
