# The player as it came with the cases; only this head and `end_wait` were added. It runs in a process of its own.
# ruff: noqa
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportUnusedExpression=false
# fmt: off
"""Player for the tool-call case files here (Python 3.11+, standard library). Raw sockets, so framing faults stay visible.

  play.py --upstream-port P CASE  fake upstream on 127.0.0.1:P; JSON log on stdout (or --log FILE)
  play.py --stdio-server CASE     fake stdio upstream for a proxy to spawn; JSON log on stderr (or --log FILE)
  play.py --client URL CASE       sends the client's requests to http://host:port[/prefix] or stdio:[COMMAND]; JSON report
"""
import argparse, asyncio, base64, hashlib, json, os, re, shlex, signal, socket, struct, subprocess, sys, time

T0 = time.monotonic()
now = lambda: round(time.monotonic() - T0, 4)
fill = lambda values: (lambda s: re.sub(r"\$\{(\w+)\}", lambda m: str(values.get(m[1], m[0])), s))
sha = lambda data: hashlib.sha256(data).hexdigest()


def payload(d, sub):
    if isinstance(d, dict) and "body_base64" in d:
        return base64.b64decode(d["body_base64"])
    parts = [{"text": d}] if isinstance(d, str) else d.get("body_parts", [{"text": d.get("body", "")}])
    return "".join(sub(p["text"]) * p.get("times", 1) for p in parts).encode()


def rpc_of(body):
    try:
        many = json.loads(body)
        many = many if isinstance(many, list) else [many]
        p = many[0].get("params") or {}
        return {"rpc": many[0].get("method"), "id": many[0].get("id"), "has_id": "id" in many[0], "tool": p.get("name"), "cursor": p.get("cursor"),
                "token": (p.get("_meta") or {}).get("progressToken"), "ids": [m.get("id") for m in many]}
    except (ValueError, AttributeError, IndexError):
        return {}


async def read_head(reader):
    rows = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    return rows[0], [[x.strip() for x in r.split(":", 1)] for r in rows[1:] if ":" in r]


async def read_body(reader, headers, to_eof):
    h = {k.lower(): v for k, v in headers}
    try:
        if "chunked" in h.get("transfer-encoding", "").lower():
            size = 1
            while size:
                size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
                yield (await reader.readexactly(size + 2))[:-2]
        elif "content-length" in h or to_eof:
            left = int(h.get("content-length", 1 << 62))
            while left and (data := await reader.read(min(left, 65536))):
                left -= len(data)
                yield data
            if left and "content-length" in h:
                raise asyncio.IncompleteReadError(b"", left)
    except asyncio.IncompleteReadError as e:
        if e.partial:
            yield e.partial
        raise


class Upstream:
    def __init__(self, case, port, log):
        self.up, self.port, self.out, self.used, self.held, self.n, self.conns = case["upstream"], port, log, {}, None, 0, 0

    def log(self, ev, **kw):
        print(json.dumps({"t": now(), "ev": ev, **kw}), file=self.out, flush=True)

    def pick(self, req):
        have = {k.lower(): v for k, v in req["headers"]}
        for i, ex in enumerate(self.up.get("exchanges", [])):
            when = dict(ex.get("when", {}))
            want = {k.lower(): v and v.replace("${port}", str(self.port)) for k, v in when.pop("header", {}).items()}
            fits = all((k in have) if v == "*" else have.get(k) == v for k, v in want.items())
            if fits and all(req.get(k) == v for k, v in when.items()) and self.used.get(i, 0) < (ex.get("times", 1) or 1 << 30):
                self.used[i] = self.used.get(i, 0) + 1
                return i, ex
        return None, {"steps": [{"reply": {"status": 500, "body": "no script left for this request"}}]}

    async def serve(self, reader, writer):
        self.conns, conn, idle, wire = self.conns + 1, self.conns + 1, None, {"sent": b""}
        try:
            while not wire.get("until_close") and not wire.get("gone"):
                line, headers = await asyncio.wait_for(read_head(reader), idle)
                body = b"".join([c async for c in read_body(reader, headers, False)])
                self.n += 1
                req = {"n": self.n, "conn": conn, "http": line.split(" ")[0], "path": line.split(" ")[1], "headers": headers, **rpc_of(body)}
                i, ex = self.pick(req)
                self.log("request", exchange=i, **req, body_bytes=len(body), body_sha256=sha(body),
                         body_base64=base64.b64encode(body[:65536]).decode())
                wire, idle = {"r": reader, "w": writer, "sent": bytearray(), "stop": ex.get("stop_on_disconnect")}, ex.get("close_after")
                await self.play(ex["steps"], req, wire)
                await self.put(wire, b"0\r\n\r\n" if wire.get("chunked") else b"", framed=False)
                self.log("sent", n=req["n"], body_bytes=len(wire["sent"]), body_sha256=sha(wire["sent"]))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.TimeoutError) as e:
            self.log("conn_end", conn=conn, why=f"{type(e).__name__} {e}"[:80], body_bytes=len(wire["sent"]))
        writer.close()

    async def pause(self, seconds, req, wire):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.05))
            if wire["r"] and (wire["r"].at_eof() or wire["r"].exception()) and not wire.get("gone"):
                wire["gone"] = True
                self.log("peer_closed", n=req["n"])
                if wire["stop"]:
                    raise ConnectionAbortedError("work abandoned")

    async def put(self, wire, data, framed=True):
        wire["sent"] += data if framed else b""
        if not wire.get("gone") and data:
            wire["w"].write(b"%x\r\n%s\r\n" % (len(data), data) if framed and wire.get("chunked") else data)
            await wire["w"].drain()

    async def play(self, steps, req, wire):
        ids = {f"id{k}": json.dumps(v) for k, v in enumerate(req.get("ids", []))}
        sub = fill({"id": json.dumps(req.get("id")), "token": json.dumps(req.get("token")), "port": self.port, **ids})
        for kind, arg in (next(iter(step.items())) for step in steps):
            if kind in ("delay", "hang", "hold"):
                self.held = wire if kind == "hold" else self.held
                await self.pause(arg, req, wire)
            elif kind in ("reply", "head"):
                data, status, hs = payload(arg, sub), arg.get("status", 200), list(arg.get("headers", []))
                hs += [["Content-Length", str(len(data))]] if kind == "reply" and status != 204 else []
                rows = [f"HTTP/1.1 {status} {arg.get('reason', 'X')}"] + [f"{k}: {sub(v)}" for k, v in hs]
                await self.put(wire, ("\r\n".join(rows) + "\r\n\r\n").encode("latin-1"), framed=False)
                names = {k.lower() for k, _ in hs}
                wire.update(chunked="transfer-encoding" in names, until_close=status != 204 and not names & {"transfer-encoding", "content-length"})
                await self.put(wire, data)
            elif kind in ("sse", "push"):
                rows = [f"{k}: {v}" for k in ("event", "id") for v in [arg.get(k)] if v] + [f"data: {x}" for x in sub(arg["data"]).split("\n")]
                await self.put(self.held if kind == "push" else wire, ("\n".join(rows) + "\n\n").encode())
            elif kind in ("body", "line", "raw"):
                await self.put(wire, payload(arg, sub) + (b"\n" if kind == "line" else b""), framed=kind != "raw")
            elif kind in ("close", "reset"):
                await asyncio.sleep(0.05)
                wire["w"].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", kind == "reset", 0))
                wire["w"].transport.abort()
                raise ConnectionAbortedError(kind)
            else:
                {"effect": lambda: self.log("effect", n=req["n"], label=arg), "stderr": lambda: os.write(2, arg.encode()), "exit": lambda: os._exit(arg),
                 "spawn": lambda: self.log("spawned", pid=subprocess.Popen(["sleep", str(arg)], stdout=subprocess.DEVNULL).pid)}[kind]()

    async def stdio(self):
        reader, tasks = asyncio.StreamReader(limit=1 << 26), []
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        pipe = type("Pipe", (), {"write": lambda s, b: (sys.stdout.buffer.write(b), sys.stdout.flush()), "drain": lambda s: asyncio.sleep(0)})()
        wire = {"r": None, "w": pipe, "sent": bytearray()}
        if self.up.get("ignore_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        await self.play(self.up.get("start", []), {"n": 0}, wire)
        while line := await reader.readline():
            self.n += 1
            req = {"n": self.n, "headers": [], **rpc_of(line)}
            i, ex = self.pick(req)
            self.log("request", exchange=i, line=line.decode("utf-8", "replace"), **req)
            tasks.append(asyncio.create_task(self.play(ex["steps"] if i is not None else [], req, wire)))
        await asyncio.gather(*tasks, asyncio.sleep(self.up.get("linger", 0)), return_exceptions=True)


class Client:
    def __init__(self, case, url):
        self.case, self.seen, m = case, {}, re.match(r"http://([^:/]+):(\d+)(/.*)?$", url)
        self.host, self.port, self.prefix = (m[1], int(m[2]), (m[3] or "").rstrip("/")) if m else ("", 0, "")

    def capture(self, text):
        for name, rx in (("endpoint", r"event: ?endpoint\r?\ndata: ?(?:https?://[^/]+)?(\S+)"), ("last_event_id", r"(?:^|\n)id: ?([^\r\n]+)"),
                         ("server_id", r'"id": ?("[^"]+"|\d+), ?"method"'), ("state", r'"requestState": ?("[^"]*")')):
            self.seen.update({name: hit for hit in re.findall(rx, text)[-1:]})

    async def one(self, r, out):
        await asyncio.sleep(max(0, r.get("at", 0) - now()))
        while "wait_for" in r and r["wait_for"] not in self.seen and now() < 8:
            await asyncio.sleep(0.05)
        sub, path, got, writer = fill(self.seen), r.get("path", "/mcp"), bytearray(), None
        path, body = ("" if path.startswith("${") else self.prefix) + sub(path), payload(r, sub)
        hs = [["Host", f"{self.host}:{self.port}"]] + self.case.get("client_headers", []) * (not r.get("bare")) + r.get("headers", [])
        hs += [["Content-Length", str(len(body))]] if r.get("method", "POST") == "POST" else []
        out.update(name=r["name"], t_start=now(), status=None, complete=False, error=None, chunks=[])
        try:
            async with asyncio.timeout(min(r.get("max_wait", 10), r.get("abort_after", 99))):
                reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
                head = [f"{r.get('method', 'POST')} {path} HTTP/1.1"] + [f"{k}: {sub(v)}" for k, v in hs if "${" not in sub(v)]
                writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + body)
                line, out["headers"] = await read_head(reader)
                out.update(status=int(line.split(" ")[1]), t_headers=now())
                for k, v in ((k.lower(), v) for k, v in out["headers"]):
                    self.seen.update({"mcp-session-id": {"session": v}, "set-cookie": {"cookie": v.split(";")[0]}}.get(k, {}))
                async for data in read_body(reader, out["headers"], out["status"] not in (204, 304)):
                    got += data
                    out["chunks"] = (out["chunks"] + [[now(), len(data)]])[:200]
                    self.capture(got.decode("utf-8", "replace") if len(got) < 200000 else "")
                out["complete"] = True
        except (OSError, asyncio.IncompleteReadError, ValueError) as e:  # asyncio's TimeoutError is an OSError
            out["error"] = ("aborted" if "abort_after" in r else "gave_up") if isinstance(e, TimeoutError) else type(e).__name__
        finally:
            writer and (writer.transport.abort() if out["error"] == "aborted" else writer.close())
            out.update(t_end=now(), bytes=len(got), body_sha256=sha(got), body=got[:20000].decode("utf-8", "backslashreplace"),
                       body_base64=base64.b64encode(got[:20000]).decode())

    async def run(self):
        tasks, outs = [], []
        for r in [r for r in self.case["client"] for _ in range(r.get("loop", 1))]:
            outs.append({})
            tasks.append((asyncio.create_task(self.one(r, outs[-1])), r.get("background")))
            if "at" not in r and not r.get("background"):
                await tasks[-1][0]
        await asyncio.gather(*[t for t, background in tasks if not background])
        [t.cancel() for t, _ in tasks]
        await asyncio.wait([t for t, _ in tasks])
        return {"requests": outs, "captured": self.seen}

    async def run_stdio(self, cmd):
        proc, lines = await asyncio.create_subprocess_exec(*cmd, stdin=-1, stdout=-1, limit=1 << 26), []

        async def drain():
            while data := await proc.stdout.readline():
                lines.append([now(), data.decode("utf-8", "replace").rstrip("\n")])
        task = asyncio.create_task(drain())
        for r in self.case["client"]:
            t, ask, wait = now(), rpc_of(payload(r, fill({}))), min(r.get("max_wait", 10), r.get("abort_after", 99))
            proc.stdin.write(payload(r, fill({})) + b"\n")
            answered = lambda: any(s >= t and rpc_of(x).get("id", "?") == ask["id"] and not rpc_of(x)["rpc"] for s, x in lines)
            while ask.get("has_id") and "at" not in r and proc.returncode is None and now() < t + wait and not answered():
                await asyncio.sleep(0.02)
        proc.stdin.close()
        await asyncio.wait([task, asyncio.create_task(proc.wait())], timeout=self.case.get("end_wait", 2))
        return {"lines": lines, "exit": proc.returncode if proc.returncode is not None else proc.kill() or "killed 2 s after its input closed"}


async def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    [ap.add_argument(flag) for flag in ("case", "--upstream-port", "--client", "--log")]
    ap.add_argument("--stdio-server", action="store_true")
    a = ap.parse_args()
    case = json.load(open(a.case, encoding="utf-8"))
    up = Upstream(case, int(a.upstream_port or 0), open(a.log, "a", encoding="utf-8") if a.log else (sys.stderr if a.stdio_server else sys.stdout))
    if a.client:
        job, own = Client(case, a.client), [sys.executable, __file__, "--stdio-server", "--log", a.log or os.devnull, a.case]
        seen = await (job.run_stdio(shlex.split(a.client[6:]) or own) if a.client.startswith("stdio:") else job.run())
        print(json.dumps({"case": case["case"], **seen}, indent=1))
    elif a.stdio_server:
        await up.stdio()
    else:
        server = await asyncio.start_server(up.serve, "127.0.0.1", up.port, limit=1 << 20) if case["upstream"].get("listen", True) else None
        up.log("listening" if server else "not listening", port=up.port)
        await asyncio.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(main())
