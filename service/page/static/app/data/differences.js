/** What several specifications differ in, field by field. */

/** Return `[{ path, values }]` of the fields that are not the same in all; `undefined` where one has no such field. */
export function differences(specs) {
  const flat = specs.map((spec) => flattened(spec ?? {}));
  const paths = [...new Set(flat.flatMap((one) => Object.keys(one)))].sort();
  return paths
    .map((path) => ({ path, values: flat.map((one) => one[path]) }))
    .filter(({ path, values }) => path !== "name" && new Set(values.map((value) => JSON.stringify(value ?? null))).size > 1)
    .sort((a, b) => rank(a) - rank(b));
}

/** What kind something is comes before its details, and what all have before what only some have. */
function rank({ path, values }) {
  return (path.endsWith("kind") ? 0 : 2) + (values.includes(undefined) ? 1 : 0);
}

function flattened(value, path = "", found = {}) {
  if (value && typeof value === "object" && !Array.isArray(value)) {
    for (const [name, inner] of Object.entries(value)) flattened(inner, path ? `${path}.${name}` : name, found);
  } else {
    found[path] = value;
  }
  return found;
}
