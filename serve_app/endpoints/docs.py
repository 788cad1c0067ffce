"""GET /docs: /openapi.json as a page to read and to try; it loads nothing from elsewhere."""

from starlette.requests import Request
from starlette.responses import HTMLResponse

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Conveyor API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
details { border: 1px solid #ccc; border-radius: 6px; margin: .6rem 0; padding: .5rem .8rem; }
summary { cursor: pointer; } code, pre, textarea { font: 14px/1.4 ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; }
td, th { text-align: left; border-top: 1px solid #ddd; padding: .25rem .6rem .25rem 0; vertical-align: top; }
textarea { width: 100%; box-sizing: border-box; } pre { background: #f4f4f4; padding: .6rem; overflow: auto; }
.method { font-weight: 600; display: inline-block; width: 3.5rem; }
</style></head><body><h1>Conveyor API</h1><p id="about"></p><div id="operations"></div>
<script>
const element = (tag, text = "", parent = null) => {
  const made = document.createElement(tag); made.textContent = text; parent?.append(made); return made;
};
const typeOf = (schema) => schema.anyOf ? schema.anyOf.map(typeOf).filter((type) => type != "null").join(" or ")
  : schema.$ref ? schema.$ref.split("/").pop()
  : schema.type == "array" ? "list of " + typeOf(schema.items ?? {}) : schema.type ?? "any";
const bounds = (schema) => {
  const one = schema.anyOf?.find((each) => each.type != "null") ?? schema;
  const signs = {
    minimum: "≥", maximum: "≤", exclusiveMinimum: ">", exclusiveMaximum: "<",
    minLength: "length ≥", maxLength: "length ≤", minItems: "items ≥",
  };
  return Object.entries(signs).filter(([key]) => key in one).map(([key, sign]) => `${sign} ${one[key]}`).join(", ");
};
const base = location.pathname.replace(/\\/docs\\/?$/, "");
fetch(base + "/openapi.json").then((answer) => answer.json()).then((api) => {
  document.getElementById("about").textContent = `${api.info.description} Version ${api.info.version}.`;
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, operation] of Object.entries(methods)) {
    const box = element("details", "", document.getElementById("operations"));
    const head = element("summary", "", box);
    element("span", method.toUpperCase(), head).className = "method";
    element("code", path, head); head.append(" " + operation.summary);
    const body = operation.requestBody?.content["application/json"].schema.$ref.split("/").pop();
    if (body) {
      const schema = api.components.schemas[body], table = element("table", "", box);
      const titles = element("tr", "", table);
      for (const title of ["field", "type", "default", "range"]) element("th", title, titles);
      for (const [name, field] of Object.entries(schema.properties)) {
        const row = element("tr", "", table);
        element("code", name, element("td", "", row)); element("td", typeOf(field), row);
        const preset = "default" in field ? JSON.stringify(field.default) : "";
        element("td", schema.required?.includes(name) ? "required" : preset, row);
        element("td", bounds(field), row);
      }
    }
    const input = body ? element("textarea", '{}', box) : null;
    if (input) input.rows = 5;
    const send = element("button", "Send", box), output = element("pre", "", box);
    output.hidden = true;
    send.onclick = async () => {
      const options = body ? {method: "POST", body: input.value, headers: {"content-type": "application/json"}} : {};
      const target = path.includes("{model}") ? path.replace("{model}", window.prompt("model") ?? "") : path;
      const answer = await fetch(base + target, options);
      output.hidden = false; output.textContent = `${answer.status}\\n${await answer.text()}`;
    };
  }
});
</script></body></html>
"""


async def docs(http: Request) -> HTMLResponse:
    return HTMLResponse(_PAGE)
