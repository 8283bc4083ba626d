"""Which settings and which parts of an address are secret."""

import pytest

from strandline.model import secret

PLAIN = """
    type name prefix scope audience resource schema_version py-io-impl
    rest.signing-region rest.signing-name namespace-separator
    ssl.cabundle ssl.client.cert ssl.client.key header.x-iceberg-access-delegation
    auth.type auth.basic.username auth.oauth2.client_id auth.oauth2.scope auth.google.credentials_path
    client.region client.access-key-id client.profile-name client.role-arn client.role-session-name
    s3.region s3.access-key-id s3.profile-name s3.role-arn s3.role-session-name s3.connect-timeout s3.request-timeout
    s3.signer glue.region glue.id glue.profile-name glue.max-retries glue.retry-mode glue.access-key-id
    dynamodb.region dynamodb.table-name region access_key_id timeout connect_timeout aws_region aws_access_key_id
"""
SWITCHES = """
    pool_pre_ping init_catalog_tables echo rest.sigv4-enabled view-endpoints-supported s3.path-style-access
    s3.force-virtual-addressing s3.anonymous s3.resolve-region glue.skip-archive hive.hive2-compatible
    hive.kerberos-authentication allow_http virtual_hosted_style_request aws_allow_http
    aws_virtual_hosted_style_request
"""
ADDRESSES = """
    uri warehouse oauth2-server-uri auth.oauth2.token_url s3.endpoint s3.proxy-uri s3.signer.uri glue.endpoint
    endpoint aws_endpoint endpoint_url aws_endpoint_url
"""
HIDDEN = """
    token credential password s3.secret-access-key s3.session-token auth.basic.password auth.oauth2.client_secret
    header.authorization header.x-api-key header.cookie header.x-session-id adls.connection-string adls.account-key
    adls.sas-token gcs.oauth2.token s3.sse.key rest.authorization-header oauth2-client-secret-key secret.name token-type
    what-nobody-knows uris filename keyid
"""


@pytest.mark.parametrize("name", PLAIN.split())
def test_a_setting_that_is_known_to_be_harmless_is_plain(name: str) -> None:
    assert secret.is_plain(name, "some text")
    assert not secret.is_plain(name, "env:NAME")


@pytest.mark.parametrize("name", SWITCHES.split())
def test_a_switch_is_plain_whatever_its_name(name: str) -> None:
    assert secret.is_plain(name, "true") and secret.is_plain(name, "False") and secret.is_plain(name, 1)


@pytest.mark.parametrize("name", ADDRESSES.split())
def test_an_address_is_known_by_its_name(name: str) -> None:
    assert secret.is_address_name(name) and not secret.is_plain(name, "some text")


@pytest.mark.parametrize("name", HIDDEN.split())
def test_any_other_setting_is_a_secret(name: str) -> None:
    assert not secret.is_plain(name, "some text") and not secret.is_address_name(name)


@pytest.mark.parametrize(
    ("address", "kept", "place"),
    [
        ("/folder/a@b", "/folder/a@b", "/folder/a@b"),
        ("file:///folder/a@b?c", "file:///folder/a@b?c", "file:///folder/a@b?c"),
        ("http://host/path", "http://host/path", "http://host/path"),
        ("http://token@host/path", "http://given@host/path", "http://host/path"),
        ("http://me:pa%20ss@host/path", "http://me:given@host/path", "http://host/path"),
        ("http://host/path?key=value", "http://host/path?key=given", "http://host/path"),
        ("http://host/path?uri=value", "http://host/path?uri=given", "http://host/path"),
        ("http://host/path?key=env:NAME", "http://host/path?key=env:NAME", "http://host/path"),
        ("http://host/path?value", "given", "given"),
        ("http://host/path#value", "given", "given"),
        ("http://me:pass/word@host/path", "given", "given"),
        ("http://host/path@x", "given", "given"),
        ("s3://bucket/team@home", "s3://bucket/team@home", "s3://bucket/team@home"),
        ("s3://key@bucket/team@home", "s3://given@bucket/team@home", "s3://bucket/team@home"),
        ("s3://key:pass/word@bucket/x", "given", "given"),
        ("postgresql://me@db/cat", "postgresql://me@db/cat", "postgresql://db/cat"),
        ("postgresql://me:a/b#c;d@db/cat", "postgresql://me:given@db/cat", "postgresql://db/cat"),
        ("postgresql://me:file:/run/p@db/cat", "postgresql://me:file:/run/p@db/cat", "postgresql://db/cat"),
        ("postgresql://me:a@b@db/cat", "given", "given"),
        ("postgresql://db/cat;password=a", "given", "given"),
        ("postgresql://me@db/c?sslmode=require&x=y", "postgresql://me@db/c?sslmode=require&x=given", "postgresql://db/c"),
        ("sqlite:////folder/me@home/c.db?mode=ro", "sqlite:////folder/me@home/c.db?mode=ro", "sqlite:////folder/me@home/c.db"),
        ("host=db password=a", "given", "given"),
    ],
)  # fmt: skip
def test_an_address_is_kept_and_shown_without_its_secrets(address: str, kept: str, place: str) -> None:
    assert secret.change_address(address, lambda text: secret.reference(text) or "") == kept
    assert secret.change_address(address, lambda text: text) == address
    assert secret.place_of(address) == place
