"""The multipart uploads of one S3 bucket, through `botocore`: `obstore` can neither abort one, nor list them, nor
complete one that another process began.

After a crash: an upload that was not completed is no file; `unfinished` lists it until it is aborted. The same holds
for an upload whose start was never answered, although its writer does not know its id.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from strandline.errors import Conflict, StrandlineError, Unavailable
from strandline.model import secret
from strandline.model.scrub import first_line
from strandline.storage.contract import FileInfo, StagedFile, cleared_away

PART_BYTES = 8 << 20
PARTS = 10_000  # the limit of every store
_GROWS_EVERY = 400
_AT_ONCE = 2
_RETRIES = 5
_MARK = "?uploadId="
_MISSING = {"404", "NoSuchBucket", "NoSuchKey"}
_PART_TAG = re.compile(r"[0-9a-f]{32}")
_FILE_TAG = re.compile(r"[0-9a-f]{32}-[0-9]+")


def part_bytes(index: int) -> int:
    """The size of a part. Later parts are larger, so that PARTS of them make more than a terabyte."""
    return PART_BYTES * (1 + index // _GROWS_EVERY)


def is_upload(path: str) -> bool:
    """Whether a path names an unfinished upload; no file of ours contains the mark."""
    return _MARK in path


@dataclass(frozen=True)
class Uploads:
    bucket: str
    prefix: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @contextmanager
    def open(self, path: str) -> Iterator[Upload]:
        """A file to write to. When the block raises, the upload is aborted if the store can be reached."""
        upload = Upload(self, path)
        try:
            yield upload
        except BaseException:
            upload.abort()
            raise

    def begin(self, path: str) -> str:
        """The temporary path of a new upload."""
        with self._translate_errors(path):
            begun = self._client().create_multipart_upload(Bucket=self.bucket, Key=self._key(path))
        return f"{path}{_MARK}{begun['UploadId']}"

    def send(self, temporary: str, number: int, part: io.BytesIO) -> str:
        """Upload a part and return its tag."""
        part.seek(0)
        with self._translate_errors(temporary):
            # A file object is sent in small pieces, each with its own timeout: a slow store is not a dead one.
            sent = self._client().upload_part(**self._upload_parameters(temporary), PartNumber=number, Body=part)
        return str(sent["ETag"])

    def complete(self, staged: StagedFile) -> None:
        """Turn an upload into a file; completing it again is no error."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(staged.parts, 1)]
        try:
            with self._translate_errors(staged.temporary):
                self._client().complete_multipart_upload(
                    **self._upload_parameters(staged.temporary), MultipartUpload={"Parts": parts}
                )
        except Conflict:
            if not self._is_published(staged):
                raise

    def abort(self, temporary: str, *, retries: int = _RETRIES) -> None:
        """End an upload and delete its parts; a completed or missing upload is no error."""
        with suppress(Conflict, FileNotFoundError), self._translate_errors(temporary):
            self._client(retries).abort_multipart_upload(**self._upload_parameters(temporary))

    def unfinished(self, prefix: str) -> Iterator[FileInfo]:
        """The uploads below the folder `prefix`, dated by their last part: a slow writer is not a dead one.

        A few stores (MinIO) cannot list them by prefix; they end old uploads themselves."""
        from botocore.exceptions import ClientError

        folder = "/".join(each for each in (self.prefix, prefix.strip("/")) if each)
        with self._translate_errors(prefix):
            pages = self._client().get_paginator("list_multipart_uploads")
            try:
                for page in pages.paginate(Bucket=self.bucket, Prefix=f"{folder}/" if folder else ""):
                    for found in page.get("Uploads", ()):
                        path = found["Key"].removeprefix(f"{self.prefix}/")
                        temporary = f"{path}{_MARK}{found['UploadId']}"
                        with suppress(Conflict, FileNotFoundError):
                            yield self._upload_info(temporary, found["Initiated"].timestamp())
            except ClientError as error:
                # A store without this list has no uploads to clean up, and who may not see it cleans nothing up.
                if _error_code(error) not in ("NotImplemented", "AccessDenied"):
                    raise

    def _upload_info(self, temporary: str, begun_s: float) -> FileInfo:
        size, last_s = 0, begun_s
        with self._translate_errors(temporary):
            for page in self._client().get_paginator("list_parts").paginate(**self._upload_parameters(temporary)):
                for part in page.get("Parts", ()):
                    size += part["Size"]
                    last_s = max(last_s, part["LastModified"].timestamp())
        return FileInfo(temporary, size, last_s)

    def server_time_s(self) -> float:
        """The time by which the store answers, in whole seconds since 1970."""
        with self._translate_errors(self.prefix):
            found = self._client().list_objects_v2(Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1)
        return parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()

    def _is_published(self, staged: StagedFile) -> bool:
        """Whether the file at the path of a missing upload is the uploaded one."""
        try:
            with self._translate_errors(staged.path):
                found = self._client().head_object(Bucket=self.bucket, Key=self._key(staged.path))
        except FileNotFoundError:
            return False
        tags = [tag.strip('"') for tag in staged.parts]
        tag, size = str(found["ETag"]).strip('"'), int(found["ContentLength"])
        if all(map(_PART_TAG.fullmatch, tags)) and _FILE_TAG.fullmatch(tag):
            # The file's tag is computed from the tags of its parts, so equal tags mean equal bytes. A store that
            # computes it otherwise (some do when they encrypt) costs the caller a second write, but never a file.
            digest = hashlib.md5(bytes.fromhex("".join(tags)), usedforsecurity=False).hexdigest()
            return tag == f"{digest}-{len(tags)}" and size == staged.size
        # Where tags tell nothing: names of staged files are unique, so a file of that name and size is ours.
        return size == staged.size

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _upload_parameters(self, temporary: str) -> dict[str, str]:
        path, _, upload_id = temporary.partition(_MARK)
        return {"Bucket": self.bucket, "Key": self._key(path), "UploadId": upload_id}

    def _client(self, retries: int = _RETRIES) -> Any:
        return _client(json.dumps(dict(self.options), sort_keys=True, default=str), retries, os.getpid())

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        path = path.partition(_MARK)[0]
        url = f"s3://{self.bucket}/{self._key(path)}"
        try:
            yield
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            code = _error_code(error)
            if code == "NoSuchUpload":
                raise cleared_away(path) from error
            if code in _MISSING:
                raise FileNotFoundError(url) from error
            raise Unavailable(f"{url}: {first_line(error, secret.store_secrets(self.options))}", path=path) from error


class Upload(io.RawIOBase):
    """An upload as the file object that Arrow expects.

    The upload begins with the first full part. Memory holds the part being filled and those being sent."""

    def __init__(self, uploads: Uploads, path: str) -> None:
        self._uploads = uploads
        self._path = path
        self._temporary = ""
        self._size = 0
        self._part = io.BytesIO()
        self._sent: list[Future[str]] = []
        self._pool = ThreadPoolExecutor(_AT_ONCE)

    @property
    def is_begun(self) -> bool:
        return bool(self._temporary)

    def unsent(self) -> bytes:
        """The written bytes that are not sent yet."""
        return self._part.getvalue()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while rest:
            room = part_bytes(len(self._sent)) - self._part.tell()
            taken = self._part.write(rest[:room])
            self._size += taken
            rest = rest[taken:]
            if taken == room:
                self._send_part()
        return len(data)

    def finish(self) -> StagedFile:
        """Send the rest (an empty part for an empty file), and wait until the store has every part."""
        if self._part.tell() or not self._sent:
            self._send_part()
        parts = tuple(sent.result() for sent in self._sent)
        self._pool.shutdown()
        return StagedFile(self._path, self._temporary, self._size, parts)

    def abort(self) -> None:
        # A part that arrives after the abort may stay for ever, so wait for those being sent.
        self._pool.shutdown(cancel_futures=True)
        if self.is_begun:
            # The first error counts. A remaining upload is cleaned up later.
            with suppress(StrandlineError):
                self._uploads.abort(self._temporary, retries=1)

    def _send_part(self) -> None:
        if not self.is_begun:
            self._temporary = self._uploads.begin(self._path)
        if len(self._sent) >= _AT_ONCE:
            self._sent[-_AT_ONCE].result()
        part, self._part = self._part, io.BytesIO()
        self._sent.append(self._pool.submit(self._uploads.send, self._temporary, len(self._sent) + 1, part))


def _error_code(error: Exception) -> str:
    """The store's code for an error; empty when the store did not answer."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


@lru_cache(maxsize=16)
def _client(options_json: str, retries: int, pid: int) -> Any:
    """One client for all storages of a process with these options: it is slow to make, and threads may share it, but
    processes may not."""
    import botocore.session
    from botocore.config import Config

    options = {name.lower().removeprefix("aws_"): value for name, value in json.loads(options_json).items()}
    options = {**_read_environment(), **options}
    session = botocore.session.Session()
    retries = min(retries, int((options.get("retry_config") or {}).get("max_retries", retries)))
    endpoint = options.get("endpoint") or options.get("endpoint_url")
    return session.create_client(
        "s3",
        endpoint_url=endpoint,
        region_name=options.get("region") or session.get_config_variable("region") or "us-east-1",
        aws_access_key_id=options.get("access_key_id"),
        aws_secret_access_key=options.get("secret_access_key"),
        aws_session_token=options.get("session_token") or options.get("token"),
        config=Config(
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=16,
            retries={"mode": "standard", "total_max_attempts": retries + 1},
            s3={"addressing_style": "path" if endpoint else "auto"},
            # Most stores that speak S3 do not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def _read_environment() -> dict[str, str]:
    """The settings that `obstore` reads from the environment and `botocore` does not, or under another name."""
    names = {"AWS_ENDPOINT_URL": "endpoint", "AWS_ENDPOINT": "endpoint", "AWS_REGION": "region"}
    return {option: os.environ[name] for name, option in names.items() if os.environ.get(name)}
