"""A labelled corpus for the look-up of values: sessions of made-up results, and arguments of calls.

Each case says which outputs of its session contain the value, and how the value was changed on the way
into the arguments; or that the value occurs in none, although all its parts may. A seed fixes all of it.
"""

import base64
import csv
import io
import json
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, TypeVar
from urllib.parse import quote

from msgspec import Struct

from turnlog.core.kinds import MatchEvidence, ValueOrigin
from turnlog.provenance.values import SessionValues, ValueSource

NOUNS: Final = ["account", "address", "agent", "alarm", "archive", "area", "article", "asset", "backup", "balance", "banner", "batch", "board", "bottle", "branch", "bridge", "budget", "building", "cabinet", "camera", "capacity", "carrier", "catalog", "ceiling", "channel", "chapter", "client", "clinic", "clock", "cluster", "column", "committee", "company", "component", "contract", "corner", "counter", "country", "courier", "customer", "deadline", "delivery", "department", "deposit", "device", "director", "district", "document", "door", "driver", "editor", "engine", "envelope", "error", "estimate", "event", "factory", "failure", "farm", "field", "filter", "floor", "folder", "forecast", "garden", "gateway", "guide", "harbour", "heater", "holiday", "hospital", "house", "index", "inspector", "invoice", "island", "journal", "kitchen", "label", "ladder", "language", "laptop", "lawyer", "leader", "ledger", "lesson", "letter", "library", "licence", "machine", "manager", "market", "meadow", "member", "memory", "message", "method", "mirror", "module", "monitor", "morning", "motor", "museum", "network", "notice", "number", "object", "office", "operator", "orchard", "order", "package", "painter", "parcel", "partner", "password", "payment", "pension", "period", "pharmacy", "picture", "pipeline", "platform", "pocket", "policy", "portal", "position", "printer", "problem", "process", "product", "profile", "project", "queue", "quarter", "railway", "reason", "receipt", "record", "region", "report", "request", "resident", "response", "result", "river", "road", "rocket", "roof", "school", "screen", "season", "secret", "section", "sensor", "server", "service", "session", "shelf", "signal", "station", "statement", "stream", "street", "student", "summary", "supplier", "surface", "survey", "switch", "system", "table", "teacher", "template", "tenant", "ticket", "timer", "token", "tower", "trader", "trailer", "tunnel", "tutor", "update", "user", "valley", "vehicle", "vendor", "village", "visitor", "voucher", "warehouse", "window", "winter", "worker"]  # fmt: skip
VERBS: Final = ["accepts", "adjusts", "answers", "approves", "archives", "arranges", "blocks", "borrows", "breaks", "builds", "cancels", "carries", "changes", "checks", "clears", "closes", "collects", "compares", "completes", "confirms", "connects", "copies", "corrects", "counts", "covers", "creates", "delays", "deletes", "delivers", "describes", "divides", "drops", "edits", "empties", "exceeds", "expects", "exports", "fetches", "fills", "filters", "finds", "follows", "forwards", "freezes", "gathers", "guards", "handles", "hides", "holds", "ignores", "imports", "includes", "inspects", "keeps", "labels", "leaves", "limits", "lists", "loads", "locks", "marks", "measures", "merges", "mounts", "moves", "names", "needs", "notes", "offers", "opens", "orders", "passes", "pauses", "plans", "prints", "protects", "pulls", "pushes", "queues", "reads", "refuses", "rejects", "releases", "removes", "renames", "repairs", "repeats", "replaces", "reports", "requests", "resets", "returns", "reviews", "rotates", "saves", "scans", "searches", "sells", "sends", "shares", "shows", "signs", "skips", "sorts", "splits", "starts", "stops", "stores", "supports", "tests", "touches", "tracks", "trusts", "updates", "uses", "verifies", "visits", "warns", "watches", "writes"]  # fmt: skip
ADJECTIVES: Final = ["able", "active", "ancient", "annual", "basic", "bitter", "blank", "bright", "broken", "brief", "busy", "careful", "cheap", "clean", "clear", "close", "cold", "common", "complete", "constant", "cool", "correct", "costly", "current", "daily", "damp", "dark", "deep", "different", "dirty", "double", "dry", "dull", "early", "easy", "empty", "equal", "exact", "external", "extra", "fair", "false", "famous", "fast", "final", "first", "flat", "foreign", "fragile", "free", "fresh", "full", "general", "gentle", "global", "good", "grand", "green", "grey", "half", "hard", "heavy", "hidden", "high", "hollow", "idle", "inner", "internal", "joint", "large", "late", "lazy", "left", "light", "likely", "local", "long", "loose", "loud", "low", "major", "manual", "minor", "missing", "mobile", "modern", "monthly", "narrow", "natural", "neat", "new", "next", "noisy", "normal", "odd", "old", "open", "outer", "pale", "partial", "past", "plain", "popular", "present", "private", "proper", "public", "quick", "quiet", "rare", "ready", "recent", "red", "regular", "remote", "rich", "right", "rough", "round", "second", "secure", "serious", "shared", "sharp", "short", "silent", "simple", "single", "slow", "small", "smooth", "soft", "solid", "spare", "special", "stable", "steady", "steep", "strange", "strict", "strong", "sudden", "suitable", "sweet", "tall", "thick", "thin", "third", "tidy", "tight", "tiny", "total", "true", "upper", "urgent", "usual", "vacant", "valid", "warm", "weak", "weekly", "wet", "white", "whole", "wide", "wild", "wooden", "wrong", "yearly", "yellow", "young"]  # fmt: skip
PREPOSITIONS: Final = [
    "after",
    "before",
    "behind",
    "beside",
    "between",
    "during",
    "for",
    "from",
    "in",
    "near",
    "of",
    "on",
    "over",
    "under",
    "with",
]
NAMES: Final = [
    "Ada",
    "Amir",
    "Anna",
    "Bela",
    "Carlos",
    "Chen",
    "Dana",
    "Elif",
    "Emeka",
    "Farah",
    "Greta",
    "Hana",
    "Igor",
    "Ines",
    "Jonas",
    "Kaja",
    "Lars",
    "Lucia",
    "Marek",
    "Mina",
    "Nadia",
    "Olga",
    "Pedro",
    "Priya",
    "Rosa",
    "Samir",
    "Sofia",
    "Tariq",
    "Uma",
    "Viktor",
    "Wanda",
    "Yara",
    "Zoe",
]
SURNAMES: Final = [
    "Abara",
    "Becker",
    "Castillo",
    "Dvorak",
    "Eriksen",
    "Ferrari",
    "Gruber",
    "Haddad",
    "Ivanova",
    "Jansen",
    "Kowalski",
    "Lindqvist",
    "Moreau",
    "Nakamura",
    "Okafor",
    "Petrov",
    "Quintero",
    "Rossi",
    "Schneider",
    "Takahashi",
    "Ulrich",
    "Varga",
    "Weber",
    "Xavier",
    "Yilmaz",
    "Zhang",
]
DOMAINS: Final = ("example.com", "example.org", "mail.example.net", "corp.example")
HOSTS: Final = ("api.example.com", "files.example.org:8443", "build.corp.example", "example.net")
FOLDERS: Final = [
    "srv",
    "var",
    "home",
    "opt",
    "data",
    "src",
    "lib",
    "app",
    "logs",
    "config",
    "reports",
    "tests",
    "tools",
    "docs",
    "cache",
]
ENDINGS: Final = ("py", "json", "csv", "log", "md", "txt", "yaml", "tar.gz", "pdf")
PREFIXES: Final = ("ORD", "TCK", "INV", "JIRA", "PR")
LETTERS: Final = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
LEVELS: Final = ("INFO", "WARN", "ERROR", "DEBUG")
T = TypeVar("T")


class Value(Struct, frozen=True):
    """A value as it stands in an output."""

    kind: str
    text: str


class Case(Struct, frozen=True, kw_only=True):
    """The arguments of a call, of which the value at `/value` is judged."""

    change: str
    """How the value was changed on the way; or what it only resembles."""
    kind: str
    arguments: bytes
    outputs: frozenset[int]
    """The numbers of the outputs that contain it; empty if none does."""


class Session(Struct, frozen=True):
    """The outputs of a session in order, and calls after them."""

    outputs: list[bytes]
    cases: list[Case]


# -- values ------------------------------------------------------------------------------------


class Maker:
    """A source of values and sentences."""

    def __init__(self, seed: str) -> None:
        self.random: Final = Random(seed)

    def pick(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def of(self, characters: str, count: int) -> str:
        return "".join(self.pick(characters) for _ in range(count))

    def digits(self, low: int, high: int) -> str:
        return self.of("123456789", 1) + self.of("0123456789", self.between(low, high) - 1)

    def hexadecimal(self, count: int) -> str:
        # With digits in any case, as hashes and ids of this length have them.
        return self.of("0123456789", 2) + self.of("0123456789abcdef", count - 2)

    def path(self) -> str:
        folders = [self.pick((*FOLDERS, self.pick(NOUNS))) for _ in range(self.between(1, 4))]
        name = self.pick(NOUNS) + self.pick(("", f"_{self.pick(NOUNS)}", f"-{self.digits(2, 2)}"))
        start = self.pick(("/", "/", ""))
        return f"{start}{'/'.join(folders)}/{name}.{self.pick(ENDINGS)}"

    def identifier(self) -> str:
        tail = "-".join(self.hexadecimal(count) for count in (8, 4, 4, 4, 12))
        return self.pick(
            (
                f"{self.pick(PREFIXES)}-{self.digits(3, 6)}",
                f"{self.pick(NOUNS)}_{self.hexadecimal(7)}",
                tail,
                f"{self.pick(NOUNS)}-{self.pick(NOUNS)}-{self.digits(2, 3)}",
                f"usr_{self.of(LETTERS, 12)}{self.digits(2, 2)}",
            )
        )

    def url(self) -> str:
        folders = "/".join(self.pick(NOUNS) for _ in range(self.between(1, 3)))
        query = self.pick(("", f"?page={self.between(1, 9)}&ref={self.identifier()}"))
        return f"https://{self.pick(HOSTS)}/{folders}/{self.identifier()}{query}"

    def email(self) -> str:
        name = f"{self.pick(NAMES)}{self.pick('._-')}{self.pick(SURNAMES)}".lower()
        return f"{name}{self.between(1, 99)}@{self.pick(DOMAINS)}"

    def digest(self) -> str:
        prefix, count = self.pick((("", 40), ("sha256:", 64), ("", 10)))
        return prefix + self.hexadecimal(count)

    def number(self) -> str:
        return self.digits(4, 9) + self.pick(("", "", f".{self.digits(2, 2)}"))

    def date(self) -> str:
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.between(0, 31_000_000))
        return f"{moment:%Y-%m-%dT%H:%M:%S}{self.pick(('Z', f'.{self.digits(3, 3)}Z', '+00:00'))}"

    def phrase(self) -> str:
        return self.pick(
            (
                f"{self.pick(NAMES)} {self.pick(NAMES)} {self.pick(SURNAMES)}",
                f"{self.pick(ADJECTIVES)} {self.pick(NOUNS)} {self.pick(VERBS)} {self.pick(NOUNS)}",
                f"{self.pick(NOUNS)} {self.pick(NOUNS)} {self.between(10, 99)}",
            )
        )

    def sentence(self) -> str:
        words = [self.the(), self.pick(ADJECTIVES), self.pick(NOUNS), self.pick(VERBS)]
        words += [self.the(), self.pick(NOUNS)]
        for _ in range(self.between(0, 3)):
            words += [self.pick(PREPOSITIONS), self.the()]
            words += [*self.pick(([], [self.pick(ADJECTIVES)])), self.pick(NOUNS)]
        if self.between(0, 2) == 0:
            words[-1] += f", and {self.the()} {self.pick(NOUNS)} {self.pick(VERBS)} it"
        return " ".join(words).capitalize() + "."

    def the(self) -> str:
        return self.pick(("the", "the", "a", "each", "this", "our", "every", "no"))

    def prose(self) -> str:
        return " ".join(self.sentence() for _ in range(self.between(2, 4)))


Make = Callable[[Maker], str]
KINDS: Final[Mapping[str, Make]] = {
    "path": Maker.path,
    "id": Maker.identifier,
    "url": Maker.url,
    "email": Maker.email,
    "hash": Maker.digest,
    "number": Maker.number,
    "date": Maker.date,
    "phrase": Maker.phrase,
    "prose": Maker.prose,
}

# -- results -----------------------------------------------------------------------------------

Row = dict[str, str]


def _rows(maker: Maker) -> list[Row]:
    kinds = [kind for kind in KINDS if kind not in ("prose", "url") or maker.between(0, 3) == 0]
    columns = maker.random.sample(kinds, maker.between(3, 6))
    return [
        {kind: KINDS[kind](maker) for kind in columns if kind != "prose"}
        for _ in range(maker.between(2, 12))
    ]


def _values(rows: list[Row]) -> list[Value]:
    return [Value(kind, text) for row in rows for kind, text in row.items()]


def _as_markdown(rows: list[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _as_columns(rows: list[Row]) -> str:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _as_tabs(rows: list[Row]) -> str:
    return "\n".join("\t".join(row.values()) for row in rows)


STYLES: Final = (_as_markdown, _as_csv, _as_columns, _as_tabs)

Result = tuple[bytes, list[Value]]


def _result(text: str, **other: object) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}], **other}).encode()


def table(maker: Maker) -> Result:
    rows = _rows(maker)
    return _result(maker.pick(STYLES)(rows)), _values(rows)


def log(maker: Maker) -> Result:
    rows = [
        {kind: KINDS[kind](maker) for kind in ("date", "path", "id", "number")}
        for _ in range(maker.between(3, 15))
    ]
    text = "\n".join(_log_line(maker, row) for row in rows)
    return maker.pick((text.encode(), _result(text))), _values(rows)


def _log_line(maker: Maker, row: Row) -> str:
    said = f"{row['date']} {maker.pick(LEVELS)} [{maker.pick(NOUNS)}] {maker.sentence().lower()}"
    return maker.pick(
        (
            f"{said} file={row['path']}:{maker.between(1, 400)} id={row['id']} took {row['number']}us",
            f"{said} ({row['path']}) request {row['id']}, {row['number']} bytes",
        )
    )


def structured(maker: Maker) -> Result:
    rows = _rows(maker)
    items = [
        {
            kind: json.loads(text) if kind == "number" and maker.between(0, 1) else text
            for kind, text in row.items()
        }
        for row in rows
    ]
    whole = {"items": items, "total": len(items), "next": None, "state": maker.pick(NOUNS)}
    text = json.dumps(whole, indent=maker.pick((None, 2, 4)))
    content = maker.pick(
        (
            _result(text),
            _result(text, structuredContent=whole),
            json.dumps(whole).encode(),
        )
    )
    return content, _values(rows)


def prose(maker: Maker) -> Result:
    values: list[Value] = []
    paragraphs: list[str] = []
    for _ in range(maker.between(1, 4)):
        passage = Value("prose", maker.prose())
        kind = maker.pick(("path", "id", "url", "email", "number", "hash"))
        value = Value(kind, KINDS[kind](maker))
        values += [passage, value]
        line = maker.pick(("See {} for more.", "It is {}.", "Ask about {}, please.", "Use ({})."))
        paragraphs.append(f"{passage.text} {line.format(value.text)}")
    width = maker.pick((60, 72, 79, 10_000))
    text = "\n\n".join(
        textwrap.fill(p, width, break_long_words=False, break_on_hyphens=False) for p in paragraphs
    )
    return _result(text), values


def code(maker: Maker) -> Result:
    row = {kind: KINDS[kind](maker) for kind in ("path", "url", "id", "number", "phrase", "email")}
    one, other, verb = maker.pick(NOUNS), maker.pick(NOUNS), maker.pick(VERBS)
    python = f"""import {one}
from {other} import {verb}_{one}  # by {row["email"]}

SOURCE = "{row["path"]}"
LIMIT = {row["number"]}


def {verb}_{other}({one}: str) -> None:
    client = {one}.connect('{row["url"]}', key='{row["id"]}')
    if client.{verb}(LIMIT) != "{row["phrase"]}":
        raise ValueError(f"{maker.sentence().rstrip(".")} {{SOURCE}}")
"""
    script = f"""// {maker.sentence()} {row["email"]}
const {one} = require('{other}');
const options = {{ source: `{row["path"]}`, limit: {row["number"]}, key: "{row["id"]}" }};
export async function {verb}({one}) {{
  await fetch("{row["url"]}");  // {row["phrase"]}
  return {one}.{verb}(options);
}}
"""
    settings = f"""{one}:
  source: {row["path"]}
  {other}: {row["url"]}
  key: '{row["id"]}'
  limit: {row["number"]}
  title: "{row["phrase"]}"
  owner: {row["email"]}
"""
    return _result(maker.pick((python, script, settings))), _values([row])


def listing(maker: Maker) -> Result:
    """Return what find, grep, ls or git print."""
    values: list[Value] = []
    lines: list[str] = []
    style = maker.pick(("find", "grep", "ls", "git log"))
    for _ in range(maker.between(3, 20)):
        path, number = Value("path", maker.path()), Value("number", maker.digits(4, 7))
        digest, email = Value("hash", maker.hexadecimal(40)), Value("email", maker.email())
        date, name = Value("date", maker.date()), maker.pick(NAMES)
        if style == "find":
            lines.append(path.text)
            values.append(path)
        elif style == "grep":
            lines.append(f"{path.text}:{maker.between(1, 900)}:    {maker.sentence()}")
            values.append(path)
        elif style == "ls":
            lines.append(f"-rw-r--r-- 1 root root {number.text} Nov 30 04:15 {path.text}")
            values += [path, number]
        else:
            lines += [f"commit {digest.text}", f"Author: {name} <{email.text}>"]
            lines += [f"Date:   {date.text}", "", f"    {maker.sentence()}", ""]
            values += [digest, email, date]
    return _result("\n".join(lines)), values


def page(maker: Maker) -> Result:
    rows = [{kind: KINDS[kind](maker) for kind in ("url", "phrase", "id")} for _ in range(5)]
    items = "\n".join(
        f'<li class="{maker.pick(NOUNS)}"><a href="{row["url"]}">{row["phrase"]}</a>'
        f"<span>{row['id']}</span></li>"
        for row in rows
    )
    text = f"<!doctype html>\n<html><body><h1>{maker.sentence()}</h1><ul>\n{items}\n</ul></body></html>"
    return text.encode(), [value for value in _values(rows) if "&" not in value.text]


SHAPES: Final = (table, log, structured, prose, code, listing, page)

# -- changes -----------------------------------------------------------------------------------

Change = Callable[[Maker, Value], object]
SHORT: Final = ("path", "id", "url", "email", "hash", "number", "date")
TEXTS: Final = (*SHORT, "phrase")
ALL: Final = (*TEXTS, "prose")


def _copied(_: Maker, value: Value) -> object:
    return value.text


def _in_a_list(maker: Maker, value: Value) -> object:
    return [maker.pick(NOUNS), {"name": value.text}]


def _as_a_number(_: Maker, value: Value) -> object:
    return json.loads(value.text)


def _with_separators(maker: Maker, value: Value) -> object:
    whole, _, fraction = value.text.partition(".")
    return f"{int(whole):,}".replace(",", maker.pick(",,'_")) + (f".{fraction}" if fraction else "")


def _with_zeros(maker: Maker, value: Value) -> object:
    return value.text + ("0" if "." in value.text else maker.pick((".0", ".00")))


def _recased(maker: Maker, value: Value) -> object:
    return maker.pick((value.text.upper(), value.text.title(), value.text.swapcase()))


def _in_wide_letters(_: Maker, value: Value) -> object:
    return "".join(chr(ord(c) + 0xFEE0) if "!" < c <= "~" else c for c in value.text)


def _in_a_url(maker: Maker, value: Value) -> object:
    host, safe = maker.pick(HOSTS), maker.pick(("", "/:@"))
    text = quote(value.text, safe=safe)
    return maker.pick(
        (
            f"https://{host}/{maker.pick(NOUNS)}?q={text}",
            f"https://{host}/{maker.pick(NOUNS)}?page=2&{maker.pick(NOUNS)}={text}&x=1",
            f"https://{host}/{maker.pick(NOUNS)}/{quote(value.text, safe='')}",
        )
    )


def _in_a_shell_line(maker: Maker, value: Value) -> object:
    text = maker.pick((shlex.quote(value.text), f'"{value.text}"', f"'{value.text}'"))
    return maker.pick(
        (
            f"cat {text} | head -n 5",
            f"grep -rn {text} . > out.txt",
            f"./run --input={text} --verbose",
            f"cd work && X={text} make; echo done",
            f"curl -d {text} localhost",
        )
    )


def _in_a_sentence(maker: Maker, value: Value) -> object:
    text = maker.pick((value.text, f'"{value.text}"', f"({value.text})"))
    before, after = maker.sentence().rstrip("."), maker.sentence()
    return f"{before}: {text}{maker.pick(',.;')} {after}"


def _in_json(maker: Maker, value: Value) -> object:
    item = {maker.pick(NOUNS): value.text, "n": 1, "of": [maker.pick(NOUNS)]}
    return json.dumps(item, indent=maker.pick((None, 2)))


def _in_code(maker: Maker, value: Value) -> object:
    return maker.pick(
        (
            f'{maker.pick(NOUNS)} = load("{value.text}", mode="r")\n',
            f"const {maker.pick(NOUNS)} = ['{value.text}'];",
            f"{maker.pick(NOUNS)}:\n  - {value.text}\n",
        )
    )


def _in_columns(maker: Maker, value: Value) -> object:
    rows = [{"name": maker.pick(NOUNS), "value": value.text, "n": str(maker.between(1, 9))}]
    return maker.pick(STYLES)(rows)


def _rewrapped(maker: Maker, value: Value) -> object:
    lines = textwrap.wrap(value.text, maker.pick((30, 45, 100)))
    return maker.pick(("", "> ", "# ", "    ", "// ")).join(["", *(f"{line}\n" for line in lines)])


def _excerpt(maker: Maker, value: Value) -> object:
    words = value.text.split()
    start = maker.between(0, max(len(words) - 8, 0))
    return f"{maker.sentence()} {' '.join(words[start : start + 8])} {maker.sentence()}"


CHANGES: Final[Mapping[str, tuple[Change, tuple[str, ...]]]] = {
    "copied": (_copied, ALL),
    "in a list": (_in_a_list, ALL),
    "as a number": (_as_a_number, ("number",)),
    "thousands separators": (_with_separators, ("number",)),
    "zeros at the end": (_with_zeros, ("number",)),
    "other case": (_recased, ALL),
    "wide letters": (_in_wide_letters, TEXTS),
    "in a URL": (_in_a_url, TEXTS),
    "in a shell line": (_in_a_shell_line, TEXTS),
    "in a sentence": (_in_a_sentence, SHORT),
    "in JSON": (_in_json, ALL),
    "in code": (_in_code, TEXTS),
    "in columns": (_in_columns, TEXTS),
    "wrapped anew": (_rewrapped, ("prose",)),
    "an excerpt of eight words": (_excerpt, ("prose",)),
}
"""What a look-up is to see through, by the kinds of values that it is done to."""


def _as_base64(_: Maker, value: Value) -> object:
    return base64.b64encode(value.text.encode()).decode()


def _as_hexadecimal(_: Maker, value: Value) -> object:
    return value.text.encode().hex()


def _paraphrased(maker: Maker, value: Value) -> object:
    lists = (NOUNS, VERBS, ADJECTIVES)
    kinds = {word: words for words in lists for word in words}
    return " ".join(maker.pick(kinds.get(w.lower().strip(".,"), [w])) for w in value.text.split())


def _computed(maker: Maker, value: Value) -> object:
    return round(float(value.text) * maker.pick((0.5, 1.19, 2, 12)) + maker.between(1, 99), 2)


def _date_rewritten(_: Maker, value: Value) -> object:
    return f"{datetime.fromisoformat(value.text):%d %B %Y}"


def _shortened(_: Maker, value: Value) -> object:
    return value.text[: len(value.text) * 2 // 3]


def _joined_to_a_folder(maker: Maker, value: Value) -> object:
    return f"/{maker.pick(FOLDERS)}/{maker.pick(NOUNS)}/{value.text.lstrip('/')}"


def _unquoted_in_a_sentence(maker: Maker, value: Value) -> object:
    return f"{maker.sentence().rstrip('.')} {value.text} {maker.sentence()}"


def _encoded_twice(maker: Maker, value: Value) -> object:
    return f"https://{maker.pick(HOSTS)}/?next={quote(quote(value.text, safe=''), safe='')}"


BLIND: Final[Mapping[str, tuple[Change, tuple[str, ...]]]] = {
    "base64": (_as_base64, ALL),
    "hexadecimal": (_as_hexadecimal, ALL),
    "paraphrase": (_paraphrased, ("prose",)),
    "arithmetic": (_computed, ("number",)),
    "a date in another form": (_date_rewritten, ("date",)),
    "cut to two thirds": (_shortened, SHORT),
    "a path joined to a folder": (_joined_to_a_folder, ("path",)),
    "a few words, unquoted in a sentence": (_unquoted_in_a_sentence, ("phrase",)),
    "percent-encoded twice": (_encoded_twice, ("path", "url", "email")),
}
"""What a look-up does not see through, or only by chance."""

# -- what only looks alike -----------------------------------------------------------------------


def _other_value(maker: Maker, value: Value) -> str:
    return KINDS[value.kind](maker)


def _with_one_part_changed(maker: Maker, value: Value) -> str:
    """Return a value of the same server, folder, prefix or first digits."""
    text = value.text
    match value.kind:
        case "path" | "url":
            head, _, _ = text.partition("?")[0].rpartition("/")
            tail = maker.identifier() if value.kind == "url" else maker.path().rpartition("/")[2]
            return f"{head}/{tail}"
        case "email":
            return f"{maker.email().partition('@')[0]}@{text.partition('@')[2]}"
        case "date":
            return text.replace(text[11:16], maker.date()[11:16], 1)
        case "prose":
            words = text.split()
            maker.random.shuffle(words)
            return " ".join(words)
        case "phrase":
            words = text.split()
            return " ".join([*words[:-1], maker.pick(SURNAMES)])
        case _:
            last = max(place for place, c in enumerate(text) if c.isdigit())
            return f"{text[:last]}{(int(text[last]) + maker.between(1, 9)) % 10}{text[last + 1 :]}"


LOOKALIKES: Final[Mapping[str, Callable[[Maker, Value], str]]] = {
    "another value": _other_value,
    "one part changed": _with_one_part_changed,
}


def _unlike(outputs: list[bytes], text: str) -> bool:
    """Return whether no output has a text, in any case and with or without separators."""
    bare = text.casefold().replace(",", "")
    return not any(bare in output.decode().casefold().replace(",", "") for output in outputs)


# -- sessions ----------------------------------------------------------------------------------


def _case(change: str, kind: str, value: object, outputs: frozenset[int]) -> Case:
    arguments = json.dumps({"mode": "fast", "value": value, "limit": 20}).encode()
    return Case(change=change, kind=kind, arguments=arguments, outputs=outputs)


def make_session(seed: str) -> Session:
    """Return a session of a dozen results, and a few hundred calls."""
    maker = Maker(seed)
    results = [shape(maker) for shape in SHAPES * 2]
    maker.random.shuffle(results)
    outputs = [content for content, _ in results]
    known: dict[Value, set[int]] = {}
    for number, (_, values) in enumerate(results):
        for value in values:
            known.setdefault(value, set()).add(number)
    return Session(outputs, [*_positives(maker, known), *_negatives(maker, known, outputs)])


def _positives(maker: Maker, known: Mapping[Value, set[int]]) -> Iterator[Case]:
    for change, (apply, kinds) in {**CHANGES, **BLIND}.items():
        for value in _some(maker, known, kinds):
            yield _case(change, value.kind, apply(maker, value), frozenset(known[value]))


def _negatives(
    maker: Maker, known: Mapping[Value, set[int]], outputs: list[bytes]
) -> Iterator[Case]:
    for alike, resemble in LOOKALIKES.items():
        for apply, kinds in CHANGES.values():
            for value in _some(maker, known, kinds):
                other = Value(value.kind, resemble(maker, value))
                if _unlike(outputs, other.text):
                    yield _case(alike, value.kind, apply(maker, other), frozenset())


def _some(maker: Maker, known: Mapping[Value, set[int]], kinds: tuple[str, ...]) -> list[Value]:
    """Return two values of each kind."""
    of_kinds = [[value for value in known if value.kind == kind] for kind in kinds]
    return [value for some in of_kinds for value in maker.random.sample(some, min(2, len(some)))]


# -- what a look-up says -----------------------------------------------------------------------


class Judged(Struct, frozen=True):
    """What a look-up said of a case."""

    case: Case
    evidence: frozenset[MatchEvidence]
    """The kinds of evidence that connect it with an output, with one that has the value if any has."""
    is_unverified: bool

    @property
    def is_found(self) -> bool:
        """Return whether an output was named, with whatever evidence."""
        return bool(self.evidence)

    @property
    def is_sure(self) -> bool:
        """Return whether an output was named, with evidence above weak."""
        return bool(self.evidence - {MatchEvidence.WEAK})


def judge(session: Session) -> Iterator[Judged]:
    """Yield what a look-up says of each case of a session."""
    values = SessionValues()
    for number, content in enumerate(session.outputs):
        values.add(ValueSource(b"%d" % number), content)
    for case in session.cases:
        lineage = values.look_up(case.arguments).lineage
        entries = [entry for entry in lineage if entry.pointer.startswith("/value")]
        named = {
            entry.evidence
            for entry in entries
            if entry.origin is ValueOrigin.SOURCED
            and (not case.outputs or int(entry.call) in case.outputs)
        }
        is_unverified = any(entry.origin is ValueOrigin.UNVERIFIED for entry in entries)
        yield Judged(case, frozenset(named), is_unverified)
