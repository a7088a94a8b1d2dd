// Agents of Vercel's AI SDK with zod schemas: `node vercel.mjs SCRIPTED TINY` prints results as JSON. SCRIPTED is the URL
// of a server with scripted answers, TINY that of a small real model, CLIENTS (in the environment) the packages' folder.
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const found = createRequire(join(process.env.CLIENTS, "package.json"));
const load = (name) => import(pathToFileURL(found.resolve(name)));
const { generateText, isStepCount, Output, streamText, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const [scripted, tiny] = process.argv.slice(2);
const model = (url, name) =>
  createOpenAICompatible({ name, baseURL: `${url}/v1`, supportsStructuredOutputs: true, includeUsage: true })(name);
const forecast = z.strictObject({ sky: z.enum(["clear", "grey"]), degrees: z.int().min(-60).max(60) });

const agent = (url) => {
  const heard = [];
  const weather = tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (heard.push(city), `rain in ${city}`),
  });
  return [heard, { model: model(url, "fake"), tools: { get_weather: weather }, stopWhen: isStepCount(3), maxRetries: 0 }];
};

const steps = {
  async whole() {
    const [heard, asked] = agent(scripted);
    const { text, finishReason } = await generateText({ ...asked, prompt: "Weather in Bonn?" });
    return { text, finishReason, heard };
  },

  async streamed() {
    const [heard, asked] = agent(scripted);
    const stream = streamText({ ...asked, prompt: "Weather in Bonn?" });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    return { text, finishReason: await stream.finishReason, heard };
  },

  async cut() {
    const [heard, asked] = agent(scripted);
    const question = { role: "user", content: "Weather in Bonn?" };
    const first = await generateText({ ...asked, messages: [question], maxOutputTokens: 60, stopWhen: isStepCount(1) });
    const messages = [question, ...first.response.messages, { role: "user", content: "And now?" }];
    const { text } = await generateText({ ...asked, messages });
    return { finishReason: first.finishReason, invalid: first.toolCalls.map((call) => call.invalid), text, heard };
  },

  async long() {
    try {
      await generateText({ ...agent(scripted)[1], prompt: "x".repeat(5000) });
    } catch (error) {
      return { name: error.name, status: error.statusCode, retryable: error.isRetryable, message: error.message };
    }
    return {};
  },

  async typed() {
    const asked = { model: model(tiny, "tiny"), prompt: "Weather?", maxOutputTokens: 200, seed: 1, maxRetries: 0 };
    const { output } = await generateText({ ...asked, output: Output.object({ schema: forecast }) });
    const { output: list } = await generateText({ ...asked, output: Output.array({ element: forecast }), maxOutputTokens: 2000 });
    const stream = streamText({ ...asked, output: Output.object({ schema: forecast }) });
    let parts = 0;
    for await (const _ of stream.partialOutputStream) parts += 1;
    return { output, list, streamed: await stream.output, parts };
  },
};

const told = {};
for (const [name, step] of Object.entries(steps)) told[name] = await step();
console.log(JSON.stringify(told));
