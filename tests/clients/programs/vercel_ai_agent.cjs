// An agent of the Vercel AI SDK: calls, their results, and the answer to them; plain and streamed.
// CHOICE in the environment is the first turn's choice of tools.
const fs = require("node:fs");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");

const { MODEL, QUESTION } = process.env;
const at = { baseURL: process.env.OPENAI_BASE_URL, apiKey: "none" };
const parameters = {
  type: "object", properties: { side: { type: "boolean" } }, required: ["side"], additionalProperties: false,
};
const asked = {
  prompt: QUESTION,
  seed: Number(process.env.SEED),
  maxRetries: 0,
  tools: { flip: tool({ description: "Flips.", inputSchema: jsonSchema(parameters), execute: ({ side }) => `flipped to ${side}` }) },
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : process.env.CHOICE }),
  // Without it the provider for OpenAI sends the ids of earlier items in place of their texts.
  providerOptions: { openai: { store: false } },
};

async function ran(steps) {
  const [first, second] = await steps;
  if (first.finishReason !== "tool-calls" || !second.text) throw new Error(JSON.stringify([first, second]));
  const calls = first.toolCalls.map((call) => `${call.toolName}(${JSON.stringify(call.input)})`);
  return `${first.text}${calls.join(", ")}: ${second.text}`;
}

async function streamed(model) {
  const result = streamText({ model, ...asked, onError: ({ error }) => { throw error; } });
  await result.consumeStream();
  return ran(result.steps);
}

async function main() {
  const models = { chat: createOpenAICompatible({ name: "banyan", ...at })(MODEL), responses: createOpenAI(at)(MODEL) };
  const texts = {};
  for (const [name, model] of Object.entries(models)) {
    texts[name] = await ran((await generateText({ model, ...asked })).steps);
    texts[`${name}_streamed`] = await streamed(model);
  }
  fs.writeFileSync(process.argv[2], JSON.stringify(texts));
}

main().catch((error) => { console.error(error); process.exit(1); });
