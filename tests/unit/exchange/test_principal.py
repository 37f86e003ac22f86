"""`exchange.principal`: which credentials tell callers apart."""

import pytest

from turnlog.exchange.principal import Pairs, PrincipalNames

NAMES = PrincipalNames()


def who(*headers: tuple[str, str], query: str = "", names: PrincipalNames = NAMES) -> Pairs:
    return names.credentials([(name.encode(), value.encode()) for name, value in headers], query)


@pytest.mark.promise("TWICE-31")
@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Proxy-Authorization", "X-Forwarded-Authorization"),
        *("Private-Token", "X-Auth-Token", "X-Vault-Token", "X-Amz-Security-Token", "Token"),
        *("X-Api-Key", "Api-Key", "ApiKey", "X-ApiKey", "x-goog-api-key"),
        *("X-Access-Key", "Ocp-Apim-Subscription-Key", "X-Functions-Key"),
    ],
)
def test_a_credential_header_separates_callers(name: str) -> None:
    assert who((name, "alice")) != who((name, "bob")) != ()
    assert who((name.upper(), "alice")) == who((name.lower(), "alice"))


@pytest.mark.promise("TWICE-24")
@pytest.mark.parametrize(
    "name",
    [
        *("X-CSRF-Token", "X-XSRF-Token", "CsrfToken", "X-Page-Token", "Next-Token", "Sync-Token"),
        *("X-Nonce-Token", "X-Captcha-Token", "Idempotency-Token", "DPoP", "Signature"),
        *("Signature-Input", "X-Hub-Signature-256", "Nonce", "Date", "Idempotency-Key"),
        *("Mcp-Session-Id", "Traceparent", "User-Agent", "X-Request-Id", "Sec-WebSocket-Key"),
    ],
)
def test_values_made_for_one_request_do_not_separate_callers(name: str) -> None:
    assert who((name, "1")) == who((name, "2")) == ()


@pytest.mark.parametrize(
    "name", ["token", "access_token", "private_token", "accessToken", "api_key", "apiKey", "apikey"]
)
def test_a_query_parameter_counts_like_the_header_of_its_name(name: str) -> None:
    assert who(query=f"a=1&{name}=alice") != who(query=f"a=1&{name}=bob") != ()
    assert who(query=f"a=1&{name}=alice") == who(query=f"a=2&{name}=alice")
    assert NAMES.without_credentials(f"a=1&{name}=alice&b=") == "a=1&b="


@pytest.mark.parametrize("query", ["page_token=1", "pageToken=1", "nextPageToken=1", "token", ""])
def test_other_parameters_stay_in_the_query(query: str) -> None:
    assert who(query=query) == ()
    assert NAMES.without_credentials(query) == query


def test_all_credentials_count_in_any_order() -> None:
    gateway, alice, bob = ("Authorization", "g"), ("Private-Token", "a"), ("Private-Token", "b")
    assert who(gateway, alice) == who(alice, gateway)
    assert len({who(gateway), who(gateway, alice), who(gateway, bob), who(alice, bob)}) == 4


@pytest.mark.parametrize(
    "cookie", ["session=a", "PHPSESSID=a", "connect.sid=a", "__Host-auth=a", "ACCESS_TOKEN=a"]
)
def test_only_session_cookies_count(cookie: str) -> None:
    assert who(("Cookie", f"_ga=1; {cookie}")) == who(("Cookie", f"{cookie}; AWSALB=2")) != ()
    assert who(("Cookie", cookie)) != who(("Cookie", cookie + "b"))
    assert who(("Cookie", "_ga=1; csrftoken=2; XSRF-TOKEN=3")) == ()


AWS = "AWS4-HMAC-SHA256 Credential={}/2026{}/eu/s3/aws4_request, SignedHeaders=host, Signature={}"
DIGEST = 'Digest username="{}", realm="r", nonce="{}", uri="/mcp", nc=0001, response="{}"'
OAUTH = 'OAuth oauth_consumer_key="{}", oauth_nonce="{}", oauth_signature="{}"'


@pytest.mark.parametrize("form", [AWS, DIGEST, OAUTH])
def test_the_signer_of_signed_credentials_counts(form: str) -> None:
    one = who(("Authorization", form.format("alice", "0101", "ab12")))
    assert one == who(("Authorization", form.format("alice", "0102", "cd34")))
    assert one != who(("Authorization", form.format("bob", "0101", "ab12")))


@pytest.mark.parametrize(
    "value", ["Bearer a=b", "Basic dXNlcjpwYXNz", "Basic dXNlcjpwYQ==", "Custom x=1, y=2", ""]
)
def test_other_credentials_count_as_they_come(value: str) -> None:
    assert who(("Authorization", value)) == ((b"authorization", value.encode()),)


def test_a_long_value_takes_linear_time() -> None:
    value = 'Custom a="' + "\\" * 200_000
    assert who(("Authorization", value)) == ((b"authorization", value.encode()),)


@pytest.mark.promise("TWICE-31")
def test_other_names_may_be_set() -> None:
    names = PrincipalNames(("X-Who", "x-csrf-token", "cookie:chat"))
    assert who(("Authorization", "a"), names=names) == ()
    assert who(("Idempotency-Key", "a"), names=PrincipalNames(("*-key",))) == ()
    given = who(("x-who", "a"), ("X-CSRF-Token", "b"), ("Cookie", "chat=1; x=2"), names=names)
    assert given == ((b"cookie", b"chat=1"), (b"x-csrf-token", b"b"), (b"x-who", b"a"))
    assert who(("Authorization", "a"), ("Cookie", "session=1"), names=PrincipalNames(())) == ()
