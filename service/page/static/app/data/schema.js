/** JSON Schema as a form needs it: references followed, members of families found by their kind. */

/** Return a schema with its reference followed, and the document its own references are in. */
export function resolved(schema, root) {
  let found = schema;
  while (found?.$ref) {
    const path = found.$ref.replace(/^#\//, "").split("/");
    const { $ref, ...beside } = found;
    found = { ...path.reduce((at, part) => at?.[part], root), ...beside };
  }
  return found ?? {};
}

/** What a field takes: `{ kind, ... }` with kind one of family, object, choice, flag, number, text, list, map. */
export function shapeOf(schema, root, catalogue) {
  const found = resolved(schema, root);
  const options = found.anyOf ?? [];
  const isOptional = options.some((one) => one.type === "null");
  const rest = options.filter((one) => one.type !== "null").map((one) => resolved(one, root));
  if (found.oneOf && found.discriminator) return family(found, root, catalogue, isOptional);
  if (rest.length) {
    const first = rest.find((one) => one.oneOf ?? one.properties) ?? rest[0];
    const shape = shapeOf({ ...first, default: found.default }, root, catalogue);
    const words = rest.filter((one) => one.enum && one !== first).flatMap((one) => one.enum);
    return { ...shape, isOptional, words };
  }
  if (found.properties) return { kind: "object", properties: found.properties, root, fallback: found.default };
  if (found.enum) return { kind: "choice", options: found.enum, fallback: found.default };
  if (found.const !== undefined) return { kind: "fixed", fallback: found.const };
  if (found.type === "boolean") return { kind: "flag", fallback: found.default };
  if (found.type === "integer" || found.type === "number") {
    return { kind: "number", isWhole: found.type === "integer", min: found.minimum, max: found.maximum, fallback: found.default };
  }
  if (found.type === "array") return { kind: "list", fallback: found.default };
  if (found.type === "object") return { kind: "map", fallback: found.default };
  return { kind: "text", pattern: found.pattern, fallback: found.default };
}

/** A family: its members as `GET /components` has them, each with its own schema. */
function family(schema, root, catalogue, isOptional) {
  const kinds = Object.keys(schema.discriminator.mapping);
  const members = Object.values(catalogue?.families ?? {}).find((list) => list.length === kinds.length && list.every((one) => kinds.includes(one.kind)));
  const found = kinds.map((kind) => {
    const known = members?.find((one) => one.kind === kind);
    const own = known ? known.schema : resolved({ $ref: schema.discriminator.mapping[kind] }, root);
    return { kind, summary: known?.summary ?? "", properties: own.properties ?? {}, root: known ? known.schema : root };
  });
  return { kind: "family", members: found, isOptional, fallback: schema.default };
}

/** Return `value` with another value at a path; undefined takes the field out. */
export function put(value, path, given) {
  const [first, ...rest] = path;
  const inner = rest.length ? put(value?.[first] ?? {}, rest, given) : given;
  const { [first]: gone, ...others } = value ?? {};
  return inner === undefined ? others : { ...value, [first]: inner };
}
