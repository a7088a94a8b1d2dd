// Asks a server what OpenAI's JavaScript client can ask: `node smoke.mjs STEP` says as JSON what came of one step.
// CLIENTS is the folder that has the package, URL the server's, VECTORS that of one which gives vectors.
import { createRequire } from "node:module";
import { join } from "node:path";

const OpenAI = createRequire(join(process.env.CLIENTS, "package.json"))("openai");
const client = new OpenAI({ baseURL: `${process.env.URL}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model: "fake", messages: [{ role: "user", content: "Hi" }] };
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { type: "function", function: { name: "get_weather", parameters } };

const steps = {
  async chat() {
    const whole = await client.chat.completions.create(asked);
    const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    const models = [];
    for await (const model of client.models.list()) models.push(model.id);
    return {
      whole: whole.choices[0].message.content,
      text,
      final: final.choices[0].message.content,
      usage: [whole.usage, final.usage].map((usage) => [usage.prompt_tokens, usage.completion_tokens]),
      models,
    };
  },

  async tools() {
    const whole = await client.chat.completions.create({ ...asked, tools: [tool] });
    let streamed = "";
    for await (const chunk of await client.chat.completions.create({ ...asked, tools: [tool], stream: true })) {
      for (const call of chunk.choices[0]?.delta.tool_calls ?? []) streamed += call.function?.arguments ?? "";
    }
    const heard = [];
    const weather = (given) => {
      heard.push(given);
      return "rain";
    };
    const run = client.chat.completions.runTools(
      {
        ...asked,
        tools: [{ type: "function", function: { function: weather, parse: JSON.parse, name: "get_weather", parameters } }],
      },
      { maxChatCompletions: 2 },
    );
    await run.done();
    const results = run.messages.filter((message) => message.role === "tool").map((message) => message.content);
    return { call: whole.choices[0].message.tool_calls[0].function, streamed, heard, results };
  },

  async responses() {
    const whole = await client.responses.create({ model: "fake", input: "Hi" });
    const stream = client.responses.stream({ model: "fake", input: "And?", previous_response_id: whole.id });
    const kinds = new Set();
    for await (const event of stream) kinds.add(event.type);
    const kept = await client.responses.retrieve(whole.id);
    return {
      whole: whole.output_text,
      final: (await stream.finalResponse()).output_text,
      kept: kept.output_text,
      ended: kinds.has("response.completed"),
    };
  },

  async embeddings() {
    const vectors = new OpenAI({ baseURL: `${process.env.VECTORS}/v1`, apiKey: "none", maxRetries: 0 });
    const forms = [{}, { encoding_format: "float" }, { encoding_format: "base64" }];
    const answers = await Promise.all(
      forms.map((form) => vectors.embeddings.create({ model: "fake", input: ["Hi", "you"], ...form })),
    );
    return answers.map((answer) => answer.data.map((each) => each.embedding));
  },

  async abort() {
    const stream = await client.chat.completions.create({ ...asked, stream: true });
    let chunks = 0;
    for await (const _ of stream) {
      chunks += 1;
      if (chunks === 3) stream.controller.abort();
    }
    return { chunks };
  },

  async errors() {
    const failing = [{ model: "none" }, { top_p: 9 }, { messages: "Hi" }];
    const told = [];
    for (const change of failing) {
      try {
        await client.chat.completions.create({ ...asked, ...change });
      } catch (error) {
        told.push([error.constructor.name, error.status, error.param ?? null]);
      }
    }
    return told;
  },
};

console.log(JSON.stringify(await steps[process.argv[2]]()));
