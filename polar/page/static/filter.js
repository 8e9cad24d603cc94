/**
 * The filter of the list of sessions: words that all must hold.
 *
 * `status:FAILED,TIMED_OUT` one of these beginnings, `-flag:forked` not, `reward>0.5`, `calls<=3`, `reward:none` unknown, and free text,
 * which looks in ids, names and errors. Quotes hold words together: `"exit code"`. `flag:unknown` holds for sessions whose flags aren't
 * known; for these no other word about flags holds, nor does its opposite.
 */

/** Words before `:` and what they look at. */
const TEXTS = {
  status: (row) => [row.status, row.phase],
  phase: (row) => [row.phase],
  harness: (row) => [row.harness],
  flag: (row) => row.flags,
  run: (row) => [row.run],
  task: (row) => [row.task_id],
  session: (row) => [row.session_id],
  label: (row) => [row.label],
  error: (row) => (row.error ? [row.error.code, row.error.kind, row.error.stage] : []),
};

/** Words before `>`, `<`, `>=`, `<=`, `=`, `:` and what they look at. */
const NUMBERS = {
  reward: (row) => row.reward,
  calls: (row) => row.calls,
  sampled: (row) => row.sampled_tokens,
  trainable: (row) => row.trainable_tokens,
  masked: (row) => row.masked_tokens,
  attempt: (row) => row.attempt,
  version: (row) => row.policy_version,
  seconds: (row) => (row.ended_at === null || row.submitted_at === null ? null : (row.ended_at - row.submitted_at) / 1000),
};

const COMPARE = {
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
  "=": (a, b) => a === b,
  ":": (a, b) => a === b,
};

const WORD = /(-?)(?:([a-z_]+)(>=|<=|:|=|>|<))?("[^"]*"?|[^\s"]*)/giy;
const UNKNOWN = new Set(["none", "null"]);

/** The words that a filter knows, for the help. */
export const FILTER_WORDS = { texts: Object.keys(TEXTS), numbers: Object.keys(NUMBERS) };

/** @type {WeakMap<object, {at: number, text: string}>} */
const haystacks = new WeakMap();

/**
 * Read a filter.
 * @param {string} query
 * @returns {{matches: (row: Object<string, any>) => boolean, problems: string[]}} words with a problem count as not written
 */
export function parseFilter(query) {
  const tests = [];
  const problems = [];
  for (const { isNot, name, operator, value } of filterWords(query)) {
    const test = name ? named(name, operator, value) : holds(value);
    if (typeof test === "string") problems.push(test);
    else tests.push(isNot ? (row) => test(row) === false : test);
  }
  return { matches: (row) => tests.every((test) => test(row)), problems };
}

/**
 * The words of a filter. A word without a value is still being typed and left out.
 * @param {string} query
 * @returns {Generator<{isNot: boolean, name: string, operator: string, value: string}>} `name` is empty for free text
 */
export function* filterWords(query) {
  let at = 0;
  while (at < query.length) {
    if (/\s/.test(query[at])) {
      at += 1;
      continue;
    }
    WORD.lastIndex = at;
    const found = WORD.exec(query);
    if (!found || found[0].length === 0) return;
    at += found[0].length;
    const [, minus, name = "", operator = "", quoted] = found;
    const value = quoted.replaceAll('"', "");
    if (value) yield { isNot: Boolean(minus), name: name.toLowerCase(), operator, value };
  }
}

/** @returns {string|((row: Object<string, any>) => boolean|null)} a problem, or a test; null: it isn't known whether the word holds */
function named(name, operator, value) {
  if (Object.hasOwn(NUMBERS, name)) {
    const of = NUMBERS[name];
    if (UNKNOWN.has(value.toLowerCase())) return (row) => of(row) === null || of(row) === undefined;
    const number = Number(value);
    if (Number.isNaN(number)) return `${name} is compared with a number, as in ${name}>0.5`;
    const compare = COMPARE[operator];
    return (row) => {
      const known = of(row);
      return known !== null && known !== undefined && compare(known, number);
    };
  }
  if (!Object.hasOwn(TEXTS, name)) return `no field ${name}; there are ${[...FILTER_WORDS.texts, ...FILTER_WORDS.numbers].join(", ")}`;
  if (operator !== ":" && operator !== "=") return `${name} is text: write ${name}:${value}`;
  const of = TEXTS[name];
  const wanted = value.toLowerCase().split(",").filter(Boolean);
  return (row) => {
    const texts = of(row);
    if (texts === null || texts === undefined) return wanted.includes("unknown") || null;
    const known = texts.filter((text) => text !== null && text !== undefined);
    return wanted.some((word) =>
      UNKNOWN.has(word) ? known.length === 0 : known.some((text) => String(text).toLowerCase().startsWith(word)),
    );
  };
}

function holds(value) {
  const word = value.toLowerCase();
  return (row) => haystack(row).includes(word);
}

/** What free text looks in; kept until the row changes. */
function haystack(row) {
  const kept = haystacks.get(row);
  if (kept && kept.at === row.changed_at) return kept.text;
  const parts = [row.session_id, row.run, row.label, row.harness, row.phase, row.status, ...(row.flags ?? []), row.error?.code, row.error?.message];
  const text = parts.filter(Boolean).join("\n").toLowerCase();
  haystacks.set(row, { at: row.changed_at, text });
  return text;
}
