"""A run as text: tables and verdicts for people, rows for machines; pure but for `save`."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import structs

from .facts import Facts, Soak
from .goals import BARE, Goal, required, wanted
from .measure import SCENARIOS
from .samples import Metric, Sample, Samples, cpu, p50, p99, rate

_HEAD = (
    "proxy",
    "calls/s",
    "x bare",
    "x nginx",
    "CPU us/call",
    "x bare",
    "x nginx",
    "p50 us",
    "added",
    "p99 us",
    "wrong",
)
_GENERATOR_LIMIT = 0.9


def summary(title: str, samples: Samples, facts: Facts, absent: Iterable[str]) -> str:
    """Return the whole report in Markdown."""
    names = dict.fromkeys(sample.scenario for sample in samples.all)
    about = {scenario.name: scenario.about for scenario in SCENARIOS}
    parts = [
        f"# {title}",
        "Medians over interleaved rounds; ratios are medians of ratios within one round.",
        *([f"fsync control: {number(facts.fsync_ms, 3)} ms"] if facts.fsync_ms else []),
        *(f"{name}: not installed" for name in absent),
        *(f"## {name}: {about[name]}\n\n{table(samples, name)}" for name in names),
        f"## Goals of the issue\n\n{verdicts(required(samples, facts))}",
        f"## Goals of the design, for information\n\n{verdicts(wanted(samples, facts))}",
    ]
    if facts.soak:
        parts.append(f"## Memory\n\n{memory(facts.soak)}")
    return "\n\n".join(parts) + "\n"


def table(samples: Samples, scenario: str) -> str:
    """Return the table of one scenario, below it the first wrong answer of each proxy."""
    rows = [_HEAD, *(_row(samples, scenario, p) for p in samples.proxies(scenario))]
    troubles = {s.proxy: s.trouble for s in samples.all if s.scenario == scenario and s.trouble}
    notes = [f"{proxy} answered wrongly: {trouble!r}" for proxy, trouble in troubles.items()]
    return "\n\n".join([aligned(rows), *notes])


def _row(samples: Samples, scenario: str, proxy: str) -> tuple[str, ...]:
    def middle(metric: Metric) -> str:
        return number(samples.middle(scenario, proxy, metric), 0)

    def times(control: str, metric: Metric) -> str:
        return number(samples.ratio(scenario, proxy, control, metric), 2)

    wrong = sum(sample.failures for sample in samples.of(scenario, proxy).values())
    share = samples.middle(scenario, proxy, lambda sample: sample.load_share) or 0
    return (
        proxy,
        middle(rate) + ("*" if share > _GENERATOR_LIMIT else ""),
        times(BARE, rate),
        times("nginx", rate),
        middle(cpu),
        times(BARE, cpu),
        times("nginx", cpu),
        middle(p50),
        number(samples.added(scenario, proxy), 0),
        middle(p99),
        str(wrong),
    )


def verdicts(goals: Iterable[Goal]) -> str:
    """Return goals with what was measured."""
    rows = [("goal", "bound", "measured", "verdict")]
    for goal in goals:
        bound = f"{'>=' if goal.at_least else '<='} {goal.bound:g} {goal.unit}"
        value = f"{number(goal.value, 2)} {goal.unit}" if goal.value is not None else "-"
        rows.append((goal.name, bound.strip(), value.strip(), goal.verdict))
    return aligned(rows)


def memory(soak: Soak) -> str:
    """Return the memory over a long run."""
    rows = [("calls", "anonymous KiB", "resident KiB", "wrong")]
    rows += [
        (str(p.calls), str(p.anonymous), str(p.resident), str(p.failures)) for p in soak.points
    ]
    return aligned(rows)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as a Markdown table whose columns line up as plain text too."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def number(value: float | None, digits: int) -> str:
    """Return a number as the tables show it."""
    return "-" if value is None else f"{value:,.{digits}f}"


def save(folder: Path, text: str, samples: Samples) -> None:
    """Write `summary.md` and `raw.csv` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.md").write_text(text)
    with (folder / "raw.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Sample.__struct_fields__)
        writer.writerows(structs.astuple(sample) for sample in samples.all)
