// Prints the JSON Schemas that zod makes of the types that it documents, as zod_schemas.json has them.
// In a folder with a copy of this file: npm install zod@4.6.7 && node zod_schemas.mjs > zod_schemas.json
import * as z from "zod";

const Node = z.object({
  name: z.string(),
  get children() {
    return z.array(Node);
  },
});

const types = {
  // Primitives and literals
  string: z.string(),
  number: z.number(),
  boolean: z.boolean(),
  null: z.null(),
  any: z.any(),
  unknown: z.unknown(),
  literal: z.literal("tuna"),
  literals: z.literal(["red", "green", 7, true, null]),
  // Strings
  "string.max": z.string().max(5),
  "string.min": z.string().min(5),
  "string.length": z.string().length(5),
  "string.regex": z.string().regex(/^[a-z]+$/),
  "string.startsWith": z.string().startsWith("aaa"),
  "string.endsWith": z.string().endsWith("zzz"),
  "string.includes": z.string().includes("---"),
  "string.uppercase": z.string().uppercase(),
  "string.lowercase": z.string().lowercase(),
  "string.trim": z.string().trim(),
  // String formats
  email: z.email(),
  "email.html5": z.email({ pattern: z.regexes.html5Email }),
  "email.rfc5322": z.email({ pattern: z.regexes.rfc5322Email }),
  "email.unicode": z.email({ pattern: z.regexes.unicodeEmail }),
  uuid: z.uuid(),
  uuidv4: z.uuidv4(),
  uuidv6: z.uuidv6(),
  uuidv7: z.uuidv7(),
  guid: z.guid(),
  url: z.url(),
  httpUrl: z.httpUrl(),
  "url.hostname": z.url({ hostname: /^example\.com$/ }),
  hostname: z.hostname(),
  emoji: z.emoji(),
  base64: z.base64(),
  base64url: z.base64url(),
  hex: z.hex(),
  jwt: z.jwt(),
  nanoid: z.nanoid(),
  cuid: z.cuid(),
  cuid2: z.cuid2(),
  ulid: z.ulid(),
  xid: z.xid(),
  ksuid: z.ksuid(),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  mac: z.mac(),
  cidrv4: z.cidrv4(),
  cidrv6: z.cidrv6(),
  hash: z.hash("sha256"),
  e164: z.e164(),
  "iso.date": z.iso.date(),
  "iso.time": z.iso.time(),
  "iso.datetime": z.iso.datetime(),
  "iso.datetime.offset": z.iso.datetime({ offset: true }),
  "iso.datetime.local": z.iso.datetime({ local: true }),
  "iso.duration": z.iso.duration(),
  stringFormat: z.stringFormat("cool-id", /^id-[0-9]{3}$/),
  templateLiteral: z.templateLiteral(["hello, ", z.string(), "!"]),
  "templateLiteral.units": z.templateLiteral([z.number(), z.enum(["px", "em", "rem", "%"])]),
  stringbool: z.stringbool(),
  // Numbers
  "number.gt": z.number().gt(5),
  "number.gte": z.number().gte(5),
  "number.lt": z.number().lt(5),
  "number.lte": z.number().lte(5),
  "number.positive": z.number().positive(),
  "number.nonnegative": z.number().nonnegative(),
  "number.negative": z.number().negative(),
  "number.nonpositive": z.number().nonpositive(),
  "number.multipleOf": z.number().multipleOf(5),
  int: z.int(),
  int32: z.int32(),
  uint32: z.uint32(),
  float32: z.float32(),
  float64: z.float64(),
  // Enums and what may be missing
  enum: z.enum(["Salmon", "Tuna", "Trout"]),
  nativeEnum: z.nativeEnum({ Up: 0, Down: 1 }),
  exclude: z.enum(["Salmon", "Tuna", "Trout"]).exclude(["Salmon"]),
  optional: z.object({ a: z.optional(z.string()) }),
  nullable: z.nullable(z.string()),
  nullish: z.object({ a: z.nullish(z.string()) }),
  default: z.object({ a: z.string().default("tuna") }),
  prefault: z.object({ a: z.string().prefault("tuna") }),
  catch: z.object({ a: z.number().catch(42) }),
  nonoptional: z.object({ a: z.nonoptional(z.optional(z.string())) }),
  never: z.object({ a: z.string(), b: z.never().optional() }),
  readonly: z.object({ a: z.string() }).readonly(),
  // Objects
  object: z.object({ name: z.string(), age: z.number() }),
  strictObject: z.strictObject({ name: z.string(), age: z.number() }),
  looseObject: z.looseObject({ name: z.string() }),
  catchall: z.object({ name: z.string() }).catchall(z.number()),
  extend: z.object({ name: z.string() }).extend({ breed: z.string() }),
  partial: z.object({ name: z.string(), age: z.int() }).partial(),
  recursive: Node,
  record: z.record(z.string(), z.number()),
  "record.enum": z.record(z.enum(["id", "name", "email"]), z.string()),
  "record.pattern": z.record(z.string().regex(/^x-[a-z]+$/), z.string()),
  "record.length": z.record(z.string().min(2).max(4), z.boolean()),
  "record.number": z.record(z.number(), z.string()),
  "record.uuid": z.record(z.uuid(), z.int32()),
  partialRecord: z.partialRecord(z.enum(["id", "name", "email"]), z.string()),
  looseRecord: z.looseRecord(z.string().regex(/_phone$/), z.string()),
  keyof: z.object({ name: z.string(), age: z.number() }).keyof(),
  // Arrays and tuples
  array: z.array(z.string()),
  "array.min": z.array(z.string()).min(2),
  "array.max": z.array(z.string()).max(2),
  "array.length": z.array(z.string()).length(2),
  tuple: z.tuple([z.string(), z.number(), z.boolean()]),
  "tuple.rest": z.tuple([z.string()], z.number()),
  "tuple.optional": z.tuple([z.string(), z.number().optional()]),
  // Unions
  union: z.union([z.string(), z.number()]),
  xor: z.xor([z.string(), z.number()]),
  discriminatedUnion: z.discriminatedUnion("status", [
    z.object({ status: z.literal("success"), data: z.string() }),
    z.object({ status: z.literal("failed"), error: z.string() }),
  ]),
  intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  "intersection.union": z.intersection(z.union([z.number(), z.string()]), z.union([z.number(), z.boolean()])),
  json: z.json(),
  // What is more than a type
  refine: z.string().refine((value) => value.length < 255),
  brand: z.object({ name: z.string() }).brand("Cat"),
  meta: z.string().meta({ id: "named", title: "A name", description: "Of a person.", examples: ["Ada"] }),
  describe: z.number().describe("How many."),
  pipe: z.pipe(z.string(), z.string().min(1)),
  codec: z.codec(z.iso.datetime(), z.date(), { decode: (text) => new Date(text), encode: (date) => date.toISOString() }),
  coerce: z.coerce.string(),
  lookahead: z.string().regex(/^(?=.*[0-9])[a-z0-9]{4,8}$/),
};

const schemas = {};
for (const [name, type] of Object.entries(types)) {
  for (const io of ["input", "output"]) {
    for (const target of ["draft-2020-12", "draft-7"]) {
      schemas[`${name} ${io} ${target}`] = z.toJSONSchema(type, { io, target, unrepresentable: "any" });
    }
  }
}
const distinct = {};
const seen = new Set();
for (const [name, schema] of Object.entries(schemas)) {
  const text = JSON.stringify(schema);
  if (!seen.has(text)) distinct[name] = schema;
  seen.add(text);
}
const lines = Object.entries(distinct).map(([name, schema]) => `${JSON.stringify(name)}: ${JSON.stringify(schema)}`);
console.log(`{\n${lines.join(",\n")}\n}`);
