/** What the samples above the group's mean did, beside the others: calls, tokens, tools. */

import { h } from "../dom.js";
import { NONE, percent, reward, short } from "../format.js";
import { table } from "../table.js";

/**
 * @param {any[]} samples of a task
 * @returns {HTMLElement}
 */
export function comparison(samples) {
  const rewarded = samples.filter((sample) => sample.reward !== null);
  if (rewarded.length === 0) return note("No sample has a reward yet.");
  const rewards = rewarded.map((sample) => sample.reward);
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  // A mean is rounded: that of equal rewards may lie beside them.
  const mean = Math.min(Math.max(average(rewards), low), high);
  const isGood = (sample) => sample.reward > mean || sample.reward === high;
  const [good, others] = [rewarded.filter(isGood), rewarded.filter((sample) => !isGood(sample))];
  if (others.length === 0) return note(`All ${rewarded.length} rewards are ${reward(mean)}: this group has no variance, so it teaches nothing.`);
  const rows = [...figureRows(good, others), ...toolRows(good, others)];
  return table("What the good samples did", ["a sample has on average", `>good (${good.length}, reward > ${reward(mean)})`, `>others (${others.length})`, "difference"], rows, "");
}

function figureRows(good, others) {
  const of = (name, read, write = short) => {
    const [a, b] = [average(good.map(read)), average(others.map(read))];
    return [name, written(a, write), written(b, write), bar(a, b)];
  };
  return [
    of("reward", (sample) => sample.reward, reward),
    of("calls", (sample) => sample.calls?.length ?? null),
    of("sampled tokens", (sample) => sample.sampled_tokens),
    of("answers cut by length", (sample) => (sample.calls ? share(sample.calls, (call) => call.finish_reason === "length") : null), percent),
  ];
}

function toolRows(good, others) {
  const uses = (sample, name) => (sample.calls ?? []).reduce((sum, call) => sum + call.tools.filter((tool) => tool === name).length, 0);
  const names = new Set([...good, ...others].flatMap((sample) => (sample.calls ?? []).flatMap((call) => call.tools)));
  return [...names]
    .map((name) => ({ name, a: average(good.map((sample) => uses(sample, name))), b: average(others.map((sample) => uses(sample, name))) }))
    .sort((x, y) => Math.abs(y.a - y.b) - Math.abs(x.a - x.b))
    .map(({ name, a, b }) => [["uses of ", h("code", null, name)], short(a), short(b), bar(a, b)]);
}

/** A bar to the right where the good have more, to the left where they have less. */
function bar(a, b) {
  if (a === null || b === null) return NONE;
  const size = Math.max(Math.abs(a), Math.abs(b)) || 1;
  const share = (a - b) / size;
  const mark = h("i", { class: share < 0 ? "less" : "more" });
  mark.style.inlineSize = `${Math.abs(share) * 50}%`;
  return h("span", { class: "balance", role: "img", "aria-label": `${share < 0 ? "less" : "more"} by ${percent(Math.abs(share))}` }, mark);
}

function note(text) {
  return h("section", { class: "panel" }, h("h2", null, "What the good samples did"), h("p", { class: "quiet" }, text));
}

function average(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

function share(items, test) {
  return items.length ? items.filter(test).length / items.length : 0;
}

function written(value, write) {
  return value === null ? NONE : write(value);
}
