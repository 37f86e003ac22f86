// Make the calls that come as lines, one after the other, with either TypeScript client: both have
// this in place of scenarios.mjs where it is their last argument. A line tells the names of the
// tools, then one line of each call what the application saw.

import { createInterface } from 'node:readline';

function tell(found) {
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

// Make a call; take it back after so many reports of progress, if that is asked for.
async function made(call, asked) {
  const abort = new AbortController();
  const steps = [];
  const onprogress = ({ progress }) => {
    steps.push(progress);
    if (steps.length === asked.cancel_at) abort.abort();
  };
  try {
    const options = { onprogress, signal: abort.signal };
    return { steps, result: await call(asked.tool, asked.arguments, options) };
  } catch (error) {
    if (!abort.signal.aborted) throw error;
    return { steps, result: null };
  }
}

// Serve the lines until there are no more; `connect(target)` returns functions as in scenarios.mjs.
export async function run(connect) {
  const { call, close, tools } = await connect(process.argv[2]);
  tell((await tools()).map(tool => tool.name));
  for await (const line of createInterface({ input: process.stdin })) {
    tell(await made(call, JSON.parse(line)));
  }
  await close();
}
