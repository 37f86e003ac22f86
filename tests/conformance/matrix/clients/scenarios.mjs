// The scenarios of the TypeScript clients: what the agent saw, by name. Both client lines share
// them; `call` and `connect` hide where their interfaces differ.

// A target is a URL, or the command of a stdio server as a JSON array. A URL that ends with `/sse`
// speaks the old HTTP+SSE transport.

import { createHash } from 'node:crypto';

const VALUE = { text: 'zürich \u{1F600}', half: 0.5, large: 2 ** 53 - 1, list: [1, null, true] };
const BIG = 10_000_000; // less than the longest line that these clients read from a pipe

export const CAPABILITIES = { elicitation: {}, sampling: {} };

// How to start a server, where a target is a command.
export function commandOf(target) {
  if (!target.startsWith('[')) return undefined;
  const [command, ...args] = JSON.parse(target);
  return { command, args, env: process.env, stderr: 'inherit' };
}

// Answer an elicitation.
export function elicit(request) {
  return { action: 'accept', content: { name: `Ada, asked '${request.params.message}'` } };
}

// Answer as a model would.
export function sample(request) {
  const text = `a line within ${request.params.maxTokens} tokens`;
  return { role: 'assistant', content: { type: 'text', text }, model: 'scripted' };
}

// What is worth comparing of a result; long texts as a digest.
function seen(result) {
  const text = result.content.map(block => block.text).join('');
  const digest = `${text.length} ${createHash('sha256').update(text).digest('hex')}`;
  return { error: Boolean(result.isError), text: text.length < 1000 ? text : digest };
}

async function count(call) {
  const steps = [];
  const onprogress = ({ progress, total, message }) => steps.push([progress, total, message]);
  const result = await call('count', { to: 5 }, { onprogress });
  return { progress: steps, ...seen(result) };
}

// Cancel a call once its tool has begun, then ask whether the tool stopped.
async function cancel(call) {
  const abort = new AbortController();
  const { promise: began, resolve } = Promise.withResolvers();
  const hang = call('hang', { mark: 'cancel' }, { signal: abort.signal, onprogress: resolve });
  const ended = hang.then(() => 'returned', error => error.name);
  await Promise.race([began, ended]);
  abort.abort();
  const outcome = await ended;
  return { call: outcome, ...seen(await call('stopped', { mark: 'cancel' }, {})) };
}

// Run every scenario; `connect(url)` returns a function that calls a tool and one that closes.
export async function run(connect) {
  const [stream, whole] = process.argv.slice(2, 4);
  const { call, close, tools } = await connect(stream);
  const other = await connect(whole);
  const found = {};
  found.tools = (await tools()).map(tool => tool.name).sort();
  found.elicitation = seen(await call('greet', {}, {}));
  found.sampling = seen(await call('draft', { topic: 'tides' }, {}));
  found.progress = await count(call);
  found.value = seen(await call('echo', { value: VALUE }, {}));
  found.failure = seen(await call('fail', { reason: 'no luck' }, {}));
  found['10 MB'] = seen(await other.call('big', { size: BIG }, {}));
  found.cancel = await cancel(call);
  await other.close();
  await close();
  process.stdout.write(JSON.stringify(found));
}
