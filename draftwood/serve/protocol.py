"""The bodies of requests, with OpenAI's and vLLM's names."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from draftwood.serve.fields import (
    MAX_TOP_LOGPROBS,
    Body,
    Every,
    Name,
    Penalty,
    StopText,
    Text,
    TokenList,
    WritableSchema,
    max_entries,
    refused,
)
from draftwood.serve.messages import MAX_TOOLS, Conversation, Function, Messages, NamedFunction, Tool, ToolChoice

MAX_CHOICES = 128  # of a request, over all of its prompts
AnswerTokens = Literal[-1] | Annotated[int, Field(ge=1, lt=1 << 31)]  # most tokens of an answer; -1: as many as fit


NoPadding = Annotated[
    Literal[False] | None, refused("parts of a stream are not padded here; leave out include_obfuscation")
]


class StreamOptions(Body):
    include_obfuscation: NoPadding = None
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Body):
    name: Name | None = None
    description: Text | None = None
    schema_: Annotated[WritableSchema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's field for answers in JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[WritableSchema | None, Field(alias="schema")] = None  # as llama.cpp has it, with either type


class StructuredOutputs(Body):
    """vLLM's field for constrained answers; one of these."""

    json_: Annotated[WritableSchema | None, Field(alias="json")] = None
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
    stop_token_ids: Annotated[TokenList, Field(max_length=256)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], max_entries(1024)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: WritableSchema | None = None  # these as older versions of vLLM
    guided_regex: Text | None = None
    guided_choice: Every[Text] | None = None
    guided_grammar: Text | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    bad_words: Annotated[list[StopText], Field(max_length=256)] | None = None
    allowed_token_ids: Annotated[TokenList, Field(min_length=1, max_length=1 << 18)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = None

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
    | Annotated[TokenList, Tag("ids")]
    | Annotated[Every[Text], Field(max_length=MAX_CHOICES), Tag("texts")]
    | Annotated[Every[TokenList], Field(max_length=MAX_CHOICES), Tag("lists")],
    Discriminator(
        _kind,
        custom_error_type="prompt",
        custom_error_message="a prompt is a text, a list of token ids, or a list of such texts or lists",
    ),
]


class CompletionRequest(GenerationRequest):
    prompt: Prompts
    suffix: Text | None = None
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
    def prompts(self) -> list[str | TokenList]:
        """One entry for each text that is to be continued."""
        if isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)


class IgnoredFields(Body):
    """OpenAI's fields that say nothing to the model."""

    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None


class ChatRequest(GenerationRequest, Conversation, IgnoredFields):
    messages: Messages
    max_tokens: AnswerTokens | None = None
    max_completion_tokens: AnswerTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Every[Function], Field(max_length=MAX_TOOLS)] | None = None  # the last two's older names
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    metadata: Any = None
    modalities: list[Literal["text"]] | None = None
    prediction: Any = None
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


class TokenizeRequest(Conversation):
    """Text or a conversation; the last four fields are llama.cpp's."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    content: Text | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
    parse_special: Literal[True] | None = None


class DetokenizeRequest(Body):
    model: Name | None = None
    tokens: TokenList
