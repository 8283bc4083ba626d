"""Places that sinks write to, each behind one small interface, so that one suite tests every sink.

A place is a test's own: a folder, a prefix, a table or a path of servers that the suite shares. Places beyond the disk
are reached through a `Gate`, which counts requests, goes down and refuses."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

import strandline as sl
from foreign_receiver import Endpoint, foreign_receiver
from forks import Armed, Forks, Serving, forking, wait_for_port
from strandline.sinks.contract import Sink
from strandline.sinks.delta import DeltaSink
from strandline.sinks.http import HttpSink
from strandline.sinks.iceberg import IcebergSink
from strandline.sinks.parquet import MANIFESTS, ParquetSink
from strandline.storage.open import Storage, open_storage
from support import BUCKET, ICEBERG, ITEMS, KEY, SECRET, TABLE_BUCKET, Proxy, free_ports, options_for

HIDDEN = ("_op", "_seq", "_vnode", "_index", "_row")
Row = dict[str, Any]


class Gate(Proxy):
    """A proxy in front of a server; while it `is_refusing` every request is answered with 403."""

    is_refusing = False

    def take(self, command: str, path: str) -> str | tuple[int, str]:
        found = super().take(command, path)
        return (403, "AccessDenied") if self.is_refusing else found


class Servers:
    """The processes that places share, each started when it is first needed."""

    def __init__(self, folder: Path, seaweed: Callable[[], str]) -> None:
        self.folder = folder
        self._seaweed = seaweed
        self._stack = contextlib.ExitStack()
        self._gates: list[Gate] = []

    def close(self) -> None:
        self.close_gates()
        self._stack.close()

    def gate(self, upstream: str) -> Gate:
        gate = Gate(upstream)
        threading.Thread(target=gate.server.serve_forever, args=[0.01], daemon=True).start()
        self._gates.append(gate)
        return gate

    def close_gates(self) -> None:
        """After each test: a gate that nobody uses still looks for requests."""
        while self._gates:
            gate = self._gates.pop()
            gate.server.shutdown()
            gate.server.server_close()

    @cached_property
    def seaweed(self) -> str:
        return self._seaweed()

    @cached_property
    def forks(self) -> Forks:
        return self._stack.enter_context(forking(self.folder / "forks.log"))

    @cached_property
    def received(self) -> sl.Lake:
        """The lake behind the receiver, opened here."""
        return sl.Lake(self.folder / "received")

    @cached_property
    def receiver(self) -> str:
        """The address of a Strandline receiver."""
        port = free_ports(1)[0]
        self.forks.start(Armed(Serving(self.received.storage.uri, port)))
        wait_for_port(port)
        return f"http://127.0.0.1:{port}"

    @cached_property
    def foreign(self) -> str:
        """The address of a receiver that has nothing of Strandline in it."""
        return self._stack.enter_context(foreign_receiver(self.folder))


class Destination:
    """One place. `knows_its_past`: it can tell that it lacks what was sent before. `widens`: its columns take larger
    numbers than they were made for. `stalls_at` is the last crash point before its effect."""

    knows_its_past: ClassVar[bool] = True
    widens: ClassVar[bool] = True
    stalls_at: ClassVar[str] = "loop.lanes_done"

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.servers = servers
        self.folder = folder / uuid.uuid4().hex[:8]
        self.folder.mkdir(parents=True)
        self.name = f"t{self.folder.name}"

    def another(self) -> Destination:
        """A second place of the same kind."""
        return type(self)(self.servers, self.folder)

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        """A sink that goes there; one that is not gated takes the short way, on which it cannot be stopped."""
        raise NotImplementedError

    def expect(self, schema: pa.Schema, *key: str) -> None:
        """Be ready for rows of this shape; most places learn it from the rows."""

    def changes(self) -> list[Row]:
        """Every change that it holds, in the order in which they count, with `_op` and `_seq`."""
        raise NotImplementedError

    def current(self, *key: str) -> dict[Any, Row]:
        """What a reader makes of it: the last change of each key, without what is hidden."""
        found: dict[Any, Row] = {}
        for change in self.changes():
            name = tuple(change[column] for column in key or ("id",))
            name = name[0] if len(name) == 1 else name
            found.pop(name, None)
            if change["_op"] == "upsert":
                found[name] = {column: value for column, value in change.items() if column not in HIDDEN}
        return found

    def traces(self) -> Any:
        """What changes as soon as anything is written there, or asked of it by request."""
        raise NotImplementedError

    def texts(self) -> Iterator[str]:
        """Everything that lies there, as one could read it."""
        raise NotImplementedError

    def down(self) -> None:
        raise NotImplementedError

    def up(self) -> None:
        raise NotImplementedError

    def refuse(self) -> None:
        """Let it be there, and take nothing of ITEMS; before anything is sent."""
        raise NotImplementedError

    def accept(self) -> None:
        raise NotImplementedError

    def recreate(self) -> None:
        """Empty it behind the sink's back."""
        raise NotImplementedError


# --- folders and buckets ----------------------------------------------------------------------------------------


class Stored(Destination):
    """A place in a storage. A local one is down when a file lies where the folder of its data files belongs."""

    is_remote: ClassVar[bool] = False

    @cached_property
    def gate(self) -> Gate:
        return self.servers.gate(self.servers.seaweed)

    @property
    def uri(self) -> str:
        return f"s3://{BUCKET}/sinks/{self.name}" if self.is_remote else str(self.folder / "there")

    def options(self, is_gated: bool) -> dict[str, str] | None:
        if not self.is_remote:
            return None
        return options_for(self.gate.endpoint if is_gated else self.servers.seaweed)

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.uri, options_for(self.servers.seaweed) if self.is_remote else None)

    def traces(self) -> Any:
        return sorted((info.path, info.size, info.modified_s) for info in self.storage.list(""))

    def texts(self) -> Iterator[str]:
        for info in self.storage.list(""):
            data = self.storage.read(info.path)
            yield data.decode("latin-1")
            if info.path.endswith(".parquet"):
                yield repr(pq.read_table(io.BytesIO(data)).to_pylist())

    def down(self) -> None:
        if self.is_remote:
            self.gate.is_down = True
            return
        place = Path(self.uri) / "data"
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            place.rename(self.folder / "away")
        place.write_text("no folder")

    def up(self) -> None:
        if self.is_remote:
            self.gate.is_down = False
            return
        place = Path(self.uri) / "data"
        place.unlink()
        if (self.folder / "away").exists():
            (self.folder / "away").rename(place)

    def refuse(self) -> None:
        if self.is_remote:
            self.gate.is_refusing = True
        else:
            Path(self.uri).write_text("a file where a folder belongs")

    def accept(self) -> None:
        if self.is_remote:
            self.gate.is_refusing = False
        else:
            Path(self.uri).unlink()

    def recreate(self) -> None:
        if self.is_remote:
            self.storage.delete([info.path for info in self.storage.list("")])
        else:
            shutil.rmtree(self.uri)


class ParquetPlace(Stored):
    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return ParquetSink(self.uri, options=self.options(is_gated))

    def changes(self) -> list[Row]:
        """By file, as a reader would who knows nothing of manifests; those must name the same files."""
        lives: dict[str, list[Row]] = {}
        paths = [info.path for info in self.storage.list("")]
        manifests = [path for path in paths if path.startswith(MANIFESTS) and path.endswith(".json")]
        named = [file["path"] for path in manifests for file in json.loads(self.storage.read(path))["files"]]
        files = [path for path in paths if path.endswith(".parquet")]
        assert sorted(named) == sorted(files)
        for path in files:
            rows = pq.read_table(io.BytesIO(self.storage.read(path))).to_pylist()
            lives.setdefault(path.split("/")[1], []).extend(rows)
        return [row for rows in lives.values() for row in sorted(rows, key=lambda row: row["_seq"])]


class ParquetS3Place(ParquetPlace):
    is_remote = True


class DeltaPlace(Stored):
    widens = False

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return DeltaSink(self.uri, options=self.options(is_gated), mode="changes")

    def changes(self) -> list[Row]:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.uri, self._delta_options):
            return []
        rows = DeltaTable(self.uri, storage_options=self._delta_options).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: row["_seq"])

    @property
    def _delta_options(self) -> dict[str, str]:
        return dict(self.storage.delta_options)

    def refuse(self) -> None:
        """By a column of the same name and another type."""
        from deltalake import write_deltalake

        if self.is_remote:
            super().refuse()
        else:
            write_deltalake(self.uri, pa.table({"name": pa.array([], pa.binary())}))

    def accept(self) -> None:
        super().accept() if self.is_remote else self.recreate()


class DeltaS3Place(DeltaPlace):
    is_remote = True


class DeltaMirrorPlace(DeltaPlace):
    """A mirror: each of its rows counts as one change."""

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return DeltaSink(self.uri, options=self.options(is_gated))

    def changes(self) -> list[Row]:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.uri, self._delta_options):
            return []
        files = DeltaTable(self.uri, storage_options=self._delta_options).to_pyarrow_table()
        return [{"_op": "upsert", "_seq": 0, **row} for row in files.to_pylist()]


class DeltaMirrorS3Place(DeltaMirrorPlace):
    is_remote = True


# --- Iceberg ----------------------------------------------------------------------------------------------------


class IcebergPlace(Destination):
    """A table of a catalog in a SQLite file; down when a file lies where the catalog's folder belongs."""

    @cached_property
    def settings(self) -> dict[str, str]:
        (self.folder / "catalog").mkdir()
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder / 'catalog' / 'catalog.db'}",
            "warehouse": f"file://{self.folder / 'warehouse'}",
        }

    @property
    def table(self) -> str:
        return f"sinks.{self.name}"

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return IcebergSink(self.settings, self.table, mode="changes")

    @cached_property
    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(**self.settings)

    def _loaded(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def changes(self) -> list[Row]:
        table = self._loaded()
        rows = [] if table is None else table.scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: row["_seq"])

    def traces(self) -> Any:
        table = self._loaded()
        if table is None:
            return None
        files = sorted(task.file.file_path for task in table.scan().plan_files())
        return table.metadata_location, [snapshot.snapshot_id for snapshot in table.snapshots()], files

    def texts(self) -> Iterator[str]:
        for path in self.folder.rglob("*"):
            if path.is_file():
                yield path.read_bytes().decode("latin-1")
                if path.suffix == ".parquet":
                    yield repr(pq.read_table(path, partitioning=None).to_pylist())

    def down(self) -> None:
        self._catalog.close()
        place = self.folder / "catalog"
        place.rename(self.folder / "away")
        place.write_text("no folder")

    def up(self) -> None:
        place = self.folder / "catalog"
        place.unlink()
        (self.folder / "away").rename(place)

    def refuse(self) -> None:
        """By a column of the same name and another type."""
        self._catalog.create_namespace_if_not_exists("sinks")
        self._catalog.create_table(self.table, pa.schema([("name", pa.binary())]))

    def accept(self) -> None:
        self._catalog.drop_table(self.table)

    def recreate(self) -> None:
        schema = self._loaded().schema()
        self._catalog.drop_table(self.table)
        self._catalog.create_table(self.table, schema)


class IcebergMirrorPlace(IcebergPlace):
    """A mirror: each of its rows counts as one change."""

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return IcebergSink(self.settings, self.table)

    def changes(self) -> list[Row]:
        table = self._loaded()
        rows = [] if table is None else table.scan().to_arrow().to_pylist()
        return [{"_op": "upsert", "_seq": 0, **row} for row in rows]


class IcebergRestPlace(IcebergPlace):
    """A table of a REST catalog, its files on S3."""

    @cached_property
    def gate(self) -> Gate:
        return self.servers.gate(ICEBERG[self.servers.seaweed])

    @cached_property
    def settings(self) -> dict[str, str]:
        return self._settings(self.gate.endpoint)

    def _settings(self, uri: str) -> dict[str, str]:
        return {
            "type": "rest",
            "uri": uri,
            "warehouse": f"s3://{TABLE_BUCKET}",
            "credential": f"{KEY}:{SECRET}",
            "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
            "s3.endpoint": self.servers.seaweed,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": SECRET,
            "s3.region": "us-east-1",
        }

    @cached_property
    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(**self._settings(ICEBERG[self.servers.seaweed]))

    def traces(self) -> Any:
        return super().traces(), len(self.gate.requests)

    def texts(self) -> Iterator[str]:
        table = self._loaded()
        yield table.metadata.model_dump_json()
        yield repr(table.scan().to_arrow().to_pylist())
        yield repr(table.inspect.files().to_pylist())

    def down(self) -> None:
        self.gate.is_down = True

    def up(self) -> None:
        self.gate.is_down = False

    def refuse(self) -> None:
        self.gate.is_refusing = True

    def accept(self) -> None:
        self.gate.is_refusing = False


# --- HTTP -------------------------------------------------------------------------------------------------------


class Receiving(Destination):
    """A place that takes requests."""

    stalls_at = "sink.chunk_sending"

    @property
    def upstream(self) -> str:
        raise NotImplementedError

    @property
    def path(self) -> str:
        raise NotImplementedError

    @cached_property
    def gate(self) -> Gate:
        return self.servers.gate(self.upstream)

    def url(self, is_gated: bool) -> str:
        return f"{self.gate.endpoint if is_gated else self.upstream}{self.path}"

    def down(self) -> None:
        self.gate.is_down = True

    def up(self) -> None:
        self.gate.is_down = False

    def refuse(self) -> None:
        self.gate.is_refusing = True

    def accept(self) -> None:
        self.gate.is_refusing = False


class ReceiverPlace(Receiving):
    """A table of a lake behind a real receiver."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        super().__init__(servers, folder)
        self.table = self.servers.received.create_table(self.name, ITEMS, key=["id"], vnodes=2)

    @property
    def upstream(self) -> str:
        return self.servers.receiver

    @property
    def path(self) -> str:
        return f"/ingest/{self.name}"

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return HttpSink(self.url(is_gated), **{"patience": "0.2s", **options})

    def expect(self, schema: pa.Schema, *key: str) -> None:
        if self.table.head:
            self.table.evolve(schema)
        else:
            self._recreate(schema, *key)

    def changes(self) -> list[Row]:
        return list(self.table.changes().to_pylist())

    def current(self, *key: str) -> dict[Any, Row]:
        """As the lake itself reads it, which must be what its changes come to."""
        found = super().current(*key)
        rows = self.table.to_arrow().to_pylist()
        assert sorted(map(repr, rows)) == sorted(repr(row) for row in found.values())
        return found

    def traces(self) -> Any:
        return self.table.head, len(self.gate.requests)

    def texts(self) -> Iterator[str]:
        for path in (Path(self.servers.received.storage.uri) / self.table.entry.folder).rglob("*"):
            if path.is_file():
                yield path.read_bytes().decode("latin-1")
                if path.suffix == ".parquet":
                    yield repr(pq.read_table(path, partitioning=None).to_pylist())

    def recreate(self) -> None:
        self._recreate(ITEMS, "id")

    def _recreate(self, schema: pa.Schema, *key: str) -> None:
        self.servers.received.drop(self.name)
        self.table = self.servers.received.create_table(self.name, schema, key=key, vnodes=2)


class ForeignPlace(Receiving):
    """A path of a receiver that knows requests by their `Idempotency-Key` alone."""

    knows_its_past = False

    @cached_property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.upstream, self.path)

    @property
    def upstream(self) -> str:
        return self.servers.foreign

    @property
    def path(self) -> str:
        return f"/{self.name}"

    def sink(self, *, is_gated: bool = True, **options: Any) -> Sink:
        return HttpSink(self.url(is_gated), receiver="any", **{"patience": "0.2s", **options})

    def changes(self) -> list[Row]:
        return sorted(self.endpoint.rows(), key=lambda row: row["_seq"])

    def traces(self) -> Any:
        return len(self.gate.requests)

    def texts(self) -> Iterator[str]:
        yield repr(self.endpoint.rows())
        yield repr(self.endpoint.requests())


NEAR: dict[str, type[Destination]] = {
    "parquet": ParquetPlace,
    "delta": DeltaPlace,
    "iceberg": IcebergPlace,
    "receiver": ReceiverPlace,
    "foreign": ForeignPlace,
}
FAR: dict[str, type[Destination]] = {
    "parquet-s3": ParquetS3Place,
    "delta-s3": DeltaS3Place,
    "iceberg-rest": IcebergRestPlace,
}
MIRRORS: dict[str, type[Destination]] = {
    "delta-mirror": DeltaMirrorPlace,
    "iceberg-mirror": IcebergMirrorPlace,
    "delta-mirror-s3": DeltaMirrorS3Place,
}
