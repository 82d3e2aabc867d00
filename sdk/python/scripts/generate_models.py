"""Makes `generated/models.py` from the OpenAPI document of the native API.

Answers become classes with attributes (`Model`); what can be part of a request becomes a `TypedDict`, so that an answer
such as a learned network policy can be sent again.
"""

from __future__ import annotations

import json
import keyword
import textwrap
from pathlib import Path
from typing import Any, cast

Schema = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]

# Keyword arguments of methods: the fields of a request body without those that the method names itself.
OPTIONS = {
    "CreateOptions": ("CreateBody", {"template"}),
    "UpdateOptions": ("UpdateBody", set[str]()),
    "BuildOptions": ("BuildBody", {"template"}),
    "TemplateOptions": ("UpdateTemplateBody", set[str]()),
}
# A class of this package has the name.
RENAMED = {
    "NewPreviewAnswer": "NewPreview",
    "Preview": "ListedPreview",
    "Process": "ProcessInfo",
    "Sandbox": "SandboxInfo",
    "Terminal": "TerminalInfo",
}
# Parts of the API that the SDK does not wrap, and pages, which it turns into lists and iterators.
LEFT_OUT = {"BuildForm", "Health", "Invite", "RedeemedKey"}

PLAIN = {"integer": "int", "number": "float", "boolean": "bool", "null": "None"}

HEAD = '''"""Types of the native API. Made from docs/openapi.json by scripts/generate.py; do not edit."""

# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from ..model import Model, each, parse_time, same

if TYPE_CHECKING:
    from typing_extensions import Required

'''


def generate() -> str:
    """The text of the module."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    schemas: dict[str, Schema] = document["components"]["schemas"]
    requests = reachable(schemas, request_roots(document))
    responses = reachable(schemas, response_roots(document))
    names = [name for name in schemas if name in responses | requests and name not in LEFT_OUT]
    names = [name for name in names if not name.endswith(("List", "Page")) and not name.startswith("Lsp")]
    bodies = {body for body, _ in OPTIONS.values()} | {"Error", "What", "SecretChange", "TenantChange", "TenantProviders"}
    module = Module(schemas, requests)
    for name in sorted(names):
        if name in responses or not name.endswith("Body") or name in ("MountBody", "BuildSecretBody"):
            if name not in bodies:
                module.add(name)
    for option, (body, without) in OPTIONS.items():
        module.add_options(option, schemas[body], without)
    return module.text()


def request_roots(document: Schema) -> set[str]:
    return {name for op in operations(document) for name in references(op.get("requestBody", {}))}


def response_roots(document: Schema) -> set[str]:
    return {name for op in operations(document) for name in references(op.get("responses", {}))}


def operations(document: Schema) -> list[Schema]:
    return [op for path in document["paths"].values() for op in path.values() if isinstance(op, dict)]


def references(node: Any) -> set[str]:
    """Names of the schemas that a part of the document refers to."""
    found: set[str] = set()
    if isinstance(node, dict):
        fields = cast("Schema", node)
        if isinstance(fields.get("$ref"), str):
            found.add(fields["$ref"].split("/")[-1])
        node = list(fields.values())
    if isinstance(node, list):
        for value in cast("list[Any]", node):
            found |= references(value)
    return found


def reachable(schemas: dict[str, Schema], roots: set[str]) -> set[str]:
    seen: set[str] = set()
    todo = [name for name in roots if name in schemas]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(references(schemas[name]))
    return seen


def sentence(schema: Schema) -> str:
    return " ".join((schema.get("description") or "").split())


def docstring(text: str, indent: str) -> list[str]:
    """A docstring, wrapped."""
    if not text:
        return []
    lines = textwrap.wrap(f'"""{text}"""', 116 - len(indent), break_long_words=False, break_on_hyphens=False)
    return [indent + line for line in lines]


class Module:
    """The module as it grows; a type comes after the types that it needs."""

    def __init__(self, schemas: dict[str, Schema], requests: set[str]) -> None:
        self.schemas = schemas
        self.requests = requests
        self.done: set[str] = set()
        self.parts: list[str] = []
        self.exported: list[str] = []

    def text(self) -> str:
        exported = "".join(f'    "{name}",\n' for name in sorted(self.exported))
        return HEAD + f"__all__ = [\n{exported}]\n\n" + "\n\n".join(self.parts) + "\n"

    @staticmethod
    def shown(name: str) -> str:
        """The name of a schema in Python."""
        return RENAMED[name] if name in RENAMED else name

    def add(self, name: str) -> None:
        """Adds a schema, after those that it refers to."""
        if name in self.done or name not in self.schemas:
            return
        self.done.add(name)
        schema = self.schemas[name]
        for other in sorted(references(schema)):
            self.add(other)
        shown = self.shown(name)
        self.exported.append(shown)
        properties = self.properties(schema)
        if properties is None:
            self.parts.append("\n".join([f"{shown} = {self.python(schema)}", *docstring(sentence(schema), "")]))
        elif name in self.requests:
            self.parts.append(self.typed_dict(shown, schema, properties, set(schema.get("required", []))))
        else:
            self.parts.append(self.model(shown, schema, properties))

    def add_options(self, name: str, body: Schema, without: set[str]) -> None:
        for other in sorted(references(body)):
            self.add(other)
        self.exported.append(name)
        fields = {key: value for key, value in body["properties"].items() if key not in without}
        self.parts.append(self.typed_dict(name, body, fields, set()))

    def properties(self, schema: Schema) -> dict[str, Schema] | None:
        """The fields of an object, those of its parts included; `None` if it is no object."""
        if "allOf" in schema:
            found: dict[str, Schema] = {}
            for part in schema["allOf"]:
                part = self.schemas[part["$ref"].split("/")[-1]] if "$ref" in part else part
                found.update(self.properties(part) or self.alternatives(part))
            return found
        return schema.get("properties")

    def alternatives(self, schema: Schema) -> dict[str, Schema]:
        """The fields of every alternative, each of which may be absent."""
        found: dict[str, Schema] = {}
        for part in schema.get("oneOf", []):
            for name, field in part.get("properties", {}).items():
                if name in found and "enum" in found[name]:
                    field = {"type": "string", "enum": found[name]["enum"] + field["enum"]}
                found[name] = field
        return found

    def required(self, schema: Schema) -> set[str]:
        """The fields that are always there."""
        if "allOf" in schema:
            parts = (self.schemas[p["$ref"].split("/")[-1]] if "$ref" in p else p for p in schema["allOf"])
            return set[str]().union(*(self.required(part) for part in parts))
        if "oneOf" in schema:
            return set[str].intersection(*(set(part.get("required", [])) for part in schema["oneOf"]))
        return set(schema.get("required", []))

    def typed_dict(self, name: str, schema: Schema, fields: dict[str, Schema], required: set[str]) -> str:
        if any(keyword.iskeyword(field) for field in fields):
            raise ValueError(f"{name} has a field with the name of a keyword")
        lines = [f"class {name}(TypedDict, total=False):", *docstring(sentence(schema), "    ")]
        for field, value in fields.items():
            kind = self.python(value, quoted=False)
            lines.append(f"    {field}: {f'Required[{kind}]' if field in required else kind}")
            lines.extend(docstring(sentence(value), "    "))
        return "\n".join(lines) + "\n"

    def model(self, name: str, schema: Schema, fields: dict[str, Schema]) -> str:
        lines = [f"class {name}(Model):", *docstring(sentence(schema), "    "), ""]
        required = self.required(schema)
        converted: list[str] = []
        for field, value in fields.items():
            attribute = field + "_" if keyword.iskeyword(field) else field
            kind = self.python(value, quoted=False)
            if field not in required:
                kind = kind if kind.endswith("| None") or kind == "Any" else f"{kind} | None"
            lines.append(f"    {attribute}: {kind}{'' if field in required else ' = None'}")
            lines.extend(docstring(sentence(value), "    "))
            convert = self.converter(value) or ("same" if attribute != field else None)
            if convert:
                converted.append(f'        "{field}": ("{attribute}", {convert}),')
        if converted:
            lines += ["", "    _convert = {", *converted, "    }"]
        return "\n".join(lines) + "\n"

    def converter(self, schema: Schema) -> str | None:
        """The function that makes a Python value of the JSON value; `None` if it stays as it is."""
        if "$ref" in schema:
            name = schema["$ref"].split("/")[-1]
            is_model = self.properties(self.schemas[name]) is not None and name not in self.requests
            return self.shown(name) if is_model else None
        for alternatives in ("oneOf", "anyOf", "allOf"):
            if alternatives in schema:
                found = [self.converter(part) for part in schema[alternatives]]
                return next((name for name in found if name is not None), None)
        if schema.get("format") == "date-time":
            return "parse_time"
        if "array" in self.kinds(schema):
            inner = self.converter(schema.get("items", {}))
            return f"each({inner})" if inner else None
        return None

    @staticmethod
    def kinds(schema: Schema) -> list[str]:
        kind = schema.get("type", [])
        return [kind] if isinstance(kind, str) else list(kind)

    def python(self, schema: Schema, quoted: bool = True) -> str:
        """The Python type of a schema. In an alias it is evaluated at run time, so it has no `|`."""
        if "$ref" in schema:
            name = schema["$ref"].split("/")[-1]
            return self.shown(name)
        if "enum" in schema:
            return "Literal[" + ", ".join(json.dumps(value) for value in schema["enum"]) + "]"
        for alternatives in ("oneOf", "anyOf", "allOf"):
            if alternatives in schema:
                return self.union([self.python(part, quoted) for part in schema[alternatives]], quoted)
        if "properties" in schema:
            return "dict[str, Any]"
        return self.union([self.plain(kind, schema) for kind in self.kinds(schema)] or ["Any"], quoted)

    def plain(self, kind: str, schema: Schema) -> str:
        if kind == "array":
            return f"list[{self.python(schema.get('items', {}), quoted=False)}]"
        if kind == "object":
            values: Any = schema.get("additionalProperties")
            inner = self.python(cast("Schema", values), quoted=False) if isinstance(values, dict) else "Any"
            return f"dict[str, {inner}]"
        if kind == "string":
            return "datetime" if schema.get("format") == "date-time" else "str"
        return PLAIN[kind]

    @staticmethod
    def union(kinds: list[str], quoted: bool) -> str:
        kinds = list(dict.fromkeys(kinds))
        if "None" in kinds:
            kinds = [kind for kind in kinds if kind != "None"] + ["None"]
        if len(kinds) == 1:
            return kinds[0]
        return f"Union[{', '.join(kinds)}]" if quoted else " | ".join(kinds)


def generate_codes() -> str:
    """The text of `generated/codes.py`: the closed list of error codes with their status."""
    rows = [line.split("|") for line in (ROOT / "docs" / "errors.md").read_text().splitlines() if line.startswith("| `")]
    table = "".join(f'    "{row[1].strip().strip("`")}": {int(row[2])},\n' for row in rows)
    head = '"""Error codes of the API and their status. Made from docs/errors.md by scripts/generate.py; do not edit."""'
    return f"{head}\n\nSTATUS: dict[str, int] = {{\n{table}}}\n"
