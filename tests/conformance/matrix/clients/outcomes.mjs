// What an application sees of every tool that the server lists, with either TypeScript client. Both
// have this in place of scenarios.mjs where it is their last argument.

const KEY = 'turnlog/outcome';

// What came of a call.
async function seen(call) {
  try {
    const result = await call;
    const text = result.content.map(block => block.text).join('');
    const value = result.structuredContent ?? null;
    const outcome = result._meta?.[KEY] ?? null;
    return { error: Boolean(result.isError), text, structured: value, outcome };
  } catch (error) {
    return { raised: error.code, text: error.message, outcome: error.data?.[KEY] ?? null };
  }
}

// Call everything within one session; `connect(url)` returns functions that call, read and close.
export async function run(connect) {
  const { call, read, close, tools } = await connect(process.argv[2]);
  const listed = await tools();
  const found = {};
  found.resource = await seen(read('file:///x'));
  for (const tool of listed) found[tool.name] = await seen(call(tool.name, {}, {}));
  found['at last'] = await seen(call('well', {}, {}));
  await close();
  process.stdout.write(JSON.stringify(found));
}
