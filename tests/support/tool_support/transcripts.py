"""Outputs of models and their expected parts. Each entry begins with the name of its format."""

from __future__ import annotations

from dataclasses import dataclass

from tool_support.reading import Found

from plimsoll_runtime.tools.base import Tool

TOOLS = [
    Tool(
        "get_weather",
        "The weather at a place.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 8},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    Tool(
        "search-files",
        None,
        {
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "maxLength": 6},
                "paths": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
                "options": {
                    "type": "object",
                    "properties": {"deep": {"type": "boolean"}, "limit": {"type": "number"}},
                    "additionalProperties": False,
                },
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
    ),
    Tool("now", None, {"type": "object", "properties": {}, "additionalProperties": False}),
]


@dataclass(frozen=True, slots=True)
class Transcript:
    """One output. `found` is its complete content."""

    form: str
    says: str
    text: str
    found: Found


def _one(form: str, says: str, text: str, *found: str | tuple[str, str]) -> Transcript:
    return Transcript(form, says, text, list(found))


_OSLO = '{"city": "Oslo"}'
_HARD = (
    '{"pattern": "}\\"]{ \\\\ </tool_call> \\u00e9 日本", "paths": ["a;b"], "options": {"deep": true, "limit": -1.5e3}}'
)

HERMES = [
    _one(
        "hermes",
        "a call alone",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        ("get_weather", _OSLO),
    ),
    _one(
        "hermes",
        "text, and two calls",
        "Let me look <b>twice</b>.\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "Let me look <b>twice</b>.\n\n",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "hermes",
        "arguments that look like everything else",
        '<tool_call>\n{"name": "search-files", "arguments": ' + _HARD + "}\n</tool_call>",
        ("search-files", _HARD),
    ),
    _one(
        "hermes",
        "arguments first, and as a text",
        '<tool_call>{"arguments": "{\\"city\\": \\"Oslo\\"}", "name": "get_weather"}</tool_call> So.',
        ("get_weather", _OSLO),
        " So.",
    ),
    _one("hermes", "no arguments", '<tool_call>{"name": "now"}</tool_call>\n', ("now", "{}")),
    _one("hermes", "null arguments", '<tool_call>{"id": 3, "name": "now", "arguments": null}', ("now", "{}")),
    _one(
        "hermes",
        "no end between calls",
        '<tool_call>{"name": "now"}\n<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}',
        ("now", "{}"),
        ("get_weather", _OSLO),
    ),
    _one("hermes", "cut in its marker", "Well <tool_c", "Well <tool_c"),
    _one("hermes", "cut in its name", '<tool_call>\n{"name": "now', '<tool_call>\n{"name": "now'),
    _one(
        "hermes",
        "cut in its arguments",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os',
        ("get_weather", '{"city": "Os'),
    ),
    _one(
        "hermes",
        "cut in its end",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool',
        ("get_weather", _OSLO),
    ),
    _one(
        "hermes",
        "an unknown tool, then a known one",
        '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>\n',
        ("now", "{}"),
    ),
    _one(
        "hermes",
        "broken arguments",
        '<tool_call>{"name": "get_weather", "arguments": {"city": Oslo}}</tool_call>',
        ("get_weather", '{"city": '),
        "Oslo}}</tool_call>",
    ),
    _one("hermes", "arguments that are no object", *['<tool_call>{"name": "now", "arguments": [1]}'] * 2),
    _one("hermes", "talk about the marker", *["One writes <tool_call> and </tool_call>, {}."] * 2),
    _one("hermes", "blanks", " \n ", " \n "),
]

LLAMA3 = [
    _one("llama3", "bare", '{"name": "get_weather", "parameters": {"city": "Oslo"}}', ("get_weather", _OSLO)),
    _one(
        "llama3",
        "two, joined",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "llama3",
        "two, on lines",
        '{"name": "now", "parameters": {}}\n{"type": "function", "name": "search-files", "parameters": '
        + _HARD
        + "}\n",
        ("now", "{}"),
        ("search-files", _HARD),
    ),
    _one(
        "llama3",
        "text, then the tag",
        'Let me see. <|python_tag|>{"name": "now", "parameters": {}}',
        "Let me see. ",
        ("now", "{}"),
    ),
    _one("llama3", "JSON that is no call", *['{"name": "Ada", "born": 1815}'] * 2),
    _one("llama3", "JSON within text", *['So: {"name": "now", "parameters": {}}'] * 2),
    _one("llama3", "code after the tag", *["<|python_tag|>print(1)"] * 2),
    _one("llama3", "joined pieces that form no call", '{"name": "now"}; and so on', ("now", "{}"), "; and so on"),
    _one("llama3", "cut", '{"name": "now", "parameters": {"a": [1', ("now", '{"a": [1')),
]

MISTRAL = [
    _one(
        "mistral",
        "a list",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "mistral",
        "a list with ids",
        '[TOOL_CALLS] [{"name": "search-files", "arguments": ' + _HARD + ', "id": "a1b2c3d4e"}]',
        ("search-files", _HARD),
    ),
    _one(
        "mistral",
        "names with arguments",
        'I will.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}',
        "I will.",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one("mistral", "a call's id", "[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{} ", ("now", "{}")),
    _one("mistral", "no marker between", '[TOOL_CALLS]get_weather{"city": "Oslo"}', ("get_weather", _OSLO)),
    _one("mistral", "an unknown name", *["[TOOL_CALLS]fly[ARGS]{}"] * 2),
    _one(
        "mistral",
        "an unknown name in a list",
        '[TOOL_CALLS][{"name": "now"}, {"name": "fly"}]',
        ("now", "{}"),
        ', {"name": "fly"}]',
    ),
    _one("mistral", "cut in a name", *["See [TOOL_CALLS]get_wea"] * 2),
    _one("mistral", "cut in a list", '[TOOL_CALLS][{"name": "now", "arguments": {}}', ("now", "{}")),
    _one("mistral", "brackets", *["[TOOL] [1] [TOOL_CALLS"] * 2),
]

GRANITE = [
    _one(
        "granite",
        "a list",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "now", "arguments": {}}]',
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one("granite", "the marker as text", '<tool_call> [{"arguments": {}, "name": "now"}]', ("now", "{}")),
    _one(
        "granite",
        "hard",
        '<|tool_call|>[{"name": "search-files", "arguments": ' + _HARD + "}]",
        ("search-files", _HARD),
    ),
    _one("granite", "an empty list", *["<|tool_call|>[]"] * 2),
    _one("granite", "no call", *["<|tool_call|> is a marker"] * 2),
    _one("granite", "cut", '<|tool_call|>[{"name": "now", "arguments": {}}, {"na', ("now", "{}")),
]

PHI4 = [
    _one(
        "phi4",
        "between markers",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>',
        ("get_weather", _OSLO),
    ),
    _one(
        "phi4",
        "functools",
        'functools[{"name": "now", "arguments": {}}, {"name": "search-files", "arguments": ' + _HARD + "}]",
        ("now", "{}"),
        ("search-files", _HARD),
    ),
    _one("phi4", "talk of functools", *["from functools import cache; functools[0]"] * 2),
    _one("phi4", "cut", "ok <|tool_call|>[", "ok <|tool_call|>["),
]

KIMI = [
    _one(
        "kimi_k2",
        "two",
        "Looking.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Oslo"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "Looking.",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "kimi_k2",
        "on lines, without a prefix",
        "<|tool_calls_section_begin|>\n<|tool_call_begin|>\nsearch-files:12\n<|tool_call_argument_begin|>\n"
        + _HARD
        + "\n<|tool_call_end|>\n<|tool_calls_section_end|> Done.",
        ("search-files", _HARD),
        " Done.",
    ),
    _one("kimi_k2", "no section after all", *["<|tool_calls_section_begin|> is how calls begin"] * 2),
    _one(
        "kimi_k2",
        "unknown",
        *["<|tool_calls_section_begin|><|tool_call_begin|>functions.fly:0<|tool_call_argument_begin|>{}"] * 2,
    ),
    _one(
        "kimi_k2",
        "cut",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_e",
        ("now", "{}"),
    ),
]

DEEPSEEK = [
    _one(
        "deepseek_v3",
        "two",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "deepseek_v3",
        "hard",
        "Hm. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search-files\n```json\n"
        + _HARD
        + "\n```",
        "Hm. ",
        ("search-files", _HARD),
    ),
    _one(
        "deepseek_v3",
        "unknown",
        *["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>fly\n```json\n{}\n```<｜tool▁call▁end｜>"]
        * 2,
    ),
    _one("deepseek_v3", "no fence", *["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}"] * 2),
    _one(
        "deepseek_v31",
        "two",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "deepseek_v31",
        "hard, and cut in a second name",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search-files<｜tool▁sep｜>"
        + _HARD
        + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>no",
        ("search-files", _HARD),
    ),
    _one(
        "deepseek_v31",
        "unknown",
        *["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>fly<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"] * 2,
    ),
]

_PLAIN = '{"pattern": "a < b\\n\\"{", "paths": ["x"], "options": {"deep": true}}'

TAGGED = [
    _one(
        "qwen3_coder",
        "two",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "I look.\n",
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("now", "{}"),
    ),
    _one(
        "qwen3_coder",
        "without the outer tag, of several lines, and in Python's words",
        '<function=search-files>\n<parameter=pattern>\na < b\n"{\n</parameter>\n<parameter=paths>["x"]</parameter>\n'
        "<parameter=options>{'deep': True}</parameter></function>",
        ("search-files", _PLAIN),
    ),
    _one(
        "qwen3_coder",
        "a text that looks like a number",
        "<tool_call><function=get_weather><parameter=city>12</parameter><parameter=more>12</parameter></function>",
        ("get_weather", '{"city": "12", "more": 12}'),
    ),
    _one("qwen3_coder", "unknown", *["<tool_call>\n<function=fly>\n</function>\n</tool_call>"] * 2),
    _one(
        "qwen3_coder",
        "cut in a string",
        "<tool_call><function=get_weather><parameter=city>\nOs\n</para",
        ("get_weather", '{"city": "Os'),
    ),
    _one(
        "qwen3_coder",
        "cut in a number",
        "<tool_call><function=get_weather><parameter=days>1",
        ("get_weather", '{"days": '),
    ),
    _one(
        "qwen3_coder",
        "the end of a value within JSON, and JSON without an end",
        "<tool_call><function=search-files><parameter=pattern>x</parameter><parameter=paths>\n"
        '["</parameter>"]\n</parameter>\n</function></tool_call>\n<tool_call><function=search-files>'
        "<parameter=paths>[1, 2</parameter></function></tool_call>",
        ("search-files", '{"pattern": "x", "paths": ["</parameter>"]}'),
        ("search-files", '{"paths": "[1, 2"}'),
    ),
    _one(
        "glm4",
        "two",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("now", "{}"),
    ),
    _one(
        "glm4",
        "without line breaks",
        '<tool_call>search-files<arg_key>pattern</arg_key><arg_value>a < b\n"{</arg_value><arg_key>paths</arg_key>'
        '<arg_value>["x"]</arg_value><arg_key>options</arg_key><arg_value>{"deep": true}</arg_value></tool_call> Done',
        ("search-files", _PLAIN),
        " Done",
    ),
    _one("glm4", "unknown", *["<tool_call>fly</tool_call>"] * 2),
    _one(
        "glm4",
        "broken: a key without a value",
        "<tool_call>get_weather<arg_key>city</arg_key>Oslo</tool_call>",
        ("get_weather", "{"),
        "city</arg_key>Oslo</tool_call>",
    ),
    _one(
        "minimax",
        "two",
        'Well.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="unit">celsius</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "Well.\n",
        ("get_weather", '{"city": "Oslo", "unit": "celsius"}'),
        ("now", "{}"),
    ),
    _one(
        "minimax",
        "hard",
        '<minimax:tool_call><invoke name="search-files"><parameter name="pattern">a < b\n"{</parameter>'
        '<parameter name="paths">["x"]</parameter><parameter name="options">{"deep": true}</parameter></invoke>',
        ("search-files", _PLAIN),
    ),
    _one("minimax", "unknown", *['<minimax:tool_call>\n<invoke name="fly">\n</invoke>\n</minimax:tool_call>'] * 2),
]

OTHERS = [
    _one(
        "seed_oss",
        "two",
        "\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>3</parameter>\n"
        "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("now", "{}"),
    ),
    _one(
        "seed_oss",
        "line breaks that are the value's own",
        "<seed:tool_call><function=get_weather><parameter=city>\nOs\n</parameter></function></seed:tool_call>",
        ("get_weather", '{"city": "\\nOs\\n"}'),
    ),
    _one("seed_oss", "unknown", *["<seed:tool_call>\n<function=fly>\n</function>\n</seed:tool_call>"] * 2),
    _one(
        "nemotron",
        "two",
        'Hm. <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
        '{"name": "now", "arguments": {}}]</TOOLCALL>',
        "Hm. ",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one("nemotron", "cut", '<TOOLCALL>[{"name": "now", "arguments": {}}', ("now", "{}")),
    _one("nemotron", "unknown", *['<TOOLCALL>[{"name": "fly", "arguments": {}}]</TOOLCALL>'] * 2),
]

PYTHONIC = [
    _one(
        "llama4_pythonic",
        "two",
        '[get_weather(city="Oslo", days=3), now()]',
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("now", "{}"),
    ),
    _one(
        "llama4_pythonic",
        "quotes, brackets and Python's words",
        "<|python_start|>[search-files("
        "pattern='a, \"b)\\'', paths=['x', \"]\"], options={'deep': True, 'limit': None})]"
        "<|python_end|>",
        ("search-files", '{"pattern": "a, \\"b)\'", "paths": ["x", "]"], "options": {"deep": true, "limit": null}}'),
    ),
    _one(
        "llama4_pythonic",
        "JSON's words, and a word without quotes",
        'Well: <|python_start|>[search-files(pattern=all, options={"deep": true})]',
        "Well: ",
        ("search-files", '{"pattern": "all", "options": {"deep": true}}'),
    ),
    _one("llama4_pythonic", "a list that is none", *["[1] Fermi (1934), [now]"] * 2),
    _one("llama4_pythonic", "unknown", *["[fly(a=1)]"] * 2),
    _one("llama4_pythonic", "within text", *["So [now()]"] * 2),
    _one("llama4_pythonic", "broken: no keyword", "[get_weather(3)]", ("get_weather", "{"), "3)]"),
    _one("llama4_pythonic", "cut", '[get_weather(city="Oslo", days=1', ("get_weather", '{"city": "Oslo"')),
]

_FINAL = "<|channel|>final<|message|>"
_ANALYSIS = "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant"

HARMONY = [
    _one(
        "harmony",
        "a call",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        ("get_weather", _OSLO),
    ),
    _one(
        "harmony",
        "a call that ends the answer",
        "<|channel|>commentary to=functions.search-files <|constrain|>json<|message|>" + _HARD,
        ("search-files", _HARD),
    ),
    _one(
        "harmony",
        "the recipient first, as templates render it",
        " to=functions.get_weather<|channel|>commentary json<|message|>" + _OSLO,
        ("get_weather", _OSLO),
    ),
    _one(
        "harmony",
        "two, with starts between",
        "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|><|start|>assistant to=functions."
        "get_weather<|channel|>commentary <|constrain|>json<|message|>" + _OSLO + "<|call|>",
        ("now", "{}"),
        ("get_weather", _OSLO),
    ),
    _one("harmony", "other channels are text", *[_ANALYSIS + _FINAL + "Rain."] * 2),
    _one("harmony", "an unknown function", *["<|channel|>commentary to=functions.fly<|message|>{}"] * 2),
    _one("harmony", "a tool of the model's own", *["<|channel|>analysis to=python code<|message|>print(1)"] * 2),
    _one("harmony", "cut in its header", *["<|channel|>commentary to=functions.no"] * 2),
    _one(
        "harmony",
        "cut in its arguments",
        '<|channel|>commentary to=functions.now<|message|>{"a": [',
        ("now", '{"a": ['),
    ),
]

GEMMA = [
    _one(
        "gemma4",
        "two",
        'Hm.\n<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>',
        "Hm.\n",
        ("get_weather", '{"city": "Oslo", "days": 3}'),
        ("now", "{}"),
    ),
    _one(
        "gemma4",
        "lists, objects and what looks like the syntax",
        '<|tool_call>call:search-files{options:{deep:true,<|"|>limit<|"|>:-1.5},paths:[<|"|>a,b<|"|>,<|"|>]}<|"|>],'
        'pattern:<|"|>a "q" {x:1},\nb<|"|>}<tool_call|>',
        (
            "search-files",
            '{"options": {"deep": true, "limit": -1.5}, "paths": ["a,b", "]}"], "pattern": "a \\"q\\" {x:1},\\nb"}',
        ),
    ),
    _one(
        "gemma4",
        "JSON's own quotes, spaces and no quotes",
        '<|tool_call>call:search-files { "pattern" : "x", paths: ["\\u00e9"], options: {"deep": false} }<tool_call|> A',
        ("search-files", '{"pattern": "x", "paths": ["\\u00e9"], "options": {"deep": false}}'),
        " A",
    ),
    _one(
        "gemma4",
        "a text without quotes, and a number that is to be one",
        "<|tool_call>call:get_weather{city:12,unit:celsius}<tool_call|>",
        ("get_weather", '{"city": "12", "unit": "celsius"}'),
    ),
    _one("gemma4", "unknown", *["<|tool_call>call:fly{}<tool_call|>"] * 2),
    _one("gemma4", "no call", *["<|tool_call>{}<tool_call|>"] * 2),
    _one("gemma4", "cut in a text", '<|tool_call>call:get_weather{city:<|"|>Os', ("get_weather", '{"city": "Os')),
    _one("gemma4", "cut in a number", "<|tool_call>call:get_weather{days:1", ("get_weather", '{"days": ')),
    _one(
        "gemma4",
        "broken: a key twice",
        "<|tool_call>call:get_weather{days:1,days:2}",
        ("get_weather", '{"days": 1'),
        ",days:2}",
    ),
    _one(
        "functiongemma",
        "two",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        ("get_weather", _OSLO),
        ("now", "{}"),
    ),
    _one(
        "functiongemma",
        "texts in lists",
        '<start_function_call>call:search-files{paths:[<escape>x<escape>],pattern:<escape>a < b\n"{<escape>,'
        "options:{deep:True}}<end_function_call>",
        ("search-files", '{"paths": ["x"], "pattern": "a < b\\n\\"{", "options": {"deep": true}}'),
    ),
    _one("functiongemma", "unknown", *["<start_function_call>call:fly{}<end_function_call>"] * 2),
    _one(
        "gemma3",
        "one",
        'Well:\n```tool_code\nget_weather(city="Oslo", days=3)\n```',
        "Well:\n",
        ("get_weather", '{"city": "Oslo", "days": 3}'),
    ),
    _one(
        "gemma3",
        "on lines, printed and in a list",
        "```tool_code\nnow()\nprint(get_weather(city='Oslo'))\n[now(), now()]\n```\n",
        ("now", "{}"),
        ("get_weather", _OSLO),
        ("now", "{}"),
        ("now", "{}"),
    ),
    _one("gemma3", "white space in a list", "```tool_code\n[ now(), now() ]\n```", ("now", "{}"), ("now", "{}")),
    _one("gemma3", "other code", *["```tool_code\nimport os\n```"] * 2),
    _one("gemma3", "another fence", *["```python\nnow()\n```"] * 2),
    _one("gemma3", "cut", '```tool_code\nget_weather(city="Oslo", days=', ("get_weather", '{"city": "Oslo"')),
    _one("gemma3_json", "bare", '{"name": "get_weather", "parameters": {"city": "Oslo"}}', ("get_weather", _OSLO)),
    _one(
        "gemma3_json",
        "a list in a fence",
        'So.\n```json\n[{"name": "now", "parameters": {}}, {"name": "search-files", "parameters": ' + _HARD + "}]\n```",
        "So.\n",
        ("now", "{}"),
        ("search-files", _HARD),
    ),
    _one("gemma3_json", "JSON that is no call", *['```json\n{"name": "Ada"}\n```'] * 2),
    _one("gemma3_json", "unknown", *['{"name": "fly", "parameters": {}}'] * 2),
]

TRANSCRIPTS = [
    *HERMES,
    *LLAMA3,
    *MISTRAL,
    *GRANITE,
    *PHI4,
    *KIMI,
    *DEEPSEEK,
    *TAGGED,
    *OTHERS,
    *PYTHONIC,
    *HARMONY,
    *GEMMA,
]
