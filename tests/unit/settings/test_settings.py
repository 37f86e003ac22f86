import math
from pathlib import Path

import pytest
from msgspec import structs

from kit.tls import CERTIFICATE
from turnlog.core.kinds import Durability, WhenFull
from turnlog.exchange.duplicates import NeverTwice
from turnlog.packs.errors import ConfigError, SettingError
from turnlog.packs.sources import RuleSource, find_rule_pack
from turnlog.sessions.retention.ages import Retention
from turnlog.settings.layers import (
    CONFIG_VARIABLE,
    VARIABLES,
    Flags,
    misspelt_variable_warnings,
    read_settings,
    read_store_settings,
    read_wrap_settings,
)
from turnlog.settings.model import (
    IdentitySettings,
    Limits,
    LogFormat,
    LogLevel,
    ProvenanceSettings,
    Redact,
    Settings,
    Switch,
    Transport,
    UpstreamSettings,
)
from turnlog.settings.upstream_url import UpstreamUrl
from turnlog.settings.values import Address, name_of_command

URL = "http://127.0.0.1:9000/mcp"
RULES = "rules:\n  - effect: read\n"
EVERYTHING = f"""
listen: 127.0.0.1:7500
allow_hosts: [proxy.internal]
allow_origins: ["vscode-webview://*", "Chrome-Extension://ID"]
data: ./kept
durability: strict
upstreams:
  files: {{url: "{URL}", packs: [default], trust_annotations: true}}
  web: {{url: "https://tools.example/", transport: http}}
limits: {{record: 64KiB, store: 2GiB, when_full: forward_unrecorded}}
rules: [./mine.yaml]
redact: {{headers: [X-Secret], keys: [pin], patterns: ["sk-[a-z]+"]}}
log_format: console
log_level: debug
"""


def _settings(
    folder: Path,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    flags: Flags | None = None,
) -> Settings:
    """Return the settings; `text` becomes the file that `--config` names, beside its rules."""
    (folder / "mine.yaml").write_text(RULES)
    flags = flags or Flags()
    if text is not None:
        (folder / "turnlog.yaml").write_text(text)
        flags = structs.replace(flags, config="turnlog.yaml")
    return read_settings(flags=flags, environ=environ or {}, folder=folder)


@pytest.mark.promise("SEC-14")
def test_one_url_is_all_that_is_needed(tmp_path: Path) -> None:
    settings = _settings(tmp_path, flags=Flags(upstreams=(URL,)))

    assert settings == Settings(
        listen=Address("127.0.0.1", 7411),
        data=tmp_path / "turnlog-data",
        upstreams={"default": UpstreamSettings(url=UpstreamUrl(URL))},
    )


def test_a_file_can_hold_every_setting(tmp_path: Path) -> None:
    assert _settings(tmp_path, EVERYTHING) == Settings(
        listen=Address("127.0.0.1", 7500),
        allow_hosts=("proxy.internal",),
        allow_origins=("vscode-webview://*", "chrome-extension://id"),
        data=tmp_path / "kept",
        durability=Durability.STRICT,
        upstreams={
            "files": UpstreamSettings(
                url=UpstreamUrl(URL), packs=("default",), trust_annotations=True
            ),
            "web": UpstreamSettings(
                url=UpstreamUrl("https://tools.example/"), transport=Transport.HTTP
            ),
        },
        rules=(RuleSource(tmp_path / "mine.yaml", "mine.yaml"),),
        limits=Limits(record=65_536, store=2 << 30, when_full=WhenFull.FORWARD_UNRECORDED),
        redact=Redact(headers=("x-secret",), keys=("pin",), patterns=("sk-[a-z]+",)),
        log_format=LogFormat.CONSOLE,
        log_level=LogLevel.DEBUG,
    )


def test_the_environment_can_hold_every_setting(tmp_path: Path) -> None:
    environ = {
        "TURNLOG_LISTEN": "127.0.0.1:7500",
        "TURNLOG_ALLOW_HOSTS": "a.internal, b.internal",
        "TURNLOG_ALLOW_ORIGINS": "app://a, https://b.example",
        "TURNLOG_DATA": "kept",
        "TURNLOG_DURABILITY": "relaxed",
        "TURNLOG_UPSTREAMS": f"files={URL} https://tools.example/?a=b",
        "TURNLOG_RULES": "./mine.yaml, default",
        "TURNLOG_LIMITS_RECORD": "64KiB",
        "TURNLOG_LIMITS_STORE": "1073741824",
        "TURNLOG_LIMITS_WHEN_FULL": "forward_unrecorded",
        "TURNLOG_REDACT_HEADERS": "x-one,x-two",
        "TURNLOG_REDACT_KEYS": "pin",
        "TURNLOG_REDACT_PATTERNS": "sk-[a-z]{3,9}\nAKIA[0-9]+",
        "TURNLOG_IDENTITY_PRINCIPAL": "X-Who, cookie:session",
        "TURNLOG_NEVER_TWICE_JOIN_AFTER": "1s",
        "TURNLOG_NEVER_TWICE_CANCEL_GRACE": "2s",
        "TURNLOG_NEVER_TWICE_DRAIN": "1h",
        "TURNLOG_NEVER_TWICE_WINDOW": "1m",
        "TURNLOG_PROVENANCE_INPUTS": "off",
        "TURNLOG_RETENTION_PAYLOADS": "1d",
        "TURNLOG_RETENTION_BODIES": "forever",
        "TURNLOG_RETENTION_SESSIONS": "forever",
        "TURNLOG_LOG_FORMAT": "console",
        "TURNLOG_LOG_LEVEL": "warning",
    }
    assert set(environ) == set(VARIABLES)

    assert _settings(tmp_path, environ=environ) == Settings(
        listen=Address("127.0.0.1", 7500),
        allow_hosts=("a.internal", "b.internal"),
        allow_origins=("app://a", "https://b.example"),
        data=tmp_path / "kept",
        durability=Durability.RELAXED,
        upstreams={
            "files": UpstreamSettings(url=UpstreamUrl(URL)),
            "default": UpstreamSettings(url=UpstreamUrl("https://tools.example/?a=b")),
        },
        rules=(RuleSource(tmp_path / "mine.yaml", "./mine.yaml"), find_rule_pack("default")),
        limits=Limits(record=65_536, store=1 << 30, when_full=WhenFull.FORWARD_UNRECORDED),
        redact=Redact(
            headers=("x-one", "x-two"), keys=("pin",), patterns=("sk-[a-z]{3,9}", "AKIA[0-9]+")
        ),
        identity=IdentitySettings(principal=("x-who", "cookie:session")),
        never_twice=NeverTwice(join_after=1.0, cancel_grace=2.0, drain=3600.0, window=60.0),
        provenance=ProvenanceSettings(inputs=Switch.OFF),
        retention=Retention(payloads=86_400.0, bodies=math.inf),
        log_format=LogFormat.CONSOLE,
        log_level=LogLevel.WARNING,
    )


@pytest.mark.promise("CLI-4")
def test_flags_win_over_the_environment_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    environ = {
        "TURNLOG_LIMITS_RECORD": "1KiB",
        "TURNLOG_LOG_LEVEL": "error",
        "TURNLOG_LISTEN": "a:2",
    }

    settings = _settings(tmp_path, EVERYTHING, environ, Flags(listen="b:3"))

    assert settings.listen == Address("b", 3)
    assert settings.log_level is LogLevel.ERROR
    assert settings.limits == Limits(
        record=1024, store=2 << 30, when_full=WhenFull.FORWARD_UNRECORDED
    )
    assert settings.durability is Durability.STRICT


def test_an_upstream_flag_adds_an_upstream_or_replaces_a_url(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path,
        EVERYTHING,
        flags=Flags(upstreams=("files=http://127.0.0.1:9001/", "more=http://a/")),
    )

    assert settings.upstreams == {
        "files": UpstreamSettings(
            url=UpstreamUrl("http://127.0.0.1:9001/"), packs=("default",), trust_annotations=True
        ),
        "web": UpstreamSettings(
            url=UpstreamUrl("https://tools.example/"), transport=Transport.HTTP
        ),
        "more": UpstreamSettings(url=UpstreamUrl("http://a/")),
    }


def test_a_relative_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "turnlog.yaml").write_text(
        f"data: kept\nupstreams: {{a: {{url: {URL}}}}}\n"
    )

    from_file = _settings(tmp_path, flags=Flags(config="etc/turnlog.yaml"))
    from_flag = _settings(tmp_path, flags=Flags(config="etc/turnlog.yaml", data="here"))

    assert from_file.data == tmp_path / "etc" / "kept"
    assert from_flag.data == tmp_path / "here"


def test_rules_of_flags_come_before_those_of_variables_and_of_the_file(tmp_path: Path) -> None:
    for name in ("flag.yaml", "variable.yaml"):
        (tmp_path / name).write_text(RULES)

    settings = _settings(
        tmp_path,
        EVERYTHING,
        {"TURNLOG_RULES": "variable.yaml"},
        Flags(rules=("default", "flag.yaml")),
    )

    assert settings.rules == (
        find_rule_pack("default"),
        *(RuleSource(tmp_path / f"{name}.yaml", f"{name}.yaml") for name in ("flag", "variable", "mine")),
    )  # fmt: skip
    assert settings.sources().order("files") == (find_rule_pack("default"), *settings.rules[1:])


def test_rule_paths_are_relative_to_the_file_and_shown_relative_to_the_working_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "own.yaml").write_text(RULES)
    (tmp_path / "etc" / "turnlog.yaml").write_text("rules: [own.yaml]\n")

    found = read_store_settings(Flags(config="etc/turnlog.yaml"), {}, tmp_path).sources()

    assert found.own == (RuleSource(tmp_path / "etc" / "own.yaml", "etc/own.yaml"),)


@pytest.mark.promise("RULE-5")
def test_rules_in_the_working_directory_are_not_read_unless_named(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "default.yaml").write_text(RULES)

    found = read_store_settings(Flags(rules=("default",)), {}, tmp_path).sources()

    assert found.each() == (find_rule_pack("default"),)
    assert not found.last.path.is_relative_to(tmp_path)


@pytest.mark.promise("RULE-5")
def test_a_settings_file_in_the_working_directory_is_not_read_unless_named(tmp_path: Path) -> None:
    (tmp_path / "turnlog.yaml").write_text(EVERYTHING)

    assert _settings(tmp_path, flags=Flags(upstreams=(URL,))).listen.port == 7411


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(EVERYTHING)

    assert _settings(tmp_path, environ={CONFIG_VARIABLE: "settings.yaml"}).listen.port == 7500


def test_an_empty_variable_is_ignored(tmp_path: Path) -> None:
    environ = {"TURNLOG_LISTEN": "", "TURNLOG_UPSTREAMS": " ", CONFIG_VARIABLE: ""}

    assert _settings(tmp_path, environ=environ, flags=Flags(upstreams=(URL,))).listen.port == 7411


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("listen: here", "1:9: 'here' is not an address, write HOST:PORT like 127.0.0.1:7411 or [::1]:7411"),
        ("limits: {store: 1}", "1:17: no store is smaller than 1MiB, write a size like 64MiB or 10GiB"),
        ("limits: {recrod: 1}", "1:10: unknown key 'recrod', did you mean 'record'?"),
        ("limits: {record: lots}", "1:18: 'lots' is no amount, write a size like 64KiB, 10MiB or 2GiB"),
        ("durability: fast", "1:13: 'durability' cannot be 'fast', use one of: balanced, relaxed, strict"),
        ("redact: {patterns: ['(']}", "1:21: '(' is no RE2 pattern (missing ): (), correct it"),
        ("rules: [./mine.yaml, mien.yaml]", "1:22: there is no file 'mien.yaml', did you mean 'mine.yaml'?"),
        ("rules: [default]", "1:9: 'default' is a pack, name it in upstreams.NAME.packs"),
        ("rules: [{name: a, effect: read}]", "1:9: this is a rule: give a file of rules with --rules, or name its path here"),
        ("rules: ['']", "1:9: '' is not a file, write a path"),
        ("rules: [.]", "1:9: there is no file '.', name a file of rules"),
        ("retention: {blobs: 7d}", "1:13: unknown key 'blobs', use one of: bodies, payloads, rules, sessions"),
        ("retention: {payloads: soon}", "1:23: 'soon' is no amount, write a duration like 200ms, 30s, 2m or 7d, or forever"),
        ("retention: {sessions: 30d}", "1:23: 'retention.sessions' cannot be '30d', use one of: forever"),
        (
            "identity: {principal: [x who]}",
            "1:24: 'x who' names no credential, write a header like x-api-key or *-token, or a cookie like cookie:session",
        ),
        ("upstreams: {s: {url: http://a}}", "1:13: 's' is reserved for turnlog's own paths"),
        (
            "upstreams: {a: {packs: [git]}}",
            "1:16: upstream 'a' has neither a url nor a command, write one of them",
        ),
        (
            "upstreams: {a: {url: http://a, command: [x]}}",
            "1:16: upstream 'a' has both a url and a command, write one of them",
        ),
        (
            "upstreams: {a: {command: [x], transport: http}}",
            "1:42: a command speaks MCP, remove this line",
        ),
        ("upstreams: {a: {url: http://a, packs: [x]}}", "1:40: no pack is called 'x', use one of: "),
        ("upstreams: {a: {url: http://a, packs: [defaul]}}",
         "1:40: no pack is called 'defaul', did you mean 'default'?"),
        ("upstreams: {a: {url: http://a, packs: [identity]}}", "1:40: no pack is called 'identity'"),
        (
            "upstreams: {a: {command: [x], share: some}}",
            "1:38: 'upstreams.a.share' cannot be 'some', use one of: all, session",
        ),
        (
            "upstreams: {a: {command: [x], proxy: none}}",
            "1:38: a command is not called over HTTP, remove this line",
        ),
        (
            "upstreams: {a: {url: http://a, proxy: 'socks5://p:1'}}",
            "1:39: a proxy of the scheme 'socks5' cannot be used here, write env, none, or a URL",
        ),
        (
            "upstreams: {a: {url: https://a, ca: gone.pem}}",
            "1:37: 'gone.pem' holds no certificates that can be read (No such file or directory)",
        ),
        ("upstreams: {a: {url: http://a, share: all}}", "1:39: only a command can be shared, remove this line"),
        ("upstreams: {a: {url: http://a, transport: sse}}",
         "1:43: 'upstreams.a.transport' 'sse' is not supported yet, leave it out"),
        ("upstreams: {a: {url: 'http://127.0.0.1:7411/mcp'}}",
         "1:22: upstream 'a' is the address that turnlog itself listens on, name the server"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_file_line_and_column(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _settings(tmp_path, line + "\n")

    assert str(caught.value).startswith(f"turnlog.yaml:{message}")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Flags(), "--upstream: no tool server is named, write --upstream URL"),
        (Flags(listen="7411"), "--listen: '7411' has no host"),
        (Flags(durability="fast"), "--durability: 'durability' cannot be 'fast'"),
        (Flags(log_level="loud"), "--log-level: 'log_level' cannot be 'loud'"),
        (Flags(rules=("mien.yaml",)), "--rules: there is no file 'mien.yaml', did you mean 'mine.yaml'?"),
        (Flags(rules=("defaul",)),
         "--rules: no pack is called 'defaul', did you mean 'default'? (a file is written as ./defaul)"),
        (Flags(data=""), "--data: '' is not a folder, write a path"),
        (Flags(upstreams=("ftp://a/",)), "--upstream: 'ftp://a/' is not an http or https URL"),
        (Flags(upstreams=(f"turnlog={URL}",)), "--upstream: 'turnlog' is reserved"),
        (Flags(upstreams=(f"={URL}",)), "--upstream: '' cannot name an upstream"),
        (Flags(upstreams=(URL, "http://a/")), "--upstream: two upstreams are called 'default'"),
        (Flags(upstreams=("http://localhost:7411/",)),
         "--upstream: upstream 'default' is the address"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_refused_by_its_name(tmp_path: Path, flags: Flags, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        _settings(tmp_path, flags=flags)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TURNLOG_LIMITS_STORE", "big", "'big' is no amount"),
        ("TURNLOG_LIMITS_STORE", "10", "no store is smaller than 1MiB"),
        ("TURNLOG_LOG_FORMAT", "xml", "'log_format' cannot be 'xml'"),
        ("TURNLOG_REDACT_PATTERNS", "a\n(", "'(' is no RE2 pattern"),
        ("TURNLOG_ALLOW_HOSTS", "a b", "'a b' is not a host"),
        ("TURNLOG_RULES", "absent.yaml", "there is no file 'absent.yaml', name a file of rules"),
        ("TURNLOG_UPSTREAMS", "a=b", "'b' is not an http or https URL"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    tmp_path: Path, variable: str, text: str, message: str
) -> None:
    with pytest.raises(SettingError) as caught:
        _settings(tmp_path, environ={variable: text}, flags=Flags(upstreams=(URL,)))

    assert str(caught.value).startswith(f"{variable}: {message}")


def test_only_a_similar_variable_name_gives_a_warning() -> None:
    environ = {"TURNLOG_LISTN": "a:1", "TURNLOG_PORT": "tcp://10.0.0.1:80", "TURNLOG_DATA": "x"}

    assert misspelt_variable_warnings(environ) == [
        "TURNLOG_LISTN is not a setting, did you mean TURNLOG_LISTEN?"
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /home", "server-filesystem"),
        ("uvx mcp-server-git --repository .", "mcp-server-git"),
        ("python3.11 -m mcp_server_fetch", "mcp_server_fetch"),
        ("node /opt/files/server.js", "server"),
        ("/usr/local/bin/weather.py --port 1", "weather"),
        ("env TOKEN=abc DEBUG=1 tools", "tools"),
        ("docker run -i --rm -e KEY=1 mcp/git", "git"),
        ("uv --quiet run server.py", "server"),
        ("my\tserver!", "my-server"),
        ("turnlog", "command"),
        ("python -", "command"),
        ("/", "command"),
        ("x" * 100, "x" * 64),
    ],
)
def test_a_command_names_its_server(command: str, name: str) -> None:
    words = [command] if "\t" in command else command.split()
    assert name_of_command(words) == name


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["sh", "-c", "exit 7"], "sh"),
        (["env", "A=1", "/bin/bash", "-lc", "kill -9 $$"], "bash"),
        (["python3.11", "-I", "-c", "import server"], "python3.11"),
        (["node", "--eval", "serve()"], "node"),
        (["npx", "-c", "server --port 1"], "npx"),
        (["bash", "-e", "server.sh"], "server.sh"),
        (["python", "-m", "server", "-c", "config"], "server"),
    ],
)
def test_the_text_of_a_script_does_not_name_the_server(words: list[str], name: str) -> None:
    assert name_of_command(words) == name


def test_a_wrap_uses_only_the_settings_of_its_own_upstream(tmp_path: Path) -> None:
    (tmp_path / "turnlog.yaml").write_text(EVERYTHING)
    (tmp_path / "mine.yaml").write_text(RULES)
    flags = Flags(config=str(tmp_path / "turnlog.yaml"), data=str(tmp_path / "here"))
    known = read_wrap_settings(flags, "files", {}, tmp_path)
    other = read_wrap_settings(flags, "other", {}, tmp_path)
    assert list(known.upstreams) == ["files"]
    assert known.upstreams["files"].trust_annotations
    assert dict(other.upstreams) == {}
    assert known.data == other.data == tmp_path / "here"
    bare = read_wrap_settings(Flags(), "other", {}, tmp_path)
    assert bare.data == tmp_path / "turnlog-data"


def test_certificate_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "corp.pem").write_bytes(CERTIFICATE.read_bytes())
    text = "upstreams: {a: {url: https://a.example, ca: corp.pem}, b: {url: https://b.example}}"
    (tmp_path / "conf" / "turnlog.yaml").write_text(text)
    found = read_settings(
        flags=Flags(config="conf/turnlog.yaml"), environ={}, folder=tmp_path
    ).upstreams
    assert (found["a"].ca, found["b"].ca) == (str(tmp_path / "conf" / "corp.pem"), "")


def test_a_file_without_certificates_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "corp.pem").write_text("no certificate")
    (tmp_path / "turnlog.yaml").write_text("upstreams: {a: {url: https://a.example, ca: corp.pem}}")
    with pytest.raises(ConfigError, match=r"'corp\.pem' holds no certificates that can be read"):
        read_settings(flags=Flags(config="turnlog.yaml"), environ={}, folder=tmp_path)
