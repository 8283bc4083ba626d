"""A folder or an S3 prefix that collects a table's changes as Parquet files, a folder and a manifest for each batch.

    data/<generation>/<upto>-<batch>/<upto>-<digest>.parquet    the rows
    _strandline/<generation>/<upto>.json                        the manifest: it makes the batch count

Files are staged by the lanes and published by `finish`; then the manifest is created, which one of several finishers
does. A file's name is a digest of its bytes, so a batch that is repeated with the same rows is the same files, and a
file that is published over its twin changes nothing. Before there is a manifest nobody deletes what is published;
after that, whatever else lies in the batch's folder is removed.

After a crash: without the manifest the batch is repeated, and with it nothing is left to do but to clear away what an
attempt before it cut otherwise. In between, files of the batch may be visible that no manifest names yet.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from strandline.crash import crash_point
from strandline.errors import Conflict, Corrupt
from strandline.sinks import base, files
from strandline.sinks.base import Batch, Producer, Result
from strandline.sinks.files import FileLane
from strandline.storage import Storage
from strandline.storage.snapshot import DataFile

MANIFESTS = "_strandline"
_FORMAT = 1


@dataclass(frozen=True)
class ParquetSink:
    """Changes as Parquet files below `uri`. `options` are S3 settings as a lake takes them."""

    kind: ClassVar[str] = "parquet"
    is_ordered: ClassVar[bool] = False

    uri: str
    options: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", files.address(self.uri, self.options))

    @property
    def destination(self) -> str:
        return self.uri

    @property
    def lanes(self) -> int:
        return 1

    def to_dict(self) -> dict[str, Any]:
        return files.kept(self.uri, self.options)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Self:
        return cls(facts["uri"], options=facts.get("options"))

    def open(self, producer: Producer) -> ParquetDelivery:
        return ParquetDelivery(files.opened(self.uri, self.options), producer)


@dataclass(frozen=True)
class ParquetDelivery:
    storage: Storage
    producer: Producer

    def is_delivered(self, batch: Batch) -> bool:
        """Whether the batch has its manifest; what an attempt that ended after it left behind is then cleared away."""
        manifest = self._manifest(batch)
        if manifest is not None:
            if batch.is_replay:
                self._clear(batch, manifest)
            return True
        if batch.is_first:
            return False
        held = batch.after if self.storage.exists(self._path(batch.after)) else None
        return base.is_delivered(held, batch, self.producer, self.storage.uri)

    def lane(self, batch: Batch) -> FileLane:
        if batch.is_first:
            files.check_place(self.storage)
        prefix = f"{batch.upto:020d}"
        return FileLane(self.storage, batch, self._folder(batch), prefix, is_staged=True, is_named_by_content=True)

    def finish(self, batch: Batch, results: Sequence[Result]) -> None:
        written = files.claimed(results)
        crash_point("sink.staged")
        if not self.is_delivered(batch):
            self.storage.publish(staged for _, staged in written if staged is not None)
            named = self._repeat_twins([file for file, _ in written])
            crash_point("sink.published")
            text = json.dumps(self._described(batch, named), indent=1)
            self.storage.put_new(self._path(batch.upto), text.encode())
        crash_point("sink.described")
        # Ours or that of another one who finished the batch: what it names stays.
        manifest = self._manifest(batch)
        assert manifest is not None
        self._clear(batch, manifest)

    def position(self, vnodes: int) -> Mapping[int, int]:
        folder = f"{MANIFESTS}/{self.producer.generation}"
        seqs = [int(info.path.rsplit("/", 1)[1].removesuffix(".json")) for info in self.storage.list(folder)]
        return dict.fromkeys(range(vnodes), max(seqs)) if seqs else {}

    def close(self) -> None:
        pass

    def _folder(self, batch: Batch) -> str:
        return f"data/{self.producer.generation}/{batch.upto:020d}-{batch.id}"

    def _path(self, seq: int) -> str:
        return f"{MANIFESTS}/{self.producer.generation}/{seq:020d}.json"

    def _repeat_twins(self, published: Sequence[DataFile]) -> list[DataFile]:
        """Every file by a name of its own. Lanes whose rows look the same, as those of a table without a key may, wrote
        the same bytes under one name: they count as often as they were written."""
        seen: Counter[str] = Counter()
        named = []
        for file in sorted(published, key=lambda file: file.path):
            seen[file.path] += 1
            path = file.path
            if seen[file.path] > 1:
                path = f"{file.path.removesuffix('.parquet')}-{seen[file.path]}.parquet"
                with self.storage.output(path) as stream:
                    stream.write(self.storage.read(file.path))
            named.append(replace(file, path=path))
        return named

    def _described(self, batch: Batch, named: Sequence[DataFile]) -> dict[str, Any]:
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
            "columns": batch.outgoing.names,
            "rows": sum(file.rows for file in named),
            "files": [{"path": file.path, "rows": file.rows, "size": file.size} for file in named],
            "written_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }

    def _manifest(self, batch: Batch) -> Mapping[str, Any] | None:
        """What makes the batch count, if something does; `Conflict` when that is another batch."""
        path = self._path(batch.upto)
        try:
            found = json.loads(self.storage.read(path))
            id_, manifest = found["batch"], {"files": {str(file["path"]) for file in found["files"]}}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{self.storage.url(path)} is not readable: {error!r}",
                hint="Restore it, or send the table again: strandline mark reset " + self.producer.consumer,
                path=path,
            ) from error
        if id_ != batch.id:
            raise Conflict(
                f"{self.storage.url(path)} says that batch {id_} was delivered up to seq {batch.upto}, and this is batch"
                f" {batch.id}: someone else sends there as sink {self.producer.consumer!r}",
                hint=f"Nothing was sent. To send the table again: strandline mark reset {self.producer.consumer}",
                consumer=self.producer.consumer,
                expected=batch.id,
                found=id_,
            )
        return manifest

    def _clear(self, batch: Batch, manifest: Mapping[str, Any]) -> None:
        """Remove what lies in the batch's folder and is not in its manifest."""
        folder = self._folder(batch)
        found = [info.path for info in self.storage.list(folder) if info.path not in manifest["files"]]
        self.storage.delete([*found, *(info.path for info in self.storage.temporaries(folder))])
