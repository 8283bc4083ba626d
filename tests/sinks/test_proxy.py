"""The proxy that the environment names: read or refused, never repeated, and passed by where it says so."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relays import AUTHORITY
from strandline.sinks.proxy import Proxy, proxy_for, proxy_secrets

PASSWORD = "pr0xy/p@ss:w0rd#1"
LOGIN = f"courier:{PASSWORD}"
LOGIN_IN_URL = "courier:pr0xy%2Fp%40ss%3Aw0rd%231"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", AUTHORITY)


def test_a_password_may_hold_any_character():
    for text in (f"http://{LOGIN}@host:3128", f"{LOGIN}@host:3128", f"http://{LOGIN_IN_URL}@host:3128/"):
        assert Proxy.parse(text) == Proxy("host", 3128, LOGIN)
    assert Proxy.parse("http://token-alone@[::1]:3128") == Proxy("::1", 3128, "token-alone:")
    assert Proxy.parse("http://host") == Proxy("host", 80, None)


@given(st.text(max_size=40))
def test_a_proxy_is_read_or_refused_without_being_repeated(text):
    try:
        Proxy.parse(text)
    except OSError as error:
        assert str(error) in (str(_refusal("ftp://host")), str(_refusal("http://")))


def _refusal(text):
    with pytest.raises(OSError) as caught:
        Proxy.parse(text)
    return caught.value


@pytest.mark.parametrize("host, is_direct", [
    ("h.example", True), ("sub.h.example", True), ("oh.example", False), ("127.0.0.1", True), ("127.0.0.2", False),
    ("port.example", False),
])  # fmt: skip
def test_no_proxy_names_hosts_and_what_is_below_them(monkeypatch, host, is_direct):
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", "h.example,127.0.0.1,port.example:444")
    assert (proxy_for("https", host, 443) is None) == is_direct
    assert (proxy_for("https", "port.example", 444)) is None
    monkeypatch.setenv("no_proxy", "*")
    assert proxy_for("https", host, 443) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"http_proxy": "http://p:81"}, "p:81"),
        ({"https_proxy": "http://p:81"}, None),
        ({"all_proxy": "http://q"}, "q:80"),
        ({"http_proxy": "p:81", "all_proxy": "http://q"}, "p:81"),
        ({"http_proxy": "http://p:81", "no_proxy": "example.com"}, None),
        ({"http_proxy": "http://p:81", "no_proxy": "example.com:99"}, "p:81"),
    ],
    ids=str,
)
def test_the_proxy_of_a_server_is_the_one_for_its_scheme(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = proxy_for("http", "example.com", 80)
    assert (None if found is None else str(found)) == expected


def test_a_login_goes_to_the_proxy_alone_and_counts_as_a_secret(monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://{LOGIN_IN_URL}@p:81")
    monkeypatch.setenv("no_proxy", "user:word@x")
    found = proxy_for("http", "example.com", 80)
    assert found.headers == {"Proxy-Authorization": f"Basic {base64.b64encode(LOGIN.encode()).decode()}"}
    assert PASSWORD not in repr(found) + str(found)
    assert set(proxy_secrets()) == {LOGIN, PASSWORD}
    assert Proxy("p", 81, None).headers == {}
