"""Measure the path: turnlog beside no proxy, a bare aiohttp proxy, nginx and the peers.

Everything runs on 127.0.0.1 and is ended with the run. `--full` takes longer rounds and more of
them, `--soak` adds a long run for the memory, `--save` keeps the result under `runs/`.
"""

import argparse
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from . import facts, report
from .children import Children, LoadGenerator, StartError
from .facts import Facts
from .measure import PEER_SCENARIO, SCENARIOS, Bench, Scenario, interleaved, settle
from .proxies import MAIN, PEERS, Place, Running, Starter
from .samples import Sample, Samples

_RUNS = Path(__file__).resolve().parent / "runs"


class Plan(Struct, frozen=True, kw_only=True):
    """How much is measured. `seconds` is one proxy's share of one round of one scenario."""

    name: str
    seconds: float
    rounds: int
    peer_rounds: int
    idle_streams: int
    soak: int
    only: str


def plan(options: argparse.Namespace) -> Plan:
    """Return what the command line asks for."""
    soak = facts.SOAK_CALLS if options.soak else 0
    if options.full:
        return Plan(
            name="full",
            seconds=2.0,
            rounds=7,
            peer_rounds=3,
            idle_streams=1000,
            soak=soak,
            only=options.only,
        )
    return Plan(
        name="quick",
        seconds=0.5,
        rounds=3,
        peer_rounds=1,
        idle_streams=200,
        soak=soak,
        only=options.only,
    )


class Session:
    """One run: what stands, what was measured, what was not there."""

    def __init__(self, place: Place, bench: Bench, plan: Plan) -> None:
        self.place = place
        self.bench = bench
        self.plan = plan
        self.samples: list[Sample] = []
        self.absent: list[str] = []
        self.facts = Facts()

    def start(self, starters: dict[str, Starter]) -> list[Running]:
        """Start what is installed; note the others and those that do not come up."""
        started: list[Running] = []
        for name, starter in starters.items():
            try:
                running = starter(self.place)
            except StartError as error:
                self.absent.append(f"{name} ({error})")
                continue
            if running:
                started.append(running)
            else:
                self.absent.append(name)
        return started

    def main(self) -> None:
        """Measure the table."""
        proxies = self.start(MAIN)
        wanted = [s for s in SCENARIOS if self.plan.only in s.name]
        for scenario in wanted:
            self.scenario(scenario, proxies, self.plan.rounds)
        ours = next((proxy for proxy in proxies if proxy.name == "turnlog"), None)
        if ours:
            self.once(ours)
        bare = [proxy for proxy in proxies if proxy.name in ("bare aiohttp", "turnlog")]
        if PEER_SCENARIO in wanted:
            self.peers(bare)
        if ours and ours.child:
            self.place.children.stop(ours.child)
            self.after()

    def scenario(self, scenario: Scenario, proxies: list[Running], rounds: int) -> None:
        """Measure one scenario, all proxies in turns."""
        print(f"  {scenario.name}", file=sys.stderr)
        for turn, order in interleaved(proxies, rounds):
            for proxy in order:
                self.samples.append(self.bench.sample(scenario, proxy, turn, self.plan.seconds))
                settle()

    def peers(self, main: list[Running]) -> None:
        """Measure each peer beside the main ones, alone, since they are heavy."""
        for number, (name, starter) in enumerate(PEERS.items(), 1):
            for peer in self.start({name: starter}):
                print(f"  peer {name}", file=sys.stderr)
                for turn in range(self.plan.peer_rounds):
                    # Rounds of their own, so that ratios pair what ran side by side.
                    key = 1000 * number + turn
                    for proxy in (peer, *main):
                        sample = self.bench.sample(PEER_SCENARIO, proxy, key, self.plan.seconds)
                        self.samples.append(sample)
                if peer.child:
                    self.place.children.stop(peer.child)

    def once(self, ours: Running) -> None:
        """Measure what is measured once, with turnlog running."""
        self.facts.fsync_ms = facts.fsync_ms(self.place.folder)
        self.facts.idle_kib = self.bench.idle_kib(ours, self.plan.idle_streams)
        self.facts.first_byte_ms = self.bench.first_byte_ms(ours, 200)
        if self.plan.soak:
            print(f"  soak of {self.plan.soak:,} calls", file=sys.stderr)
            data = self.place.folder / "data"
            self.facts.soak = facts.soak(self.bench, ours, data, self.plan.soak)

    def after(self) -> None:
        """Measure what needs turnlog stopped, over the data that it left."""
        config, data = self.place.folder / "turnlog.yaml", self.place.folder / "data"
        self.facts.start_ms = facts.start_ms(self.place.children, config, data)
        self.facts.log_ms = facts.log_ms(data)
        self.facts.recorded = facts.recorded(data, self.bench.commits["turnlog"])


def run(plan: Plan, folder: Path) -> Session:
    """Start everything, measure, end everything."""
    with Children(folder) as children:
        upstream = children.start_own("upstream", "upstream").port()
        load = LoadGenerator(children)
        session = Session(Place(upstream, children, folder), Bench(load, upstream), plan)
        try:
            session.main()
        finally:
            load.close()
    return session


def store(plan: Plan) -> str:
    """Run the benchmark of the store alone and return what it prints."""
    command = [sys.executable, "-m", "benchmarks.bench_store"]
    amount = ["--blocks", str(plan.rounds)]
    print("  store", file=sys.stderr)
    done = subprocess.run([*command, *amount], cwd=_RUNS.parent.parent, stdout=subprocess.PIPE)
    return done.stdout.decode() if done.returncode == 0 else f"exit code {done.returncode}\n"


def machine() -> str:
    """Return a short name of this kind of machine, without its host name."""
    cores = len(Path("/proc/cpuinfo").read_text().split("processor\t")) - 1
    return f"{platform.system().lower()}-{platform.machine()}-{cores}-cores"


def leave(number: int, _: object) -> None:
    """End with the exit code that a shell gives to a signal."""
    sys.exit(128 + number)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="seven rounds of 2 s")
    parser.add_argument("--soak", action="store_true", help="600,000 calls for the memory")
    parser.add_argument("--save", action="store_true", help="write runs/DATE-MACHINE/")
    parser.add_argument("--only", default="", metavar="NAME", help="scenarios whose name has this")
    chosen = parser.parse_args()
    names = [scenario.name for scenario in SCENARIOS]
    if not any(chosen.only in name for name in names):
        parser.error(f"no scenario has {chosen.only!r} in its name, use one of: {', '.join(names)}")
    return chosen


def main() -> None:
    """Run as the command line says and print the report."""
    chosen = options()
    # An exception, so that everything is ended on its way out.
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    began, today = time.monotonic(), datetime.now(UTC).date()
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        session = run(plan(chosen), Path(folder))
    title = f"Path, {session.plan.name}, {today}, {machine()}, Python {platform.python_version()}"
    samples = Samples(session.samples)
    text = report.summary(title, samples, session.facts, session.absent)
    if not chosen.only:
        text += f"\n## The store alone\n\n```\n{store(session.plan)}```\n"
    print(text)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if chosen.save:
        report.save(_RUNS / f"{today}-{machine()}", text, samples)


if __name__ == "__main__":
    main()
