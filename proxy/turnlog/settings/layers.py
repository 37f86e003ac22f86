"""Reads the `Settings` from defaults, file, environment and flags; the later wins.

Each layer is plain data that is validated on its own, so that an error can name the line, the
variable or the flag.
"""

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Final

from msgspec import Struct, structs, to_builtins

from turnlog.packs import load, shape
from turnlog.packs.errors import ConfigError, SettingError
from turnlog.packs.expand import LARGEST, expand, has_variables
from turnlog.packs.load import Document
from turnlog.packs.shape import MismatchError, Plain
from turnlog.packs.sources import RuleSource, pack_or_file, rule_file
from turnlog.store.default_folder import default_place

from .model import Settings, Transport, UpstreamSettings
from .signatures import read_key, with_absolute_files
from .upstream_url import UpstreamUrl
from .values import is_loop, proxy_setting, upstream_url

DEFAULT_UPSTREAM = "default"
"""Name of an upstream that was given without a name."""

LATER = frozenset({"upstreams.*.transport=sse"})
"""Settings of a future version: refused, since accepting them would promise what does not work."""

_SETTABLE: Final = (
    *("listen", "allow_hosts", "allow_origins", "data", "durability", "upstreams", "rules"),
    *("limits.record", "limits.store", "limits.when_full"),
    *("retention.payloads", "retention.bodies", "retention.sessions"),
    *("redact.headers", "redact.keys", "redact.patterns", "identity.principal"),
    *("never_twice.join_after", "never_twice.cancel_grace", "never_twice.drain"),
    *("never_twice.window", "provenance.inputs", "log_format", "log_level"),
)
VARIABLES: Final = {
    f"TURNLOG_{path.replace('.', '_').upper()}": tuple(path.split(".")) for path in _SETTABLE
}
"""Environment variables. Lists are split at commas, upstreams at blanks, patterns at lines."""
CONFIG_VARIABLE = "TURNLOG_CONFIG"

_PREFIX = "TURNLOG_"
_READERS: Final = {"url": upstream_url, "proxy": proxy_setting}
_COMMA_LISTS = frozenset({"allow_hosts", "allow_origins", "headers", "keys", "principal", "rules"})


class Flags(Struct, frozen=True, kw_only=True):
    """The options of the command line; `None` for an option that was not given."""

    config: str | None = None
    upstreams: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    listen: str | None = None
    data: str | None = None
    durability: str | None = None
    log_format: str | None = None
    log_level: str | None = None


class _Layer(Struct, frozen=True, kw_only=True):
    """The plain data of one source, and the name of the source."""

    name: str
    data: Plain
    document: Document | None = None

    def error(self, steps: tuple[str, ...], message: str) -> ConfigError | SettingError:
        if self.document is not None:
            return self.document.error(steps, message)
        return SettingError(self.name, message)


def read_settings(
    flags: Flags, environ: Mapping[str, str] = os.environ, folder: Path | None = None
) -> Settings:
    """Return the settings in force. Raises `ConfigError` and `SettingError`.

    `folder` is the working directory. Relative paths of variables and flags begin there, those in
    a file beside that file.
    """
    folder = folder or Path.cwd()
    layers = _layers(flags, environ, folder)
    settings = _combine(layers, environ, folder)
    if not settings.upstreams:
        raise SettingError("--upstream", "no tool server is named, write --upstream URL")
    for name, upstream in settings.upstreams.items():
        _check_upstream(name, upstream, _layer_naming(layers, name))
        if upstream.url and is_loop(settings.listen, upstream.url.text):
            steps = ("upstreams", name, "url")
            source = next(layer for layer in reversed(layers) if shape.value_at(layer.data, steps))
            message = (
                f"upstream {name!r} is the address that turnlog itself listens on, name the server"
            )
            raise source.error(steps, message)
    return settings


def read_wrap_settings(
    flags: Flags, server: str, environ: Mapping[str, str] = os.environ, folder: Path | None = None
) -> Settings:
    """Return the settings for one wrapped command; of the upstreams only the one called `server`."""
    settings = read_store_settings(flags, environ, folder)
    known = {name: up for name, up in settings.upstreams.items() if name == server}
    return structs.replace(settings, upstreams=known)


def read_store_settings(
    flags: Flags, environ: Mapping[str, str] = os.environ, folder: Path | None = None
) -> Settings:
    """Return the settings for a command that forwards nothing: no upstream need be named."""
    folder = folder or Path.cwd()
    return _combine(_layers(flags, environ, folder), environ, folder)


def config_file(flags: Flags) -> Path | None:
    """Return the configuration file named by a flag or the environment, if any."""
    config = flags.config or os.environ.get(CONFIG_VARIABLE)
    return Path(config).expanduser().absolute() if config else None


def is_set(section: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a variable sets something of a section of the settings."""
    return any(environ.get(name) for name, path in VARIABLES.items() if path[0] == section)


def misspelt_variable_warnings(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like a misspelt setting."""
    # Only close ones: for a service called turnlog, Kubernetes sets TURNLOG_PORT and the like.
    known = {name.removeprefix(_PREFIX) for name in (*VARIABLES, CONFIG_VARIABLE)}
    given = sorted(name.removeprefix(_PREFIX) for name in environ if name.startswith(_PREFIX))
    close = ((name, get_close_matches(name, known, n=1)) for name in given if name not in known)
    return [
        f"{_PREFIX}{name} is not a setting, did you mean {_PREFIX}{hit[0]}?"
        for name, hit in close
        if hit
    ]


def _layers(flags: Flags, environ: Mapping[str, str], folder: Path) -> list[_Layer]:
    config = flags.config or environ.get(CONFIG_VARIABLE)
    layers = [_file_layer(config, environ, folder)] if config else []
    return [*layers, *_variable_layers(environ, folder), *_flag_layers(flags, folder)]


def _file_layer(config: str, environ: Mapping[str, str], folder: Path) -> _Layer:
    path = folder / Path(config).expanduser()
    document = _expanded(load.read(path, shown=config), path.parent, environ)
    settings = load.convert(document, Settings, later=LATER)
    data = document.data
    if "data" in data:
        data = {**data, "data": str(path.absolute().parent / settings.data)}
    if "rules" in data:
        data = {**data, "rules": _found_rules(document, config, folder)}
    if folders := {name: up.cwd for name, up in settings.upstreams.items() if up.cwd}:
        beside = path.absolute().parent
        there = {
            name: {"cwd": str(beside / Path(cwd).expanduser())} for name, cwd in folders.items()
        }
        data = _merged(data, {"upstreams": there})
    for name, upstream in settings.upstreams.items():
        data = _merged(data, _with_keys(document, path.parent, name, upstream))
    if authorities := {name: up.ca for name, up in settings.upstreams.items() if up.ca}:
        data = _merged(data, {"upstreams": _certificates(document, path.parent, authorities)})
    return _Layer(name=config, data=data, document=document)


def _expanded(document: Document, beside: Path, environ: Mapping[str, str]) -> Document:
    """Return a configuration with `${...}` expanded in `url`, `proxy` and `env` of upstreams.

    Relative paths begin beside the file.
    """
    # Not in `command`: the program that is run must be visible in the file.
    if not _mapping_in(document.data, "upstreams"):
        return document

    def read(name: str) -> bytes:
        return load.read_regular(beside / Path(name).expanduser(), LARGEST + 1)

    data = document.data
    for steps, text in _expandable(document.data):
        try:
            found = expand(text, environ, read)
        except ValueError as error:
            raise document.error(steps, str(error)) from None
        try:
            _READERS.get(steps[-1], str)(found.text)
        except ValueError:
            # The reader's own message would show the expanded value, which may be a secret.
            message = f"{text!r} does not expand to a value that {steps[-1]!r} can have, correct it"
            raise document.error(steps, message) from None
        is_url = steps[-1] == "url"
        value = UpstreamUrl(found.text, found.values) if is_url else found.text
        data = _merged(data, _nested(steps, value))
    return structs.replace(document, data=data)


def _expandable(data: Plain) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and text of each value of a configuration that holds a `${...}`."""
    for name, upstream in _mapping_in(data, "upstreams").items():
        values: dict[tuple[str, ...], Plain] = {
            ("url",): shape.value_at(upstream, ("url",)),
            ("proxy",): shape.value_at(upstream, ("proxy",)),
            **{("env", key): text for key, text in _mapping_in(upstream, "env").items()},
        }
        for steps, text in values.items():
            if isinstance(text, str) and has_variables(text):
                yield ("upstreams", name, *steps), text


def _mapping_in(data: Plain, name: str) -> Mapping[str, Plain]:
    """Return the mapping under `name`; empty when there is none."""
    found = data.get(name) if shape.is_mapping(data) else None
    return found if shape.is_mapping(found) else {}


def _found_rules(document: Document, config: str, folder: Path) -> list[RuleSource]:
    """Return the rule files that a configuration names; relative paths begin beside it."""
    beside = Path(config).parent
    found: list[RuleSource] = []
    for number, text in enumerate(document.data["rules"]):
        shown = str(beside / text)
        try:
            found.append(rule_file(text, folder / beside.expanduser(), shown=shown))
        except ValueError as error:
            raise document.error(("rules", number), str(error)) from None
    return found


def _certificates(
    document: Document, beside: Path, authorities: Mapping[str, str]
) -> dict[str, Plain]:
    """Return the absolute paths of the upstreams' certificate files, once they can be loaded."""
    from ssl import create_default_context  # importing it takes 10 ms

    found: dict[str, Plain] = {}
    for name, text in authorities.items():
        file = str((beside / Path(text).expanduser()).absolute())
        try:
            create_default_context(cafile=file)
        except OSError as error:  # SSLError is one
            reason = error.strerror or str(error)
            message = f"{text!r} holds no certificates that can be read ({reason}), name a PEM file"
            raise document.error(("upstreams", name, "ca"), message) from None
        found[name] = {"ca": file}
    return found


def _with_keys(
    document: Document, beside: Path, name: str, upstream: UpstreamSettings
) -> dict[str, Plain]:
    """Return the keys of an upstream's signatures with absolute paths, once they can be read."""
    found: dict[str, Plain] = {}
    for section, settings in (("signatures", upstream.signatures), ("jws", upstream.jws)):
        if settings is None:
            continue
        keys = with_absolute_files(settings.keys, beside)
        for number, key in enumerate(keys):
            steps = ("upstreams", name, section, "keys", number, "file")
            given = settings.keys[number].file
            advice = "name a file with a public key, or with the shared secret"
            try:
                read_key(key)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                message = f"{given!r} cannot be read ({reason}), {advice}"
                raise document.error(steps, message) from None
            except ValueError as error:
                raise document.error(steps, f"{given!r} holds {error}, {advice}") from None
        found[section] = {"keys": to_builtins(keys)}
    return {"upstreams": {name: found}} if found else {}


def _variable_layers(environ: Mapping[str, str], folder: Path) -> list[_Layer]:
    given = ((name, steps, environ.get(name, "").strip()) for name, steps in VARIABLES.items())
    layers = [_text_layer(name, steps, text) for name, steps, text in given if text]
    return [_with_rules(layer, folder) for layer in layers]


def _flag_layers(flags: Flags, folder: Path) -> list[_Layer]:
    single = structs.asdict(flags)
    del single["config"], single["upstreams"], single["rules"]
    layers = [
        _text_layer("--" + field.replace("_", "-"), (field,), text)
        for field, text in single.items()
        if text is not None
    ]
    if flags.upstreams:
        layers.append(_upstreams_layer("--upstream", flags.upstreams))
    if flags.rules:
        layers.append(_with_rules(_Layer(name="--rules", data={"rules": flags.rules}), folder))
    return layers


def _text_layer(source: str, steps: tuple[str, ...], text: str) -> _Layer:
    if steps == ("upstreams",):
        return _upstreams_layer(source, tuple(text.split()))
    value: Plain = text
    if steps[-1] in _COMMA_LISTS:
        value = [item.strip() for item in text.split(",") if item.strip()]
    elif steps[-1] == "patterns":
        value = text.splitlines()
    return _checked(_Layer(name=source, data=_nested(steps, value)))


def _nested(steps: tuple[str, ...], value: Plain) -> Plain:
    """Return mappings in each other that hold a value at `steps`."""
    return reduce(lambda inner, step: {step: inner}, reversed(steps), value)


def _with_rules(layer: _Layer, folder: Path) -> _Layer:
    """Return a layer with the packs and rule files that it names, once they are found."""
    named = layer.data.get("rules")
    if named is None:
        return layer
    try:
        found = [pack_or_file(text, folder) for text in named]
    except ValueError as error:
        raise layer.error((), str(error)) from None
    return structs.replace(layer, data={"rules": found})


def _upstreams_layer(source: str, texts: tuple[str, ...]) -> _Layer:
    upstreams: dict[str, Plain] = {}
    for text in texts:
        name, url = _split_upstream(text)
        if name in upstreams:
            raise SettingError(
                source, f"two upstreams are called {name!r}, write NAME=URL for each"
            )
        upstreams[name] = {"url": url}
    return _checked(_Layer(name=source, data={"upstreams": upstreams}))


def _split_upstream(text: str) -> tuple[str, str]:
    """Split `[NAME=]URL`; a `=` after the `://` belongs to the URL."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "://" not in name else (DEFAULT_UPSTREAM, text)


def _checked(layer: _Layer) -> _Layer:
    try:
        shape.convert(layer.data, Settings, later=LATER)
    except MismatchError as error:
        raise SettingError(layer.name, error.message) from None
    return layer


def _combine(layers: list[_Layer], environ: Mapping[str, str], folder: Path) -> Settings:
    data: Plain = {}
    for layer in layers:
        data = _merged(data, layer.data)
    # Rules add up. Earlier ones win, so those of a later layer come first.
    data["rules"] = [rule for layer in reversed(layers) for rule in layer.data.get("rules", ())]
    settings = shape.convert(data, Settings, later=LATER)
    place = settings.data if "data" in data else default_place(environ, folder).path
    return structs.replace(settings, data=(folder / place).absolute())


def _merged(below: Plain, above: Plain) -> Plain:
    if not shape.is_mapping(below) or not shape.is_mapping(above):
        return above
    return below | {key: _merged(below.get(key), value) for key, value in above.items()}


_ONLY_WITH_URL: Final = dict.fromkeys(
    ("proxy", "ca", "signatures", "pin_tls"), "a command is not called over HTTP"
)
_ONLY_WITH_COMMAND: Final = {
    "share": "only a command can be shared",
    "env": "only a command is given variables",
    "cwd": "only a command is run in a folder",
}


def _check_upstream(name: str, upstream: UpstreamSettings, layer: _Layer) -> None:
    """Refuse an upstream without exactly one destination, or with keys of the other kind."""
    steps = ("upstreams", name)
    if bool(upstream.url) == bool(upstream.command):
        both = "both a url and a command" if upstream.url else "neither a url nor a command"
        raise layer.error(steps, f"upstream {name!r} has {both}, write one of them")
    if upstream.command and upstream.transport is Transport.HTTP:
        raise layer.error((*steps, "transport"), "a command speaks MCP, remove this line")
    given = layer.data["upstreams"][name]
    for key, message in (_ONLY_WITH_URL if upstream.command else _ONLY_WITH_COMMAND).items():
        if key in given:
            raise layer.error((*steps, key), f"{message}, remove this line")
    if upstream.pin_tls and upstream.url and not upstream.url.text.lower().startswith("https:"):
        raise layer.error((*steps, "pin_tls"), "the url is not https, so there is no key to pin")
    if upstream.cwd and not Path(upstream.cwd).is_dir():
        raise layer.error((*steps, "cwd"), f"there is no folder {upstream.cwd!r}, make it")


def _layer_naming(layers: list[_Layer], upstream: str) -> _Layer:
    """Return the last layer that has an upstream of this name."""
    return next(one for one in reversed(layers) if upstream in one.data.get("upstreams", {}))
