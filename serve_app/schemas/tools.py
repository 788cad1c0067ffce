"""What clients say about tools: functions that the model may call, and whether it may, must or must not."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from engine.api import Function
from serve_app.errors import ApiError, bad_request
from serve_app.limits import RequestLimits
from serve_app.schemas.base import RequestBody, beyond

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Mode = Literal["none", "auto", "required"]

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionDefinition(RequestBody):
    """A function. `parameters` is the JSON schema of the object that a call passes; left out: it takes none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = Field(False, description="arguments fit the schema even if tool_choice is auto")

    @field_validator("parameters")
    @classmethod
    def _check_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters.get("type", "object") != "object":
            raise ValueError('must be a JSON schema of type "object"')
        return parameters or dict(NO_PARAMETERS)


class Tool(RequestBody):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """As models have seen tools in training."""
        function = self.function.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
        return {"type": "function", "function": function}

    def as_function(self, *, is_strict: bool) -> Function:
        """What calls may pass: what the schema describes or, unless `is_strict`, any object."""
        parameters = self.function.parameters if is_strict else {"type": "object"}
        if parameters == NO_PARAMETERS:
            parameters = parameters | {"additionalProperties": False}
        return Function(self.function.name, parameters)


class FunctionReference(RequestBody):
    name: FunctionName


class NamedTool(RequestBody):
    """This function has to be called."""

    type: Literal["function"]
    function: FunctionReference


class ToolSubset(RequestBody):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(RequestBody):
    """Of all tools only these count in this request; the others are not even shown to the model."""

    type: Literal["allowed_tools"]
    allowed_tools: ToolSubset


def _kind_of_choice(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind is not None:
        return {"function": "a function", "allowed_tools": "a subset"}.get(kind)
    return "a mode" if isinstance(value, str) else None


# No tag is an identifier: errors name the field and leave the tag out.
ToolChoice = Annotated[
    Annotated[Mode, Tag("a mode")]
    | Annotated[NamedTool, Tag("a function")]
    | Annotated[AllowedTools, Tag("a subset")],
    Discriminator(
        _kind_of_choice,
        custom_error_type="tool_choice",
        custom_error_message='must be "none", "auto", "required", a function or allowed_tools',
    ),
]  # fmt: skip


class ToolFields(RequestBody):
    """The fields of a request that are about tools."""

    tools: list[Tool] = Field(default_factory=list, description="functions that the answer may call")
    tool_choice: ToolChoice = Field(
        "auto",
        description="none: the model is not shown the tools; required: the answer is one or more calls that fit the "
        "schemas; a function: it is one call of that; allowed_tools: the model is shown no others",
    )
    parallel_tool_calls: bool = Field(True, description="false: no call beyond the first one")

    @model_validator(mode="after")
    def _check_tools(self) -> "ToolFields":
        names = [tool.function.name for tool in self.tools]
        for name in names:
            if names.count(name) > 1:
                raise bad_request(f"tools: there are several functions '{name}'", "tools")
        if self.tool_choice not in ("none", "auto") and not names:
            raise bad_request("tool_choice is only allowed with tools", "tool_choice")
        for name in self._chosen_names or ():
            if name not in names:
                raise bad_request(f"tool_choice: no tool is named '{name}'", "tool_choice")
        return self

    def check_limits(self, limits: RequestLimits) -> None:
        super().check_limits(limits)
        if len(self.tools) > limits.max_tools:
            raise beyond("tools", limits.max_tools, "tools")

    @property
    def offered_tools(self) -> list[Tool]:
        """Tools that the answer may call: those that the model is shown."""
        if self.tool_choice == "none":
            return []
        chosen = self._chosen_names
        return [tool for tool in self.tools if chosen is None or tool.function.name in chosen]

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call of one of `offered_tools`."""
        match self.tool_choice:
            case AllowedTools(allowed_tools=subset):
                return subset.mode == "required"
            case NamedTool():
                return True
        return self.tool_choice == "required"

    @property
    def max_calls(self) -> int | None:
        """Most calls of an answer; None: any number."""
        return 1 if isinstance(self.tool_choice, NamedTool) or not self.parallel_tool_calls else None

    @property
    def _chosen_names(self) -> list[str] | None:
        match self.tool_choice:
            case NamedTool(function=function):
                return [function.name]
            case AllowedTools(allowed_tools=subset):
                return [tool.function.name for tool in subset.tools]
        return None


def tools_refused(reason: str) -> ApiError:
    return bad_request(f"tools: {reason}", "tools", "unsupported_parameter")
