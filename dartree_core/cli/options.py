"""Options that several commands share, and what they mean together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dartree_core.config import METHODS, PRESETS, DecodeConfig
from dartree_core.errors import ConfigError

if TYPE_CHECKING:
    from dartree_core.engine import Decoder

_MODELS = "Models"
_TREE = "Drafting"
_SAMPLING = "Sampling"

Bundle: TypeAlias = Annotated[
    str, typer.Option("--bundle", help="Target and drafter by name.", rich_help_panel=_MODELS)
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Option("--target", help="Target: folder, .gguf, or hub id.", rich_help_panel=_MODELS),
]
Draft: TypeAlias = Annotated[
    str | None,
    typer.Option("--draft", help="Drafter: folder, hub id, or none.", rich_help_panel=_MODELS),
]
Device: TypeAlias = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=_MODELS)
]
Dtype: TypeAlias = Annotated[
    str,
    typer.Option("--dtype", help="auto, float32, bfloat16, float16.", rich_help_panel=_MODELS),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code a model brings.", rich_help_panel=_MODELS),
]
DeviceMap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        help="Spread the target over several devices of this process: auto, balanced, ..., or a "
        "JSON file.",
        rich_help_panel=_MODELS,
    ),
]
Graphs: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--graphs/--no-graphs", help="On CUDA, replay recorded passes.", rich_help_panel=_MODELS
    ),
]
MethodOption: TypeAlias = Annotated[
    str, typer.Option("--method", help=f"{', '.join(METHODS)}.", rich_help_panel=_TREE)
]
Budget: TypeAlias = Annotated[
    str,
    typer.Option(
        "--budget", help="Most nodes verified a round; auto: what pays.", rich_help_panel=_TREE
    ),
]
Width: TypeAlias = Annotated[
    int | None,
    typer.Option("--width", help="Nodes kept per depth while growing.", rich_help_panel=_TREE),
]
Candidates: TypeAlias = Annotated[
    int | None,
    typer.Option("--candidates", help="Tokens per slot the head scores.", rich_help_panel=_TREE),
]
BlockSize: TypeAlias = Annotated[
    int | None,
    typer.Option("--block-size", help="Shorter blocks than trained.", rich_help_panel=_TREE),
]
DepthBonus: TypeAlias = Annotated[
    float | None,
    typer.Option("--depth-bonus", help="Added per depth when pruning.", rich_help_panel=_TREE),
]
Coupled: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--coupled/--no-coupled",
        help="When sampling, draft with the target's own noise.",
        rich_help_panel=_TREE,
    ),
]
Graft: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--graft/--no-graft",
        help="Let trees copy what followed the same words earlier in prompt and answer; default: "
        "with budget auto.",
        rich_help_panel=_TREE,
    ),
]
Temperature: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--temperature", help="0 is greedy; default: the model's.", rich_help_panel=_SAMPLING
    ),
]
TopK: TypeAlias = Annotated[
    int | None, typer.Option("--top-k", help="0 keeps all.", rich_help_panel=_SAMPLING)
]
TopP: TypeAlias = Annotated[
    float | None, typer.Option("--top-p", help="1 keeps all.", rich_help_panel=_SAMPLING)
]
MinP: TypeAlias = Annotated[
    float | None, typer.Option("--min-p", help="0 keeps all.", rich_help_panel=_SAMPLING)
]
RepetitionPenalty: TypeAlias = Annotated[
    float | None,
    typer.Option("--repetition-penalty", help="1 is off.", rich_help_panel=_SAMPLING),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option("--seed", help="Same seed, same text, any method.", rich_help_panel=_SAMPLING),
]
MaxNewTokens: TypeAlias = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Most tokens of the answer.")
]
Stop: TypeAlias = Annotated[
    list[str] | None, typer.Option("--stop", help="End at this text; repeatable.")
]
System: TypeAlias = Annotated[str | None, typer.Option("--system", help="System prompt.")]
Raw: TypeAlias = Annotated[bool, typer.Option("--raw", help="No chat template.")]
Thinking: TypeAlias = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="For templates that can think."),
]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which models, where."""

    bundle: str = "demo"
    target: str | None = None
    draft: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    graphs: bool = True
    device_map: str | None = None

    def check(self, method: str) -> None:
        """Say before anything loads that a method cannot do without a drafter.

        Raises:
            ConfigError: It drafts, and no drafter is wanted, or the bundle's is for another target.
            BundleError: There is no such bundle.
        """
        if method == "ar":
            return
        if self.draft == "none":
            raise ConfigError(
                f"Method {method!r} drafts, but --draft none asks for no drafter.",
                "Give a drafter, or decode plainly with --method ar.",
            )
        if self.draft is None and self.target is not None and not self._paired(self.target):
            raise ConfigError(
                f"Method {method!r} drafts, but bundle {self.bundle} has no drafter for "
                f"{self.target}.",
                "Name one with --draft, or decode plainly with --method ar.",
            )

    def _paired(self, target: str) -> bool:
        """Whether the bundle's drafter serves this target; True where only loading can tell."""
        from dartree_core.bundles import hub, registry, resolution
        from dartree_core.bundles.registry import HubSource

        bundle = registry.get(self.bundle)
        path = Path(target).expanduser()
        if path.exists():
            own = resolution.cached_target(bundle)
            return own is not None and own.resolve() == path.resolve()
        named = hub.split_id(target)
        if named is None:
            return True  # there is no such target, which loading says better
        own_repo = bundle.target.repo if isinstance(bundle.target, HubSource) else None
        return named[0] == own_repo or registry.paired_with(named[0]) is bundle

    def load(self, *, quiet: bool = False) -> Decoder:
        """Load with progress bars on a terminal."""
        from dartree_core.bundles import load
        from dartree_core.cli.output import progress_bars

        options: dict[str, Any] = {
            "target": self.target,
            "draft": self.draft,
            "device": self.device,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
            "graphs": None if self.graphs else False,
            "device_map": self.device_map,
        }
        if quiet:
            return load(self.bundle, **options)
        with progress_bars() as progress:
            return load(self.bundle, progress=progress, **options)


def decode_config(decoder: Decoder, **given: Any) -> DecodeConfig:
    """Settings for a turn: the command line over the model's own defaults over ours.

    Args:
        decoder: Whose `generation_config` supplies sampling defaults.
        given: Flat setting names; None means not given.

    Raises:
        ConfigError: A value does not validate.
    """
    from dartree_core.engine.defaults import sampling_defaults

    known = given_settings(given)
    # A budget given as a number asks for published trees; what else they hold, one must ask for.
    preset = PRESETS["auto" if known.get("budget", "auto") == "auto" else "paper"]
    base = DecodeConfig(tree=preset, sampling=sampling_defaults(decoder.target.model))
    return base.with_changes(**known)


def given_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that were given, with the budget as a number or `auto`.

    Raises:
        ConfigError: The budget is neither.
    """
    known = {name: value for name, value in given.items() if value is not None}
    budget = known.get("budget", "auto")
    if budget != "auto":
        try:
            known["budget"] = int(budget)
        except ValueError:
            raise ConfigError(
                f"budget is {budget!r}, but must be a whole number or auto.",
                "For example --budget 16.",
            ) from None
    if "candidates" in known:
        known["expansion_k"] = known["candidates"]
    return known


def read_prompt(prompt: str | None, file: Path | None, stdin: Any) -> str:
    """The prompt from an argument, a file, or standard input (`-`, or a pipe).

    Raises:
        ConfigError: There is none, there are two, or it cannot be read as UTF-8 text.
    """
    if prompt is not None and file is not None:
        raise ConfigError("Both a prompt and --file were given.", "Give one of them.")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The prompt file {file} cannot be read ({error}).", "Give a UTF-8 text file."
            ) from error
    elif prompt is not None and prompt != "-":
        text = prompt
    elif stdin is None or (prompt is None and stdin.isatty()):  # it is None where closed
        raise ConfigError(
            "There is no prompt.",
            'Give one, as in: dartree run "Explain what a binary search does."',
        )
    else:
        try:
            text = stdin.read()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"Standard input cannot be read ({error}).", "Give UTF-8 text."
            ) from error
        text = text.removesuffix("\n")
    return usable_prompt(text)


def usable_prompt(text: str) -> str:
    """The prompt, when a model can be given it.

    Raises:
        ConfigError: It is empty, or not valid UTF-8.
    """
    if not text.strip():
        raise ConfigError("The prompt is empty.", "Type a question or an instruction.")
    require_utf8("The prompt", text)
    return text


def require_utf8(what: str, text: str) -> None:
    """Refuse text that no tokenizer takes: arguments that are no UTF-8 hold lone surrogates.

    Raises:
        ConfigError: It is such text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} cannot be read ({error}).", "Give UTF-8 text.") from error


def conversation(prompt: str, system: str | None, *, raw: bool) -> str | list[dict[str, str]]:
    """What the decoder takes: plain text, or messages when there is a system prompt.

    Raises:
        ConfigError: A system prompt in raw mode, which has no place for it, or not valid UTF-8.
    """
    if system is None:
        return prompt
    require_utf8("The system prompt", system)
    if raw:
        raise ConfigError(
            "--system needs the chat template, which --raw leaves out.",
            "Put the instruction into the prompt itself.",
        )
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt}]


def warnings(template: str, config: DecodeConfig, thinking: bool | None) -> Sequence[str]:
    """What a user should know before a run, one sentence each."""
    from dartree_core.engine.prompt import thinking_notes

    out = []
    if thinking is not None and template == "raw":
        out.append("--raw leaves the chat template out, so there is no thinking to switch.")
    elif thinking is not None and ":" not in template:
        out.append("This model's chat template has no thinking switch; it was left as it is.")
    return [*out, *thinking_notes(template, config)]
