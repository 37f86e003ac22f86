// Make the calls that come as lines, all at once, with either TypeScript client: both have this in
// place of scenarios.mjs where it is their last argument. A first line says that they are connected,
// then lines for each call what came of it.

import { createInterface } from 'node:readline';

function tell(found) {
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

// Make a call and tell what came of it; `patience` is the client's own time limit, in seconds.
async function make(call, { number, tool, item, patience, key, watched }) {
  const options = {};
  if (patience) options.timeout = patience * 1000;
  if (watched) options.onprogress = () => tell({ number, what: 'progress' });
  const meta = key ? { 'turnlog/key': key } : undefined;
  try {
    const { content } = await call(tool, { item }, options, meta);
    tell({ number, what: 'result', text: content[0].text });
  } catch (error) {
    tell({ number, what: 'raised', text: String(error) });
  }
}

// Serve the lines until there are no more; `connect(target)` returns functions as in scenarios.mjs.
export async function run(connect) {
  const { call, close } = await connect(process.argv[2]);
  tell('connected');
  const made = [];
  for await (const line of createInterface({ input: process.stdin })) {
    made.push(make(call, JSON.parse(line)));
  }
  await Promise.all(made);
  await close();
}
