"""The options that commands share: models, method, prompt, limits, output; sampling is `SamplingParams` itself.

Each group is a pydantic model of which options.py makes flags, with what a command needs to do with them. Imports no
torch until a method is called.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from draftwood.cli.options import OptionGroup, flag
from draftwood.errors import ConfigurationError, RequestError
from draftwood.sampling.params import RuntimeParams, SamplingParams, Structured
from draftwood.util.safe_parsing import read_text
from draftwood.util.type_names import DTYPE_ALIASES, QUANTIZE_ALIASES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from draftwood.engine.engine import Engine
    from draftwood.engine.request import Prompt
    from draftwood.methods import Method

MODELS, METHOD, SAMPLING, LIMITS, OUTPUT = "Models", "Method", "Sampling", "Prompt and limits", "Output"
STRUCTURED = "Structured output"
DType = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "float64"],
    BeforeValidator(lambda name: DTYPE_ALIASES.get(name, name)),
]
Quantised = BeforeValidator(lambda name: QUANTIZE_ALIASES.get(name, name))
USUAL = {"temperature": 0.7, "top_p": 0.95}  # of people's requests to models that recommend nothing
OF_EVERY_METHOD = "Set an option of every method that has it, or of one as METHOD.KEY=VALUE. Repeatable."


class _Models(OptionGroup):
    model_config = ConfigDict(title=MODELS)

    target: str | None = flag(
        None, "Target model: a checkpoint directory, a hub id or a GGUF file. Default: the embedded pair.", "MODEL"
    )
    draft: list[str] = flag(
        [],
        "Draft model, or an EAGLE or Medusa head. Repeatable (specinfer). Default: the one in draft/ next to the "
        "target's weights, if the target has no layer that drafts; none: none.",
        "MODEL",
    )
    dtype: DType = flag(
        "auto",
        "Weights and arithmetic: float32, bfloat16 (bf16), float16, float64, or auto, the checkpoint's type.",
        "TYPE",
    )
    device: str | None = flag(None, "cpu, cuda, cuda:1, ... Default: CUDA where there is one.", "DEVICE")
    tensor_parallel: int = flag(1, "Processes that share the target; under torchrun as many as it starts.", ge=1)
    draft_device: str | None = flag(None, "Device of the draft models. Default: the target's.", "DEVICE")
    draft_dtype: DType | None = flag(None, "Type of the draft models. Default: as --dtype.", "TYPE")
    backend: Literal["auto", "native", "pytorch"] = flag(
        "auto", "CPU kernels: native (package draftwood-native), pytorch, or auto: native where it is installed."
    )
    quantize: Annotated[Literal["int8", "int4"], Quantised] | None = flag(
        None,
        "int8 (q8): a quarter of float32's bytes, int4 (q4): a sixth. Faster on CPUs; answers change slightly.",
        "KIND",
    )
    draft_quantize: Annotated[Literal["int8", "int4", "none"], Quantised] | None = flag(
        None, "Draft models and heads: int8, int4 or none. Default: as the target.", "KIND"
    )
    calibration: Path | None = flag(
        None, "Text for int4, or .jsonl of texts or messages. Default: text that the model writes.", "FILE"
    )
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8"] = flag(
        "auto", "Keys and values: float32, bfloat16, int8 (half of bfloat16), or auto, as the weights.", "TYPE"
    )
    max_model_len: int | None = flag(
        None, "Most tokens of prompt and answer. Default: what models were made for.", "N", ge=1
    )
    compile: bool = flag(False, "torch.compile, for small models; slow to start, needs a C++ compiler.")
    threads: int | None = flag(None, "CPU threads. Default: as many as PyTorch chooses.", ge=1)

    def apply(self) -> None:
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)


NO_DRAFT = ["none"]  # of --draft


class ModelOptions(RuntimeParams, _Models):
    """A target with its draft models, how they are computed, and how requests share the engine."""

    @property
    def drafts(self) -> int:
        """The number of draft models that will be loaded; the embedded target brings one."""
        from draftwood.engine.draft_sources import count_of_models, drafts_for_itself
        from draftwood.models.checkpoints.checkpoint import draft_beside

        if self.draft:
            return 0 if self.draft == NO_DRAFT else count_of_models(self.draft)
        if self.target is None or draft_beside(self.target) is None:
            return int(self.target is None)
        return int(not drafts_for_itself(self.target, self.tensor_parallel))

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `load`, with which another process makes the same engine."""
        draft = [] if self.draft == NO_DRAFT else self.draft or None
        return {**self.model_dump(include=set(ModelOptions.model_fields) - {"threads"}), "draft": draft}

    def load(self, *methods: Method | None) -> Engine:
        """The engine, and a word on what takes long; methods that need other draft models are refused before."""
        from draftwood.cli.running import waiting
        from draftwood.engine.loading import load

        for method in methods:
            if method is not None:
                method.check_drafts(self.drafts)
        with waiting() as on_progress:
            engine = load(**self.arguments, progress=on_progress)
        for overlap in filter(None, engine.names.get("shared_vocabulary", ())):
            print(f"note: the draft has another tokenizer; shared are {overlap}", file=sys.stderr)
        return engine


class PairOptions(ModelOptions):
    """A target with its draft models, as they are trained for."""

    left_out = frozenset(
        {"quantize", "draft_quantize", "calibration", "kv_dtype", "compile", "tensor_parallel", "draft_device"}
        | {"draft_dtype", "max_model_len"}
    )


class QuantizedOptions(ModelOptions):
    """One model that is not trained."""

    left_out = PairOptions.left_out - {"quantize", "calibration", "kv_dtype"} | {"draft", *RuntimeParams.model_fields}

    @property
    def arguments(self) -> dict[str, Any]:
        from draftwood.engine.loading import EMBEDDED

        return {**super().arguments, "target": self.target or str(EMBEDDED / "target"), "draft": []}


class TargetOptions(QuantizedOptions):
    """One model that something is trained for."""

    left_out = QuantizedOptions.left_out | {"quantize", "calibration", "kv_dtype"}


class MethodOptions(OptionGroup):
    """One method with its options."""

    model_config = ConfigDict(title=METHOD)

    method: str | None = flag(
        None,
        "Decoding method, see 'draftwood methods'; file:PATH reads name and options from JSON or YAML. "
        "Default: the best one available, which the summary names.",
        "NAME",
    )
    settings: list[str] = flag([], "An option of the method, such as gamma=6. Repeatable.", "KEY=VALUE", ("--set",))

    def chosen(self, drafts: int, sampling: SamplingParams | None = None) -> Method | None:
        """The method, checked with `sampling`; None where the engine chooses. Options alone mean a chain."""
        from draftwood.methods import Method
        from draftwood.util import config

        if self.method is None and not self.settings:
            return None
        name = self.method or ("speculative" if drafts else "lookup")
        method = Method.parse(name, config.assignments(self.settings))
        if sampling is not None:
            method.check(sampling)
        return method


class SamplingOptions(SamplingParams):
    """How tokens are drawn where a person asks: what is not set is as the model's makers say, else as `USUAL` does."""

    keeps_unset: ClassVar[bool] = True  # for options.py: what was not given is not set

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = flag(
        1.0, "0: greedy; 1: the model's own distribution.", usual="the checkpoint's, else 0.7"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = flag(
        1.0, "Keep the most probable tokens of this total probability; 1: all.", usual="the checkpoint's, else 0.95"
    )

    def completed(self, recommended: Mapping[str, Any], method: Method | None = None) -> tuple[SamplingParams, str]:
        """All parameters, and a word on those that nobody set; for a method that draws nothing those that were set."""
        given = self.model_dump(exclude_unset=True)
        unset: dict[str, Any] = {name: value for name, value in (recommended or USUAL).items() if name not in given}
        if given.get("temperature") == 0:  # nothing is drawn
            unset = {name: value for name, value in unset.items() if name == "repetition_penalty"}
        params = SamplingParams(**given, **unset)
        try:
            if method is not None:
                method.check(params)
        except ConfigurationError:
            return SamplingParams(**given), ""
        neutral = SamplingParams()
        parts = [f"{name} {value:g}" for name, value in unset.items() if value != getattr(neutral, name)]
        source = "by the checkpoint's generation_config" if recommended else "by default"
        return params, f"{', '.join(parts)} {source}" if parts else ""


class PromptOptions(OptionGroup):
    """One prompt: its text, or a file of it."""

    model_config = ConfigDict(title=LIMITS)

    prompt: str | None = flag(None, "The text to continue; - reads it from standard input.", "PROMPT", argument=True)
    prompt_file: Path | None = flag(None, "Read the prompt from a file, without a line break at its end.", "FILE")

    def text(self) -> str:
        """The prompt from the argument, standard input or a file; never empty."""
        argument, file = self.prompt, self.prompt_file
        if argument is not None and file is not None:
            raise RequestError("give the prompt as an argument or with --prompt-file, not both")
        if argument is None and file is None:
            raise RequestError(
                "there is no prompt; give the text as an argument, - for standard input, or --prompt-file"
            )
        try:
            if file is not None:
                text = file.read_text("utf-8").removesuffix("\n")
            else:
                text = sys.stdin.read().removesuffix("\n") if argument == "-" else str(argument)
            text.encode("utf-8")  # an argument of broken bytes arrives as lone surrogates
        except UnicodeError:
            raise RequestError("the prompt is not valid UTF-8; convert it first") from None
        except OSError as error:
            raise RequestError(f"the prompt file {file} cannot be read: {error.strerror}") from None
        if not text:
            raise RequestError("the prompt is empty; give at least one token of text")
        return text


class ChatOptions(PromptOptions):
    """One prompt, maybe with a conversation around it."""

    chat: bool = flag(False, "Treat the prompt as a user's message: apply the checkpoint's chat template.")
    system: str | None = flag(None, "With --chat: the system message.", "TEXT")

    def conversation(self) -> Prompt:
        """The prompt as it is; with --chat as a user's message, after the system's if there is one."""
        text = self.text()
        if not self.chat:
            if self.system is not None:
                raise RequestError("--system is a message of a conversation; give --chat too")
            return text
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, {"role": "user", "content": text}]


def about(engine: Engine) -> dict[str, Any]:
    """The facts that JSON documents begin with: the program and the models that computed an answer."""
    from draftwood import __version__

    compiled = {"compile_seconds": engine.compile_seconds} if engine.names.get("compiled") else {}
    return {"draftwood": __version__, "models": {**engine.names, "device": str(engine.target.device)}, **compiled}


def warn_if_foreign(engine: Engine, *prompts: Prompt) -> None:
    """Say once on standard error what the embedded pair is for, where a prompt does not look like it."""
    from draftwood.engine.embedded_hint import hint

    note = next(filter(None, (hint(engine, prompt) for prompt in prompts)), None)
    if note is not None:
        print(f"note: {note}", file=sys.stderr)


class StructuredOptions(OptionGroup):
    """Constraints on an answer; at most one of them."""

    model_config = ConfigDict(title=STRUCTURED)

    json_schema: Path | None = flag(None, "JSON that follows the schema in a file.", "FILE")
    json_object: bool = flag(False, "Any JSON object.")
    regex: str | None = flag(None, "A full match of a regular expression.", "REGEX")
    choice: list[str] = flag([], "One of several texts. Repeatable.", "TEXT")
    grammar: Path | None = flag(None, "A sentence of the grammar in a file (Lark's notation, or GBNF).", "FILE")

    def chosen(self) -> Structured | None:
        """The constraint that the options ask for, checked; None without any."""
        from draftwood.util import config

        given: dict[str, Any] = self.model_dump(exclude_defaults=True)
        if self.json_schema is not None:
            given["json_schema"] = config.document(self.json_schema, "--json-schema")
        if self.grammar is not None:
            try:
                given["grammar"] = read_text(self.grammar)
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"--grammar {self.grammar} cannot be read: {error}") from None
        return config.parse(Structured, given, "structured output") if given else None


class LimitOptions(OptionGroup):
    """Options of where an answer ends."""

    model_config = ConfigDict(title=LIMITS)

    max_new_tokens: int = flag(128, "Most tokens to generate.", ge=1)
    stop: list[str] = flag([], "Stop before this text, which is not shown. Repeatable.", "TEXT")
    ignore_eos: bool = flag(False, "Continue after the end-of-text token.")


class ColorOptions(OptionGroup):
    """Options of the printed output."""

    model_config = ConfigDict(title=OUTPUT)

    color: bool | None = flag(None, "Coloured output. Default: on a terminal, unless NO_COLOR is set.")

    def say(self, *lines: RenderableType, wrap: bool = False, stderr: bool = False) -> None:
        """Print tables and lines of text as they stand; `wrap`: broken at the terminal's width."""
        from draftwood.explain.terminal import console, visible

        show = console(self.color, stderr=stderr).print
        for line in lines:
            text = isinstance(line, str)
            show(visible(line) if isinstance(line, str) else line, markup=False, soft_wrap=text and not wrap)


class OutputOptions(ColorOptions):
    """Options of the printed output, among them JSON."""

    json_: bool = flag(False, "Print one JSON document and nothing else.", names=("--json",))

    def give(self, document: Any, *lines: RenderableType, wrap: bool = False) -> None:
        """Print the document, or what it comes to in words and tables."""
        from draftwood.explain.terminal import as_json

        if self.json_:
            print(as_json(document), flush=True)
        else:
            self.say(*lines, wrap=wrap)


class LogOptions(OptionGroup):
    """Options of every command: how much the loggers below `draftwood` write on standard error."""

    model_config = ConfigDict(title=OUTPUT)

    verbose: bool = flag(False, "Log what is done, like --log-level info.", names=("--verbose", "-v"))
    log_level: Literal["debug", "info", "warning", "error"] = flag("warning", "Lowest level to log.", "LEVEL")

    def apply(self) -> None:
        level = "info" if self.verbose and self.log_level == "warning" else self.log_level
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("draftwood").setLevel(level.upper())


def seed(help: str = "The same seed gives the same text.") -> int:
    """The option --seed."""
    return flag(0, help, panel=SAMPLING)  # type: ignore[no-any-return]


class WorkloadOptions(OptionGroup):
    """Prompts that are measured on, and how much is decoded after each."""

    model_config = ConfigDict(title=LIMITS)

    prompts: Path | None = flag(
        None, "One prompt per line, or .jsonl with 'prompt' or 'messages'. Default: the embedded corpus.", "FILE"
    )
    chat: bool = flag(False, "Prompts are users' messages: apply the checkpoint's chat template.")
    documents: int = flag(8, "Without --prompts: prompts per domain.", ge=1)
    max_new_tokens: int = flag(64, "Most tokens to generate for each.", ge=2)

    def texts(self, seed: int = 0) -> list[Prompt]:
        """The prompts; those of the corpus are held-out documents."""
        from draftwood.train.prompts import corpus_prompts, read_prompts

        if self.prompts is None:
            return corpus_prompts(self.documents, seed=seed, chat=self.chat)
        return read_prompts(self.prompts, self.chat)

    def fitted(self, engine: Engine, texts: list[Prompt]) -> list[list[int]]:
        """Token ids that leave room for what is decoded."""
        from draftwood.train.prompts import fitted

        return fitted(engine, texts, self.max_new_tokens)
