"""Laws of redaction: secrets never survive, nothing else changes, twice is once."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnlog.redaction.redact import Redactor
from turnlog.redaction.values import VALUE_KEY, QuickScan, decode_layers

REDACTOR = Redactor()

ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
words = st.text(ALPHABET, min_size=12, max_size=40).map("Zq7{}".format)
NAMES = (
    "password",
    "DB_PASSWORD",
    "apiKey",
    "api-key",
    "X-Api-Key",
    "access_token",
    "refreshToken",
    "token",
    "GITHUB_TOKEN",
    "client_secret",
    "clientSecret",
    "private_key",
    "Authorization",
    "set-cookie",
    "credentials",
    "pwd",
    "AWS_SECRET_ACCESS_KEY",
    "auth",
    "jwt",
)
names = st.sampled_from(NAMES)
prose = st.text(max_size=30).filter(lambda s: "Zq7" not in s)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | prose,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(prose, inner, max_size=3),
    max_leaves=8,
)

SHAPES: tuple[Callable[[str], str], ...] = (
    lambda s: f"sk-{s}",
    lambda s: f"ghp_{s}",
    lambda s: f"github_pat_{s}",
    lambda s: f"xoxb-{s}",
    lambda s: f"AKIA{s.upper():A<16}",
    lambda s: f"AIza{s:a<20}",
    lambda s: f"eyJhbGciOiJIUzI1NiJ9.{s}.x",
    lambda s: f"npm_{s}",
    lambda s: f"glpat-{s}",
)
TEXTS: tuple[Callable[[str, str], str], ...] = (
    lambda _, s: f"Bearer {s}",
    lambda _, s: f"Basic {base64.b64encode(f'user:{s}'.encode()).decode()}",
    lambda _, s: f"postgres://user:{s}@host:5432/db",
    lambda _, s: f"-----BEGIN RSA PRIVATE KEY-----\n{s}\n-----END RSA PRIVATE KEY-----",
    lambda n, s: f"{n}={s}",
    lambda n, s: f"{n}: {s}",
    lambda n, s: f'{n}: "{s}"',
    lambda n, s: f"{{'{n}': '{s}', 'x': 1}}",
    lambda n, s: json.dumps({n: s}),
    lambda n, s: json.dumps({n: {"deep": [1, s]}}),
    lambda n, s: f"https://host/path?a=1&{n}={s}&b=2",
    lambda n, s: f"https://host/path?{percent(n)}={s}",
    lambda n, s: f"https://host/path?{n}={percent(s)}",
    lambda _, s: f"https://host/?q={quote(f'Bearer {s}')}",
    lambda n, s: f"run --{n} {s} --verbose",
    lambda n, s: f"<{n}>{s}</{n}>",
    lambda n, s: f"export {n}='{s}'",
    lambda n, s: f"{n} => {s},",
    lambda n, s: f"{n}: Bearer {s}",
    lambda n, s: f'config["{n}"] = "{s}"',
    lambda n, s: f"def f({n}: str = '{s}'): ...",
    lambda n, s: f'"{{\\"{n}\\": \\"{s}\\"}}"',
    lambda _, s: f"GET / HTTP/1.1\r\nHost: h\r\nCookie: a=1; b={s}; c=2\r\n",
    lambda _, s: f"curl -u bob:{s} https://host/",
    lambda n, s: f"- {n}: |\n    {s}\n    {s}\n- x: 1",
    lambda n, s: f"{n}:\n  first: 1\n  second: {s}\n",
)


def percent(text: str) -> str:
    return "".join(f"%{ord(c):02X}" for c in text)


@st.composite
def planted_texts(draw: st.DrawFn) -> tuple[str, str]:
    """A secret, and a text that holds it in one of many spellings."""
    secret = draw(words)
    text = draw(st.sampled_from(TEXTS))(draw(names), secret)
    if draw(st.booleans()):
        secret = text = draw(st.sampled_from(SHAPES))(secret)
    before, after = draw(prose), draw(prose)
    return secret, f"{before}\n{text}\n{after}"


@st.composite
def planted_documents(draw: st.DrawFn) -> tuple[str, bytes]:
    """A secret, and JSON that holds it: as value, as key, under a name, in JSON in a string."""
    secret, text = draw(planted_texts())
    others = draw(st.dictionaries(prose, json_values, max_size=3))
    for _ in range(draw(st.integers(0, 2))):
        text = json.dumps({"text": text, "n": 1})
    match draw(st.integers(0, 3)):
        case 0:
            document: object = [others, {"text": text}, 1]
        case 1:
            document = {**others, text: others}
        case 2:
            secret = draw(words)
            document = {
                **others,
                draw(names): draw(st.sampled_from([secret, [secret], {"a": secret}])),
            }
        case _:
            secret = draw(words)
            document = [others, {"name": draw(names), "value": secret}]
    return secret, dumps(draw, document)


def dumps(draw: st.DrawFn, document: object) -> bytes:
    data = json.dumps(
        document, ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1))
    )
    if draw(st.booleans()):
        data = data.replace("/", "\\/")
    if draw(st.booleans()):
        letter = draw(st.sampled_from("toksepa"))
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    return data.encode("utf-8", "surrogatepass")


def views(data: bytes) -> str:
    """All that one could read in `data`: as it is, unescaped, percent-decoded."""
    text = data.decode("utf-8", "replace")
    plain = (decode_layers(data) or b"").decode("utf-8", "replace")
    return "\n".join((text, plain, unquote(text), unquote(plain)))


@pytest.mark.promise("SEC-2")
@given(planted_documents())
def test_a_planted_secret_never_survives_in_json(planted: tuple[str, bytes]) -> None:
    secret, data = planted
    left = REDACTOR.json(data)
    assert left.touched
    assert secret not in views(left.data)


@pytest.mark.promise("SEC-2")
@given(planted_texts())
def test_a_planted_secret_never_survives_in_text(planted: tuple[str, str]) -> None:
    secret, text = planted
    left, touched = REDACTOR.text(text)
    assert touched
    assert secret not in views(left.encode("utf-8", "surrogatepass"))


@pytest.mark.promise("SEC-2")
@given(planted_documents(), st.data())
def test_a_secret_that_a_cap_cuts_leaves_no_prefix(
    planted: tuple[str, bytes], data: st.DataObject
) -> None:
    secret, whole = planted
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    left = REDACTOR.json(cut, complete=False)
    assert secret[:7] not in views(left.data)


@given(planted_documents())
def test_redacting_twice_is_redacting_once(planted: tuple[str, bytes]) -> None:
    once = REDACTOR.json(planted[1])
    twice = REDACTOR.json(once.data)
    assert twice.data == once.data
    assert not twice.touched


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_and_twice_is_once(data: bytes) -> None:
    once = REDACTOR.json(data)
    assert REDACTOR.json(once.data).data == once.data
    assert once.touched == (once.data != data)


@given(json_values)
def test_what_is_redacted_of_valid_json_is_valid_json(document: object) -> None:
    data = json.dumps({"password": document, "text": "token=abcdef", "rest": document})
    left = json.loads(REDACTOR.json(data.encode()).data)
    assert left["text"] == "token=[redacted]"


FRAGMENTS = [
    *("password", "token", "tokens", "api_key", "x", "name", "value", "Authorization", "login"),
    *(
        ": ",
        "=",
        ":",
        "=>",
        ",",
        ";",
        " ",
        "\n",
        "\n  ",
        "\t",
        "&",
        "?",
        "/",
        "://",
        "@",
        "--",
        "|",
    ),
    *('"', "'", "`", '\\"', "\\", "\\\\", "\\n", "\\u0074", "%74", "%2574", "%", "+", ".", "-"),
    *("{", "}", "[", "]", "(", ")", "<", ">", "</", "<token>", "[redacted]", "[reda", '""', "[]"),
    *(
        "1",
        "12.5",
        "null",
        "true",
        "abc",
        "a b",
        "Bearer ",
        "Basic ",
        "dXNlcjpwYXNz",
        "sk-abcdef12",
    ),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "\x00", "\ufeff", "é", "\udcff"),
]
rubble = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


@given(rubble)
def test_twice_is_once_for_rubble_too(text: str) -> None:
    once, touched = REDACTOR.text(text)
    assert REDACTOR.text(once) == (once, False)
    assert touched is (once != text)


@given(rubble, st.booleans())
def test_twice_is_once_for_rubble_taken_for_json(text: str, wrapped: bool) -> None:
    data = (json.dumps({"t": text}) if wrapped else text).encode("utf-8", "surrogateescape")
    once = REDACTOR.json(data).data
    assert REDACTOR.json(once).data == once


LOOK = QuickScan(("X-Own-Name", "ünïcödé"))


@pytest.mark.parametrize("which", range(len(LOOK.patterns)))
@settings(max_examples=400)
@given(data=st.data(), upper=st.booleans())
def test_the_one_pass_before_the_patterns_passes_over_nothing_that_they_find(
    which: int, data: st.DataObject, upper: bool
) -> None:
    found = data.draw(st.from_regex(LOOK.patterns[which])).lower()
    low = b" \n" + found.replace(b"\0", b"") + b"\n "
    hit = any(pattern.search(low) for pattern in LOOK.patterns)
    assert LOOK.has_candidates(low.upper() if upper else low) or not hit


NEAR = st.sampled_from(
    [
        *("token", "tokens", "cookie", "api_key", "private key", "secret", "credentials", "xoxb-"),
        *(
            "sk-",
            "ghp_",
            "npm_",
            "sntryu_",
            "ya29.",
            "hvs.",
            "sg.abcdefgh",
            "?sig=",
            ":aa",
            "AKIA1",
        ),
        *("pass", "password", "auth", "otp", "pwd", "bearer", "basic ", "connection string", "eyJ"),
        *("mcp-session", "session", "request state", "authorization", "-----begin ", "gocspx-"),
        *("-", "-u ", "--my-very-own-", "x-own-name", "xownname", "ncd", "slack.com/", "://", "@"),
        *(
            ": 12,",
            '": 12}',
            "=",
            ":",
            ">",
            '"',
            "'",
            "\\\\" * 200,
            " " * 5000,
            "0" * 300,
            "_.-" * 70,
        ),
        *("a" * 24, "b" * 61, "c" * 130, "d " * 300, "e" * 20_000, "\n", "]", "\0", ")"),
    ]
)


@settings(max_examples=600)
@given(st.lists(NEAR, max_size=30).map("".join))
def test_in_a_large_text_the_patterns_find_what_they_find_in_all_of_it(text: str) -> None:
    text = "x" * 5000 + text
    low = text.encode().lower()
    found = sorted(match.start() for look in LOOK.patterns for match in look.finditer(low))
    assert LOOK.marks(text)[0] == found
    shapes = [m for look in LOOK.patterns for m in look.finditer(low) if m.lastindex]
    assert (LOOK.marks(text)[1] != "") == bool(shapes)


@pytest.mark.parametrize("word", ["token ", "://token", "auth-", "token" + " " * 70, "pass   x"])
def test_a_large_text_of_candidates_is_searched_in_time_that_grows_with_it(word: str) -> None:
    text = word * (400_000 // len(word))
    low = text.encode()
    found = sorted(match.start() for look in LOOK.patterns for match in look.finditer(low))
    assert LOOK.marks(text)[0] == found


@given(data=st.from_regex(VALUE_KEY))
def test_in_a_cut_text_a_value_whose_name_may_follow_is_a_candidate(data: bytes) -> None:
    assert LOOK.has_candidates(data, complete=False)
    assert not LOOK.has_candidates(b'{"value":1}')


@pytest.mark.parametrize(
    ("data", "harmless"),
    [
        (b"https://ann:pw@host", b"https://ann:pw host"),
        (b"p\0w\0d\0=\0x\0", b"p\0w\0e\0=\0x\0"),
        (b"se%63ret=x", b"se%64ret=x"),
        (b'{"se\\u0063ret": "x"}', b'{"se\\u0064ret": "x"}'),
        (b"https%3A%2F%2Fann:pw@host", b"https%3A%2F%2Fann:pw host"),
    ],
)
def test_what_addresses_escapes_and_wide_characters_cover_is_found(
    data: bytes, harmless: bytes
) -> None:
    assert LOOK.has_candidates(data)
    assert not LOOK.has_candidates(harmless)


DULL_RUN = b",".join(
    b'"k%d":%b' % (n, value)
    for n in range(12)
    for value in (b"%d" % n, b'"plain \\" text"', b" -1.5e3 ", b"null", b"true")
)
telling = st.sampled_from(["name", "value", "key", "content", "default", "e", "list", "sub"])
members = st.one_of(
    st.tuples(names, words).map(lambda m: json.dumps({m[0]: m[1]})[1:-1]),
    st.tuples(telling, names | words | prose).map(lambda m: json.dumps({m[0]: m[1]})[1:-1]),
    st.tuples(telling, json_values).map(lambda m: json.dumps({m[0]: m[1]})[1:-1]),
    st.tuples(names, words).map(lambda m: json.dumps({"in": {m[0]: m[1], "d": 1}})[1:-1]),
    st.tuples(names, words).map(lambda m: json.dumps({"in": [m[0], m[1]]})[1:-1]),
    st.sampled_from(['"a" "b"', '"x":', "}", "]", '"password":{"a":', '"u":[', "bare:1"]),
)


@given(st.lists(members, max_size=4), st.lists(members, max_size=4))
def test_members_that_do_not_matter_change_nothing_about_the_others(
    before: list[str], after: list[str]
) -> None:
    def redacted(between: list[str]) -> bytes:
        text = "{" + ",".join([*before, *between, *after]) + "}"
        return REDACTOR.json(text.encode("utf-8", "replace")).data

    run = DULL_RUN.decode()
    mark = '"between":0'
    # One member as long as the run is read token by token, the run is passed over.
    assert redacted([mark, run, mark]).replace(DULL_RUN + b",", b"") == redacted([mark, mark])


def test_a_long_run_of_members_under_a_secret_name_vanishes() -> None:
    run = DULL_RUN.decode()
    cut = REDACTOR.json(f'{{"tokens":{{"a":{{{run},"z":1}}}},"password":{{{run}}}}}'.encode()).data
    assert b"plain" not in cut
    assert cut.count(b"[redacted]") == 13
