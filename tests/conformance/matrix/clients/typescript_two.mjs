// The official TypeScript client, 2.x line. Arguments: the URL that answers with event streams, the
// URL that answers with JSON, and the protocol revision to speak: `auto` for what the two agree on.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { CAPABILITIES, commandOf, elicit, sample } from './scenarios.mjs';

const revision = process.argv[4];

async function connect(url) {
  const options = { capabilities: CAPABILITIES };
  if (revision >= '2026') options.versionNegotiation = { mode: 'auto' };
  const client = new Client({ name: 'matrix', version: '1' }, options);
  client.setRequestHandler('elicitation/create', async request => elicit(request));
  client.setRequestHandler('sampling/createMessage', async request => sample(request));
  const command = commandOf(url);
  const Http = url.endsWith('/sse') ? SSEClientTransport : StreamableHTTPClientTransport;
  const transport = command ? new StdioClientTransport(command) : new Http(new URL(url));
  await client.connect(transport);
  const negotiated = client.getNegotiatedProtocolVersion();
  if (![negotiated, 'auto'].includes(revision)) throw new Error(`negotiated ${negotiated}, wanted ${revision}`);
  return {
    call: (name, args, options, _meta) => client.callTool({ name, arguments: args, _meta }, options),
    read: uri => client.readResource({ uri }),
    tools: async () => (await client.listTools()).tools,
    close: async () => {
      if (negotiated < '2026') await transport.terminateSession?.();
      await client.close();
    },
  };
}

const { run } = await import(process.argv[5] ?? './scenarios.mjs');
await run(connect);
