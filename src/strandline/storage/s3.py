"""An S3 bucket, reached through `obstore` on the driver and in Spark tasks alike.

A commit is a PUT with `If-None-Match: *`. Some stores ignore that header and let two creators win; `check_put_new`
races several before the first commit of a process. Reading writes nothing. Larger files and staged files are multipart
uploads (`Uploads`): nothing is visible until the last call.

After a crash: an upload that was not completed is no file. `temporaries` lists it as `<path>?uploadId=<id>`, and
`delete` aborts it.
"""

from __future__ import annotations

import io
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from strandline.errors import Invalid, Unavailable
from strandline.model import secret
from strandline.model.scrub import first_line
from strandline.storage.contract import FileInfo, StagedFile, StagedWrite, check_inside
from strandline.storage.s3_uploads import Uploads, is_upload

_RACERS = 8
_DELETED_AT_ONCE = 1000
_PUBLISHED_AT_ONCE = 8
_REFUSED = "EACCES"
_proven: set[str] = set()
_proving = threading.Lock()


@dataclass(frozen=True)
class S3Storage:
    bucket: str
    prefix: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def is_local(self) -> bool:
        return False

    @property
    def delta_options(self) -> Mapping[str, str]:
        plain = {f"aws_{name.removeprefix('aws_')}": value for name, value in self.options.items()}
        if plain.get("aws_endpoint", "").startswith("http://"):
            plain["aws_allow_http"] = "true"
        return plain

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = dict(self.options)
        known = (settings.get("endpoint"), os.environ.get("AWS_ENDPOINT_URL"), os.environ.get("AWS_ENDPOINT"))
        if next((endpoint for endpoint in known if endpoint), "").startswith("http://"):
            settings["client_options"] = {"allow_http": True}
        return settings

    @cached_property
    def _store(self) -> Any:
        from obstore.store import S3Store

        return S3Store(self.bucket, prefix=self.prefix or None, **self._settings())

    @cached_property
    def _uploads(self) -> Uploads:
        return Uploads(self.bucket, self.prefix, self.options)

    def __getstate__(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "prefix": self.prefix, "options": dict(self.options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def url(self, path: str) -> str:
        return f"{self.uri}/{check_inside(path)}"

    def read(self, path: str) -> bytes:
        import obstore

        with self._translate_errors(path):
            return bytes(obstore.get(self._store, path).bytes())

    def exists(self, path: str) -> bool:
        import obstore

        try:
            with self._translate_errors(path):
                obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def put_new(self, path: str, data: bytes) -> bool:
        with _proving:
            if self._place not in _proven:
                self.check_put_new()
                _proven.add(self._place)
        return self._create(path, data)

    @property
    def _place(self) -> str:
        """What a proof holds for: this prefix on this server."""
        return f"{self.options.get('endpoint', '')} {self.uri}"

    def _create(self, path: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._translate_errors(path):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    @contextmanager
    def output(self, path: str) -> Iterator[pa.NativeFile]:
        import obstore

        with self._uploads.open(path) as upload:
            yield pa.PythonFile(upload, mode="w")
            if upload.is_begun:
                self.publish([upload.finish()])
                return
            # A file of one part costs one request instead of three.
            with self._translate_errors(path):
                obstore.put(self._store, path, upload.unsent(), use_multipart=False)

    @contextmanager
    def stage(self, path: str) -> Iterator[StagedWrite]:
        with self._uploads.open(path) as upload:
            stage = StagedWrite(pa.PythonFile(upload, mode="w"))
            yield stage
            stage.staged = upload.finish()

    def publish(self, staged: Iterable[StagedFile]) -> None:
        with ThreadPoolExecutor(_PUBLISHED_AT_ONCE) as pool:
            for done in [pool.submit(self._uploads.complete, each) for each in staged]:
                done.result()

    def input(self, path: str) -> pa.NativeFile:
        import obstore

        with self._translate_errors(path):
            return pa.PythonFile(_Download(self, path, obstore.open_reader(self._store, path)), mode="r")

    def list(self, prefix: str, *, after: str = "") -> Iterator[FileInfo]:
        import obstore

        with self._translate_errors(prefix):
            for page in obstore.list(self._store, prefix=prefix or None, offset=after or None, chunk_size=1000):
                for item in page:
                    yield FileInfo(item["path"], item["size"], item["last_modified"].timestamp())

    def temporaries(self, prefix: str) -> Iterator[FileInfo]:
        return self._uploads.unfinished(prefix)

    def now_s(self) -> float:
        import obstore

        path = f"_check/{uuid.uuid4().hex}"
        try:
            with self._translate_errors(path):
                obstore.put(self._store, path, b"now", use_multipart=False)
                at: float = obstore.head(self._store, path)["last_modified"].timestamp()
        except Unavailable as error:
            if error.fields.get("refusal") != _REFUSED:
                raise
            # Who may only read gets the time of an answer, to the second.
            return self._uploads.server_time_s()
        self.delete([path])
        return at

    def delete(self, paths: Iterable[str]) -> None:
        import obstore

        rest = []
        for path in paths:
            if is_upload(path):
                self._uploads.abort(path)
            else:
                rest.append(path)
        while rest:
            some, rest = rest[:_DELETED_AT_ONCE], rest[_DELETED_AT_ONCE:]
            with suppress(FileNotFoundError), self._translate_errors(some[0]):
                obstore.delete(self._store, some)

    def duckdb_filesystem(self) -> Any:
        from strandline.storage.s3_ranges import RangedStore

        return RangedStore("s3", **self._settings())

    def check_put_new(self) -> None:
        path = f"_check/{uuid.uuid4().hex}"
        start = threading.Barrier(_RACERS)

        def create(racer: int) -> bool:
            start.wait()
            return self._create(path, str(racer).encode())

        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                winners = sum(pool.map(create, range(_RACERS)))
            winners += self._create(path, b"late")
        finally:
            # The first error counts; a vacuum deletes what stays.
            with suppress(Unavailable):
                self.delete([path])
        if winners != 1:
            raise Invalid(
                f"{self.uri}: {winners} of {_RACERS + 1} racing creates of one object succeeded; commits there would"
                " overwrite each other",
                hint="Use a store that honours If-None-Match on PUT (AWS S3, SeaweedFS, MinIO, R2).",
                winners=winners,
            )

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

        check_inside(path)
        try:
            yield
        except (NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(self.url(path)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise Unavailable(
                f"{self.url(path)}: no permission: {first_line(error, secret.store_secrets(self.options))}",
                hint="These credentials may not do this. With the right to read alone a lake can be queried and shown.",
                path=path,
                refusal=_REFUSED,
            ) from error
        except BaseError as error:
            raise Unavailable(
                f"{self.url(path)}: {first_line(error, secret.store_secrets(self.options))}", path=path
            ) from error


class _Download(io.RawIOBase):
    """An obstore reader as the file object that Arrow expects."""

    def __init__(self, storage: S3Storage, path: str, reader: Any) -> None:
        self._storage = storage
        self._path = path
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return int(self._reader.size)

    def tell(self) -> int:
        return int(self._reader.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        try:
            with self._storage._translate_errors(self._path):
                return bytes(self._reader.read(None if size < 0 else size))
        except FileNotFoundError:
            raise
        except OSError as error:
            # The store went away in the middle of a file; the file is not damaged.
            said = first_line(error, secret.store_secrets(self._storage.options))
            raise Unavailable(f"{self._storage.url(self._path)}: {said}", path=self._path) from error
