"""The catalog of an Iceberg sink: its secrets are not kept, and one that is silent or missing is given up."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import icebergs
import strandline as sl
from icebergs import (
    PRODUCER,
    Opened,
    batch_of,
    deliver,
    held,
    rest_catalog,
    table_of,
    up,
)
from strandline.errors import Invalid, Unavailable
from strandline.model.scrub import scrub_text
from strandline.sinks.iceberg import IcebergDelivery, IcebergSink
from strandline.sinks.iceberg_catalog import CatalogSettings, open_catalog, translate_errors
from support import free_ports, refused

catalog, local, opened = icebergs.catalog, icebergs.local, icebergs.opened


def test_secrets_are_kept_as_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = {
        "type": "rest",
        "uri": "postgresql+psycopg://me:hid%2Fden@db:5432/cat",
        "token": "hidden-token",
        "credential": "env:ICE_CREDENTIAL",
        "s3.secret-access-key": "hidden-key",
        "s3.access-key-id": "AK",
        "auth": {"type": "basic", "basic": {"username": "me", "password": "hidden-basic"}},
    }
    sink = IcebergSink(catalog, "ns.t", options={"secret_access_key": "hidden-too", "region": "x"})
    kept = sink.to_dict()
    for text in (json.dumps(kept), repr(sink), sink.destination):
        assert "hid" not in text
    assert kept["catalog"]["credential"] == "env:ICE_CREDENTIAL"
    assert kept["catalog"]["uri"] == "postgresql+psycopg://me:given@db:5432/cat"
    assert sink.destination == "Iceberg table ns.t (rest postgresql+psycopg://db:5432/cat)"
    assert IcebergSink.from_dict(kept).destination == sink.destination
    with refused(Invalid):
        IcebergSink.from_dict(kept).open(PRODUCER)
    monkeypatch.setenv("ICE_CREDENTIAL", "from-env")
    assert sink.catalog.resolve() == {**catalog, "credential": "from-env"}
    references = {"uri": "postgresql://me:env:ICE_CREDENTIAL@db/cat", "token": "env:T", "s3.access-key-id": "env:K"}
    by_reference = IcebergSink(references, "ns.t")
    assert IcebergSink.from_dict(by_reference.to_dict()) == by_reference
    assert by_reference.to_dict()["catalog"] == references
    monkeypatch.setenv("T", "t")
    monkeypatch.setenv("K", "k")
    resolved = {"uri": "postgresql://me:from-env@db/cat", "token": "t", "s3.access-key-id": "k"}
    assert by_reference.catalog.resolve() == resolved


@pytest.mark.parametrize(
    "settings",
    [
        {"uri": "postgresql+psycopg://me:HIDDEN/a+b@127.0.0.1:1/db"},
        {"uri": "postgresql+psycopg://me:HID@DEN@127.0.0.1:1/db"},
        {"uri": "postgresql+psycopg://me@127.0.0.1:1/db?sslpassword=HIDDEN"},
        {"uri": "postgresql+psycopg://127.0.0.1:1/db;password=HIDDEN"},
        {"uri": "host=db password=HIDDEN"},
        {"uri": "http://127.0.0.1:1/cat?token=HIDDEN"},
        {"uri": "http://127.0.0.1:1/cat?HIDDEN"},
        {"uri": "http://HIDDEN@127.0.0.1:1/cat"},
        {"uri": "http://me:HIDDEN/x@127.0.0.1:1/cat"},
        {"header.X-Api-Key": "HIDDEN"},
        {"adls.connection-string": "AccountKey=HIDDEN"},
        {"rest.authorization-header": "HIDDEN"},
        {"oauth2-client-secret-key": "HIDDEN"},
        {"oauth2-server-uri": "http://me:HIDDEN@127.0.0.1:1/token"},
        {"s3.endpoint": "http://me:HIDDEN@127.0.0.1:1"},
        {"warehouse": "s3://key:HIDDEN/x@bucket/wh"},
        {"what-nobody-knows": "HIDDEN"},
        {"auth": {"type": "oauth2", "oauth2": {"client_id": "me", "client_secret": "HIDDEN", "expires_in": 7}}},
    ],
)
def test_whatever_may_be_a_secret_is_neither_kept_nor_shown(settings: dict[str, Any]) -> None:
    sink = IcebergSink({"type": "rest", "uri": "http://127.0.0.1:1", **settings}, "ns.t", options={"odd": "HIDDEN"})
    kept = sink.to_dict()
    assert sink.catalog.resolve() == {"type": "rest", "uri": "http://127.0.0.1:1", **settings}
    assert IcebergSink.from_dict(kept).to_dict() == kept
    assert IcebergSink.from_dict(kept).destination == sink.destination
    with refused(Invalid):
        IcebergSink.from_dict(kept).catalog.resolve()
    said = scrub_text(json.dumps(sink.catalog.resolve()), sink.catalog.secrets())
    for text in (json.dumps(kept), repr(sink), sink.destination, said):
        assert "HID" not in text and "DEN" not in text
    kind = "sql" if str(settings.get("uri", "")).startswith("post") else "rest"
    with pytest.raises(sl.StrandlineError) as caught:
        IcebergSink({"uri": "http://127.0.0.1:1", **settings, "type": kind}, "ns.t").open(PRODUCER)
    shown = "".join(traceback.format_exception(caught.value))
    assert "HID" not in str(caught.value) and "DEN" not in str(caught.value)
    assert "HIDDEN" not in shown.replace('"HIDDEN', "")


def test_plain_settings_are_kept_as_they_are() -> None:
    settings = {
        "type": "sql",
        "name": "prod",
        "uri": "postgresql+psycopg://me:env:P@db/cat?sslmode=require",
        "warehouse": "s3://tables/team@home",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.path-style-access": "true",
        "s3.connect-timeout": 5,
        "ssl": {"cabundle": "/etc/ca.pem"},
        "odd": True,
    }
    options = {"endpoint": "http://127.0.0.1:9000", "region": "x", "access_key_id": "AK"}
    kept = IcebergSink(settings, "ns.t", options=options).to_dict()
    assert (kept["catalog"], kept["options"]) == (settings, options)


def test_a_rest_catalog_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for more in ({}, {"credential": "a:b", "oauth2-server-uri": f"{uri}/token"}):
            started_s = time.monotonic()
            with refused(Unavailable):
                open_catalog(CatalogSettings({"type": "rest", "uri": uri, **more}, "catalog"), "there", timeout_s=0.3)
            assert time.monotonic() - started_s < 5


def test_an_open_rest_catalog_that_falls_silent_is_given_up(seaweed: str) -> None:
    catalog = open_catalog(CatalogSettings(rest_catalog(seaweed), "catalog"), "there", timeout_s=5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        catalog.uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        catalog._session.request = partial(catalog._session.request, timeout=0.3)
        ice = IcebergDelivery(IcebergSink(rest_catalog(seaweed), "ns.t"), PRODUCER, catalog)
        with refused(Unavailable):
            ice.position(1)
    ice.close()


def test_a_catalog_that_is_not_there_or_refuses_is_said(seaweed: str, tmp_path: Path) -> None:
    def error_of(**settings: str) -> sl.StrandlineError:
        with pytest.raises(sl.StrandlineError) as caught:
            IcebergSink(settings, "ns.t").open(PRODUCER)
        assert "ns.t" in caught.value.message and caught.value.hint
        assert "secret" not in str(caught.value)
        assert not re.search(r"[a-z](Error|Exception|Type)\b|Pool\(", str(caught.value)), "no names of classes"
        return caught.value

    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    assert type(error_of(type="rest", uri=nobody)) is Unavailable
    assert type(error_of(type="sql", uri=f"sqlite:///{tmp_path}/no/such/folder/c.db")) is Unavailable
    assert type(error_of(type="hive", uri="thrift://127.0.0.1:1")) is Unavailable
    assert type(error_of(type="nonsense", uri="x", token="secret")) is Invalid
    assert type(error_of(type="sql")) is Invalid
    assert type(error_of(type="sql", uri="nonsense://x")) is Invalid
    wrong = {**rest_catalog(seaweed), "credential": "nobody:secret"}
    assert type(error_of(**wrong)) is Invalid
    # A server, but no catalog.
    assert type(error_of(type="rest", uri=seaweed)) in (Invalid, Unavailable)


def test_an_answer_of_a_catalog_is_told_without_the_class_of_its_error() -> None:
    from pyiceberg.exceptions import BadRequestError, ServerError

    for kind, error in ((Invalid, BadRequestError), (Unavailable, ServerError)):
        with pytest.raises(kind) as caught, translate_errors("there", CatalogSettings({}, "catalog")):
            raise error("org.apache.BadRequestException: Malformed request: no name")
        assert caught.value.message == "there: Malformed request: no name"


def test_files_elsewhere_than_local_or_s3_are_refused(local: dict[str, str], opened: Opened) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1))
    table_of(ice).transaction().set_properties({"write.data.path": "gs://bucket/x"}).commit_transaction()
    with refused(Invalid, path="gs://bucket/x"):
        ice.lane(batch_of(1, 2))


def test_the_data_folder_of_the_table_is_respected(local: dict[str, str], opened: Opened, tmp_path: Path) -> None:
    ice = opened(local)
    deliver(ice, batch_of(0, 1), up(1, 1))
    table_of(ice).transaction().set_properties({"write.data.path": f"{tmp_path}/my data"}).commit_transaction()
    deliver(ice, batch_of(1, 2), up(2, 2))
    assert len(list((tmp_path / "my data").iterdir())) == 1
    assert held(ice, "id") == [(1,), (2,)]


def test_without_pyiceberg_the_sink_says_so(local: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with refused(Unavailable) as caught:
        IcebergSink(local, "ns.t").open(PRODUCER)
    assert "pip install" in str(caught.value.hint)
