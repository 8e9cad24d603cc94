import { spawnSync } from "node:child_process";
import { anthropic } from "@ai-sdk/anthropic";
import { openai } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const [dialect, prompt] = process.argv.slice(2);
const bash = tool({
  description: "Run a command in bash.",
  inputSchema: z.object({ command: z.string() }),
  execute: async ({ command }) => spawnSync("bash", ["-c", command], { encoding: "utf8" }).stdout || "nothing",
});
const models = { anthropic_messages: anthropic, openai_chat: openai.chat, openai_responses: openai };
const model = models[dialect]("any");
const { text } = await generateText({ model, prompt, tools: { bash }, stopWhen: stepCountIs(8) });
console.log(text);
