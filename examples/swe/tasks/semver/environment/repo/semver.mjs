// Versions by semver.org, 2.0.0.

const VERSION = /^(\d+)\.(\d+)\.(\d+)$/;

function parts(version) {
  const found = VERSION.exec(version);
  if (found === null) throw new TypeError(`no version: ${version}`);
  return found.slice(1).map(Number);
}

// Negative, zero or positive, for sort().
export function compare(one, other) {
  const [left, right] = [parts(one), parts(other)];
  const at = left.findIndex((part, index) => part !== right[index]);
  return at === -1 ? 0 : left[at] - right[at];
}
