"""The bodies of requests, with OpenAI's and vLLM's names. Unknown fields are errors; null is as an absent field."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

MAX_CHOICES = 128  # of a request, over all of its prompts
MAX_TOP_LOGPROBS = 20  # log-probabilities at each place
MAX_MESSAGES = 1 << 14
MAX_MESSAGE_PARTS = 1 << 10  # of a message
MAX_TOOLS = 256
MAX_TEMPLATE_VARIABLES = 64


def _max_entries(limit: int) -> BeforeValidator:
    """Refuses a larger mapping before its entries are looked at, each of which may be wrong."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > limit:
            raise ValueError(f"it has {len(given):,} entries, but at most {limit:,} are taken")
        return given

    return BeforeValidator(check)


T = TypeVar("T")
Every = Annotated[list[T], Field(fail_fast=True)]  # of a million wrong elements the first one is enough

Penalty = Annotated[float, Field(ge=-2, le=2)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Every[Token]


def _valid_unicode(text: str) -> str:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("the text is not valid Unicode: it has half of a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_valid_unicode)]
StopText = Annotated[Text, Field(min_length=1, max_length=256)]
Name = Annotated[Text, Field(max_length=256)]


class Body(BaseModel):
    """A JSON object without other fields than these."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _first_unknown(cls, given: Any) -> Any:
        """Keep one of many unknown fields, which is enough for the error."""
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next(name for name in given if name not in known)
        return {name: value for name, value in given.items() if name in known or name == unknown}


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


def _writable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        _valid_unicode(json.dumps(schema, ensure_ascii=False))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_writable)]


class JsonSchema(Body):
    name: Name | None = None
    description: Text | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's field for answers in JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None  # as llama.cpp has it, with either type


class StructuredOutputs(Body):
    """vLLM's field for constrained answers; one of these."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: Every[Text] | None = None
    grammar: Text | None = None


class TextRequest(Body):
    """The fields of every request for text."""

    model: Name | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    speculation: Name | dict[str, Any] | None = None
    user: Text | None = None


class GenerationRequest(TextRequest):
    """The fields of requests for completions, of texts and conversations."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream_options: StreamOptions | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    stop_token_ids: Annotated[Tokens, Field(max_length=256)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], _max_entries(1024)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None  # these as older versions of vLLM
    guided_regex: Text | None = None
    guided_choice: Every[Text] | None = None
    guided_grammar: Text | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None

    @property
    def structured(self) -> list[dict[str, Any]]:
        """Constraints on the text in the engine's form, from every field that can hold one; two are too many."""
        constraints: list[dict[str, Any]] = []
        form, outputs = self.response_format, self.structured_outputs
        if form is not None and form.type != "text":
            schema = form.schema_ if form.json_schema is None else form.json_schema.schema_
            loose = form.type == "json_object" and schema is None
            constraints.append({"json_object": True} if loose else {"json_schema": schema})
        if outputs is not None:
            given = outputs.model_dump(exclude_none=True)
            constraints.append({"json_schema" if name == "json_" else name: value for name, value in given.items()})
        for name in ("json", "regex", "choice", "grammar"):
            if (value := getattr(self, f"guided_{name}")) is not None:
                constraints.append({"json_schema" if name == "json" else name: value})
        return constraints

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The number of tokens that are asked for; None: as many as there may be."""

    @property
    def top(self) -> int | None:
        """The number of most probable tokens to report at each place; None: no log-probabilities at all."""
        return None


def _kind(prompt: Any) -> str | None:
    """The kind of prompt that a value is meant to be, by its first element."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else 0
    return "texts" if isinstance(first, str) else "lists" if isinstance(first, list) else "ids"


Prompts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[Tokens, Tag("ids")]
    | Annotated[Every[Text], Field(max_length=MAX_CHOICES), Tag("texts")]
    | Annotated[Every[Tokens], Field(max_length=MAX_CHOICES), Tag("lists")],
    Discriminator(
        _kind,
        custom_error_type="prompt",
        custom_error_message="a prompt is a text, a list of token ids, or a list of such texts or lists",
    ),
]


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None

    @property
    def limit(self) -> int | None:
        return {None: 16, -1: None}.get(self.max_tokens, self.max_tokens)  # as OpenAI has it

    @property
    def top(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | Tokens]:
        """One entry for each text that is to be continued."""
        if isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)


def _is_text(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and any(word in kind for word in ("image", "audio", "video", "file")):
        raise ValueError(f"{kind[:40]} cannot be read, since this server's models read text alone; leave it out")
    return part


class Loose(Body):
    """An object whose other fields say nothing to the model, such as those that clients keep in answers."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(Loose):
    type: Literal["text", "input_text", "output_text", "refusal"]
    text: Text | None = None
    refusal: Text | None = None


class CalledFunction(Loose):
    name: Name
    arguments: Text | dict[str, Any] | None = None

    @property
    def given(self) -> Any:
        """The arguments as templates take them."""
        try:
            return json.loads(self.arguments or "{}") if not isinstance(self.arguments, dict) else self.arguments
        except (ValueError, RecursionError):
            return self.arguments


class ToolCall(Loose):
    id: Name | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class ChatMessage(Loose):
    """A message; answers may be sent back as they came, and as clients write them down."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: (
        Text
        | Annotated[Every[Annotated[TextPart, BeforeValidator(_is_text)]], Field(max_length=MAX_MESSAGE_PARTS)]
        | None
    ) = None
    name: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: Annotated[Every[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Name | None = None
    function_call: CalledFunction | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text or part.refusal or "" for part in content)
        if self.role in ("assistant", "tool", "function"):
            content = content or ""  # as in an answer without text
        calls = list(self.tool_calls or ())
        if self.function_call is not None:
            calls.append(ToolCall(function=self.function_call))
        written = [
            {"id": one.id, "type": "function", "function": {"name": one.function.name, "arguments": one.function.given}}
            for one in calls
        ]
        return {
            "role": {"developer": "system", "function": "tool"}.get(self.role, self.role),
            "content": content,
            "name": self.name,
            "reasoning_content": self.reasoning_content,
            "tool_calls": written or None,
            "tool_call_id": self.tool_call_id,
        }


class Function(Loose):
    """What a model may call."""

    name: Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Loose):
    type: Literal["function"]
    function: Function


class NamedFunction(Loose):
    name: Name


class ToolChoice(Loose):
    type: Literal["function"]
    function: NamedFunction


Messages = Annotated[Every[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]


def _variables(given: dict[str, Any]) -> dict[str, Any]:
    if len(given) > MAX_TEMPLATE_VARIABLES:
        raise ValueError(f"it has {len(given):,} entries, but at most {MAX_TEMPLATE_VARIABLES} are taken")
    if own := given.keys() & {"self", "choices", "messages", "max_tokens", "tools", "documents"}:
        raise ValueError(f"{min(own)} is no variable that can be set; leave it out")
    return given


class Conversation(Body):
    """How a conversation becomes text."""

    tools: Annotated[Every[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Annotated[Schema, AfterValidator(_variables)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Name | None = None

    @property
    def functions_offered(self) -> list[dict[str, Any]]:
        """The tools as templates take them."""
        return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in self.tools or ()]

    @property
    def variables(self) -> dict[str, Any]:
        """What the chat template is given besides the messages."""
        kept = ("add_generation_prompt", "continue_final_message", "reasoning_effort")
        named = {name: value for name in kept if (value := getattr(self, name)) is not None}
        return {**(self.chat_template_kwargs or {}), **named}


class ChatRequest(GenerationRequest, Conversation):
    messages: Messages
    max_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Every[Function], Field(max_length=MAX_TOOLS)] | None = None  # the last two's older names
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    metadata: Any = None  # from here on: fields that say nothing to the model
    modalities: list[Literal["text"]] | None = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    verbosity: Any = None

    @model_validator(mode="after")
    def _older_names(self) -> Self:
        if self.functions is not None and self.tools is None:
            self.tools = [Tool(type="function", function=one) for one in self.functions]
            one = self.function_call
            self.tool_choice = ToolChoice(type="function", function=one) if isinstance(one, NamedFunction) else one
        return self

    @property
    def limit(self) -> int | None:
        given = self.max_completion_tokens or self.max_tokens
        return None if given == -1 else given

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class TextFormat(JsonSchema):
    """The `ResponseFormat` of /v1/responses."""

    type: Literal["text", "json_object", "json_schema"]


class TextSettings(Body):
    format: TextFormat | None = None


class ResponseRequest(TextRequest):
    """The part of OpenAI's /v1/responses that text generation needs; nothing is stored."""

    input: Text | Messages
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    text: TextSettings | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=16)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    store: Literal[False] | None = None
    metadata: Annotated[dict[Text, Text], _max_entries(64)] | None = None


class TokenizeRequest(Conversation):
    """Text or a conversation."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None


class DetokenizeRequest(Body):
    model: Name | None = None
    tokens: Tokens
