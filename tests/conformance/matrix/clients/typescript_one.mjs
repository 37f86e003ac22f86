// The official TypeScript client, 1.x line. Arguments: the URL that answers with event streams and
// the URL that answers with JSON.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { CreateMessageRequestSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { CAPABILITIES, commandOf, elicit, sample } from './scenarios.mjs';

async function connect(url) {
  const client = new Client({ name: 'matrix', version: '1' }, { capabilities: CAPABILITIES });
  client.setRequestHandler(ElicitRequestSchema, async request => elicit(request));
  client.setRequestHandler(CreateMessageRequestSchema, async request => sample(request));
  const command = commandOf(url);
  const Http = url.endsWith('/sse') ? SSEClientTransport : StreamableHTTPClientTransport;
  const transport = command ? new StdioClientTransport(command) : new Http(new URL(url));
  await client.connect(transport);
  return {
    call: (name, args, options, _meta) =>
      client.callTool({ name, arguments: args, _meta }, undefined, options),
    read: uri => client.readResource({ uri }),
    tools: async () => (await client.listTools()).tools,
    close: async () => {
      await transport.terminateSession?.();
      await client.close();
    },
  };
}

const { run } = await import(process.argv[5] ?? './scenarios.mjs');
await run(connect);
