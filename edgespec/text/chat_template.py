"""From messages to the text a chat model was trained on. Needs no torch.

A chat template is a Jinja program that comes with a model, so it is a stranger's code: it is never compiled
or executed, but read node by node within a budget (`template`), and its size is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.nodes import Template

from edgespec.devices.files import read_bounded
from edgespec.errors import ModelError, OptionError
from edgespec.text.template import parse, render
from edgespec.text.template_budget import LimitError, text_bytes

TEMPLATE_CHARACTERS = 64 * 1024  # the largest template known has 30,000; parsing takes some microseconds each
_ERROR = 1000  # characters of what a template may say in an error

# For models without a template: no model was trained on this, but a base model continues it sensibly.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
DEFAULT_STOP = ("\nUser:", "\nSystem:")

Message = Mapping[str, Any]


class ChatTemplate:
    """Named templates of one model: "default", and "tool_use" where tools have one of their own.

    is_chat: the model came with a template; if not, `DEFAULT_TEMPLATE` is used (the prompt then needs BOS
        from the tokenizer, which a model's own template writes itself) and replies end at `stop`.
    sources, names: of the templates, and what they may write by name.
    """

    def __init__(self, templates: Mapping[str, str], tokens: Mapping[str, str] | None = None) -> None:
        """`tokens`: what templates may write by name ("bos_token", "eos_token", ...)."""
        self.is_chat = bool(templates)
        self.stop = () if self.is_chat else DEFAULT_STOP
        self.sources = dict(templates) or {"default": DEFAULT_TEMPLATE}
        self.names = dict(tokens or {})
        self._parsed: dict[str, Template] = {}
        for name, source in self.sources.items():
            if len(source) > TEMPLATE_CHARACTERS:
                raise ModelError(
                    f"chat template {name!r} has {len(source)} characters; it may have {TEMPLATE_CHARACTERS}"
                )
            try:
                source.encode()
            except UnicodeEncodeError:
                raise ModelError(f"chat template {name!r} is not valid Unicode") from None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. `variables` go to the template as they are (for example enable_thinking=False).

        Raises OptionError for messages that are not role-and-content dictionaries of plain values, ModelError
        when the template refuses them, is broken, or uses more time or memory than a template needs.
        """
        if not messages:
            raise OptionError("there is no message to reply to")
        size = [0, 0]
        given = {
            **self.names,
            "messages": [_message(message, size) for message in messages],
            "tools": None if tools is None else _plain(list(tools), size),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **_plain(variables, size),
        }
        name = "tool_use" if tools and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise ModelError(f"the model has chat templates {sorted(self.sources)}, none of them 'default'")
        try:
            if name not in self._parsed:
                self._parsed[name] = parse(self.sources[name])
            return render(self._parsed[name], given, (size[0], size[1]))
        except LimitError as error:
            raise ModelError(f"the model's chat template was stopped: {error}") from None
        except TemplateError as error:
            raise ModelError(f"the model's chat template failed: {str(error.message)[:_ERROR]}") from None
        except (RecursionError, MemoryError):
            raise ModelError("the model's chat template was stopped: it nests or recurses too deep") from None
        except Exception as error:  # whatever a program can do wrong
            fact = f"{type(error).__name__}: {error}"
            raise ModelError(f"the model's chat template failed: {fact[:_ERROR]}") from None


def read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates of a model directory, by name; {} when it has none.

    `chat_template.jinja` and `additional_chat_templates/*.jinja` go before the "chat_template" of
    tokenizer_config.json (`config`), which is one template or a list of named ones.
    """
    files = {"default": directory / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))[:32]}
    found = {name: _read(path) for name, path in files.items() if path.is_file()}
    if found:
        return found
    raw = config.get("chat_template")
    if raw is None:
        return {}
    if isinstance(raw, str):
        return {"default": raw}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in raw}
    except (TypeError, KeyError):
        raise ModelError(
            "tokenizer_config.json: chat_template is neither a text nor a list of names and templates"
        ) from None


def _read(path: Path) -> str:
    if (size := path.stat().st_size) > 4 * TEMPLATE_CHARACTERS:
        raise ModelError(f"{path} has {size} bytes; a chat template may have {4 * TEMPLATE_CHARACTERS}")
    try:
        return read_bounded(path, 4 * TEMPLATE_CHARACTERS).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not UTF-8 text") from None


def _message(message: Message, size: list[int]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise OptionError(f"a message is a dictionary with a role and a content, not {str(message)[:80]!r}")
    # As transformers: absent and null are the same; templates mostly handle only the first.
    plain: dict[str, Any] = _plain({key: value for key, value in message.items() if value is not None}, size)
    return plain


def _plain(value: Any, size: list[int], depth: int = 0) -> Any:
    """A copy of plain JSON values, which a template may be shown; adds (bytes of text, nodes) to `size`."""
    size[1] += 1
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        size[0] += text_bytes(value)
        return str(value)
    if depth < 32 and isinstance(value, Mapping):
        return {str(key): _plain(item, size, depth + 1) for key, item in value.items()}
    if depth < 32 and isinstance(value, (list, tuple)):
        return [_plain(item, size, depth + 1) for item in value]
    kind = type(value).__name__
    raise OptionError(f"messages hold text, numbers, lists and dictionaries, 32 deep at most, not {kind}")
